//! Calls side by side: an agent with sub-agents, whose turns are sampled in any order. Each turn is sampled, and trained
//! on, after what its call follows, whatever is delivered twice, handed back, lost or restarted meanwhile.

use std::collections::BTreeMap;

use millrace_schemas::env_step::{EnvAction, EnvStepDone, TurnLimits};
use millrace_schemas::outcome::Lost;
use millrace_schemas::{BlobRef, Task, fork};

use super::*;

/// Turns at once, of a rollout's eight: one of the main agent, two of each sub-agent, one more of the main agent.
const AT_ONCE: u32 = 2;
const SUB_AGENTS: u32 = 3;

fn agents(rollout: &str) -> RunSpec {
    let blob = BlobRef::of(b"rows");
    let text = format!(
        r#"
        name = "{RUN}"
        steps = 6
        model = {{ kind = "hugging_face", path = "m", context = 600 }}
        rewards = [{{ rule = "env_return" }}]
        evaluate = {{ prompts = 3, every = 4 }}
        algorithm = {{ learning_rate = 1e-5 }}
        [rollout]
        groups_per_step = 3
        group_size = 2
        {rollout}
        [environment]
        name = "agent"
        command = ["agent"]
        reward = ["true"]
        max_turns = {}
        context_tokens = 300
        forks = "separate"
        parallel_calls = {AT_ONCE}
        [environment.rows]
        path = "rows.jsonl"
        answer = ""
        content = {{ blob = {{ sha256 = "{}", bytes = {} }}, train = 7, held_out = 3 }}
        "#,
        2 + 2 * SUB_AGENTS,
        blob.sha256,
        blob.bytes
    );
    from_toml(&text).expect("a valid run file")
}

/// A random number below `of`, the next of its row.
fn drawn(of: u64, row: &mut u64) -> u64 {
    *row = row.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*row >> 33) % of
}

/// An agent as its worker hosts it.
#[derive(Default)]
struct Host {
    /// Tells it from another one of the same rollout.
    instance: u8,
    /// Calls that were made: what they follow, and the step that led to them.
    calls: Vec<(u32, Option<u32>)>,
    /// Turns by call.
    turns: BTreeMap<u32, Vec<u32>>,
    /// Steps, with what they led to: a call, 0 for none.
    steps: BTreeMap<u32, Option<u32>>,
    is_over: bool,
}

impl Host {
    /// A step comes, perhaps once more. `early` ends the agent with calls that are open.
    fn step(&mut self, step: u32, answers: u32, tokens: &[u32], early: bool) {
        if self.calls.is_empty() {
            self.calls.push((0, None));
        }
        if answers > 0
            && let call = self.call(answers)
            && !self.turns.contains_key(&call)
        {
            self.turns.insert(call, tokens.to_vec());
            let follows = self.calls[call as usize - 1].0;
            match call {
                1 => self.calls.extend((0..SUB_AGENTS).map(|_| (0, None::<u32>))),
                // A sub-agent goes on once.
                _ if follows == 0 => self.calls.push((call, None)),
                _ => {}
            }
            if self.turns.len() as u32 == 1 + 2 * SUB_AGENTS {
                self.calls.push((1, None));
            }
            self.is_over |= early || self.turns.len() as u32 == 2 + 2 * SUB_AGENTS;
        }
        self.steps.entry(step).or_default();
        self.lead();
    }

    /// The call that the fold numbers so: by the step that led to it.
    fn call(&self, number: u32) -> u32 {
        let at = self.calls.iter().position(|call| call.1 == Some(number - 1));
        at.unwrap_or_else(|| panic!("no step led to call {number}")) as u32 + 1
    }

    fn lead(&mut self) {
        let mut waiting = self.steps.iter_mut().rev().filter(|(_, led)| led.is_none());
        let Some((step, newest)) = waiting.next() else { return };
        waiting.for_each(|(_, older)| *older = Some(0));
        let open = self.calls.iter().filter(|call| call.1.is_some()).count() - self.turns.len();
        let next = (1..).zip(&mut self.calls).find(|(_, call)| call.1.is_none());
        if let Some((number, call)) = next.filter(|_| open < AT_ONCE as usize && !self.is_over) {
            (call.1, *newest) = (Some(*step), Some(number));
        }
    }

    /// The outcome of a step; `None` while it waits.
    fn led(&self, step: u32) -> Option<EnvStepDone> {
        let valid = EnvStepDone { state: vec![self.instance], valid: true, ..EnvStepDone::default() };
        Some(match self.steps.get(&step)? {
            Some(0) => valid,
            Some(call) => {
                let follows = self.calls[*call as usize - 1].0.checked_sub(1);
                let led_by = |at: u32| self.calls[at as usize].1.expect("it has a turn");
                let follows = Some(follows.map_or(0, |at| led_by(at) + 1));
                let limits = TurnLimits { max_new_tokens: Some(1), ..TurnLimits::default() };
                EnvStepDone { observation: observed(*call), follows, limits, ..valid }
            }
            None if self.is_over => EnvStepDone { reward: 1.0, done: true, success: true, ..valid },
            None => return None,
        })
    }

    /// What a call's turn is sampled after.
    fn context(&self, call: u32) -> Vec<u32> {
        let follows = self.calls[call as usize - 1].0;
        let before = if follows == 0 {
            vec![]
        } else {
            [self.context(follows), self.turns[&follows].clone()].concat()
        };
        [before, observed(call)].concat()
    }
}

fn observed(call: u32) -> Vec<u32> {
    vec![call, 7]
}

/// Workers that do tasks in a random order.
struct World {
    harness: Harness,
    hosts: BTreeMap<RolloutId, Host>,
    /// Steps that wait, as their workers hold them.
    waiting: BTreeMap<TaskKey, Task>,
    /// Outcomes of steps on their way to the log, which come in any order.
    under_way: Vec<Event>,
    row: u64,
    /// One of so many tasks is delivered again, one of so many steps lost; 0 for none.
    faults: u64,
    most_at_once: usize,
    /// Agents that work on this group's calls only while nothing else is to do, once they have had a turn.
    slow: Option<u64>,
}

impl World {
    fn new(spec: &RunSpec, row: u64, faults: u64, restart_every: usize) -> Self {
        Self {
            harness: Harness::submit(spec, restart_every),
            hosts: BTreeMap::new(),
            waiting: BTreeMap::new(),
            under_way: Vec::new(),
            row,
            faults,
            most_at_once: 0,
            slow: None,
        }
    }

    /// The tasks that may be done next.
    fn tasks(&self) -> Vec<String> {
        let is_slow = |task: &Task| {
            let rollout = task.key.rollout().filter(|rollout| Some(rollout.group) == self.slow);
            rollout.is_some_and(|rollout| self.hosts.get(&rollout).is_some_and(|host| !host.turns.is_empty()))
        };
        let names = |slow: bool| -> Vec<String> {
            let tasks = self.harness.queue.iter().filter(|(_, task)| is_slow(task) == slow);
            tasks.map(|(name, _)| name.clone()).collect()
        };
        let others = names(false);
        if others.is_empty() { names(true) } else { others }
    }

    fn happens(&mut self) -> bool {
        self.faults > 0 && drawn(self.faults, &mut self.row) == 0
    }

    /// A worker does one task; `false` if there is none.
    fn work(&mut self) -> bool {
        // Workers end agents that are too old.
        if let Some(policy) = &self.harness.policy {
            self.waiting.retain(|key, task| !policy.is_stale(*key, task.version, task.evaluate));
        }
        let names = self.tasks();
        let under_way = self.under_way.len();
        if under_way > 0 && (names.is_empty() || drawn(2, &mut self.row) == 0) {
            let event = self.under_way.swap_remove(drawn(under_way as u64, &mut self.row) as usize);
            self.harness.append(event);
            return true;
        }
        if names.is_empty() {
            return false;
        }
        let name = &names[drawn(names.len() as u64, &mut self.row) as usize];
        let task = match self.happens() {
            true => self.harness.queue[name].clone(),
            false => self.harness.queue.remove(name).expect("it was found"),
        };
        let policy = self.harness.policy.clone();
        if policy.is_some_and(|policy| policy.is_stale(task.key, task.version, task.evaluate)) {
            return true;
        }
        let open = self.harness.queue.values().filter_map(|task| match task.key {
            TaskKey::Generate { rollout, .. } => Some(rollout),
            _ => None,
        });
        let mut at_once = BTreeMap::<RolloutId, usize>::new();
        open.for_each(|rollout| *at_once.entry(rollout).or_default() += 1);
        self.most_at_once = self.most_at_once.max(at_once.values().copied().max().unwrap_or(0));
        match (&task.body, task.key) {
            (TaskBody::EnvStep(_), TaskKey::EnvStep { rollout, turn }) => self.step(rollout, turn, task),
            (TaskBody::Generate(_), TaskKey::Generate { rollout, turn }) => {
                let TaskBody::Generate(resolved) = self.harness.resolved(&task).body else { unreachable!() };
                if let Some(host) = self.hosts.get(&rollout) {
                    assert_eq!(resolved.context, host.context(host.call(turn)), "{}", task.key);
                }
                self.harness.finish(&task);
            }
            _ => self.harness.finish(&task),
        }
        true
    }

    fn step(&mut self, rollout: RolloutId, number: u32, task: Task) {
        let is_over = self.hosts.get(&rollout).is_some_and(|host| host.is_over);
        if number > 0 && !is_over && self.happens() {
            self.hosts.remove(&rollout);
            self.waiting.retain(|key, _| key.rollout() != Some(rollout));
        }
        let TaskBody::EnvStep(step) = self.harness.resolved(&task).body else { unreachable!() };
        let (instance, answers, tokens) = match &step.action {
            EnvAction::Reset => (None, 0, Vec::new()),
            EnvAction::Step { state, tokens } => {
                (Some(state[0]), step.answers.expect("calls are side by side"), tokens.clone())
            }
        };
        // A reset makes a host where there is none; what comes for another one is lost.
        let known = self.hosts.get(&rollout).map(|host| host.instance);
        if instance.is_some() && instance != known {
            let lost = OutcomeBody::Lost(Lost { reason: "its worker is gone".into() });
            return self.harness.append(outcome(task.key, Some(task.request_fingerprint()), lost));
        }
        assert_eq!(tokens.is_empty(), answers == 0);
        let early = self.happens();
        let instance = drawn(255, &mut self.row) as u8;
        let host = self.hosts.entry(rollout).or_insert_with(|| Host { instance, ..Host::default() });
        host.step(number, answers, &tokens, early);
        self.waiting.insert(task.key, task);
        self.tell(rollout);
    }

    /// The steps of a host that wait no longer have their outcome.
    fn tell(&mut self, rollout: RolloutId) {
        let of = |key: &TaskKey| key.rollout() == Some(rollout);
        let steps: Vec<TaskKey> = self.waiting.keys().copied().filter(of).collect();
        for key in steps {
            let TaskKey::EnvStep { turn, .. } = key else { unreachable!() };
            let Some(done) = self.hosts.get(&rollout).and_then(|host| host.led(turn)) else { continue };
            let task = self.waiting.remove(&key).expect("it waits");
            let body = OutcomeBody::EnvStep(done);
            self.under_way.push(outcome(key, Some(task.request_fingerprint()), body));
        }
    }

    /// Each turn of a batch has the tokens and the context that its call had.
    fn check_batches(&self) -> usize {
        let mut out_of_order = 0;
        for rollout in self.harness.batches().flat_map(|batch| batch.groups).flat_map(|group| group.rollouts)
        {
            let host = &self.hosts[&rollout.id];
            let end = |turn: u32| {
                let turn = &rollout.turns[turn as usize - 1];
                turn.at as usize + turn.logprobs.len()
            };
            let block = |turn: u32| (if turn == 1 { 0 } else { end(turn - 1) })..end(turn);
            let mut calls = Vec::new();
            for turn in 1..=rollout.turns.len() as u32 {
                let own = &rollout.tokens[block(turn)];
                let before = fork::path(&rollout.forks, turn)
                    .into_iter()
                    .flat_map(|turn| &rollout.tokens[block(turn)]);
                let whole: Vec<u32> = before.chain(own).copied().collect();
                let call = own[0];
                assert!(whole.starts_with(&host.context(call)), "{}: {whole:?}", rollout.id);
                // The agent may have ended before it had the turn.
                assert!(host.turns.get(&call).is_none_or(|sampled| whole.ends_with(sampled)), "{whole:?}");
                calls.push(call);
            }
            out_of_order += usize::from(!calls.is_sorted());
            assert!(rollout.sequences().is_some(), "well-formed forks: {:?}", rollout.forks);
            let firsts = rollout.turns.iter().map(|turn| turn.segments[0].version);
            assert_eq!(Some(rollout.start_version), firsts.min(), "its oldest token");
        }
        out_of_order
    }
}

fn play(spec: &RunSpec, row: u64, faults: u64, restart_every: usize) -> World {
    played(World::new(spec, row, faults, restart_every))
}

fn played(mut world: World) -> World {
    let faults = world.faults;
    for events in 0..400_000 {
        let ledger = status::ledger(world.harness.run());
        assert!(ledger.balanced(), "books do not balance: {ledger:?}");
        if faults > 0 && events % 997 == 996 {
            // The coordinator and the queue are lost; a snapshot of somewhere is not.
            let cut = drawn(world.harness.log.len() as u64, &mut world.row) as usize;
            world.harness.lose_all(cut);
        }
        if !world.work() {
            break;
        }
    }
    world
}

#[test]
fn each_turn_is_sampled_and_trained_on_after_what_its_call_follows() {
    let mut out_of_order = 0;
    for (row, alpha) in [(1, "0.0"), (2, "1.0"), (3, "2.0")] {
        let world = play(&agents(&format!("alpha = {alpha}\nmax_new_tokens = 1")), row, 0, 0);
        let run = world.harness.run();
        assert_eq!(run.state, RunState::Finished, "{:?}", run.reason);
        assert_eq!(status::ledger(run).trained, 6 * 3 * 2);
        assert_eq!(
            world.most_at_once, AT_ONCE as usize,
            "turns are sampled at once, and no more than may be"
        );
        assert!(world.harness.queue.is_empty() && world.waiting.is_empty(), "no step waits for nothing");
        out_of_order += world.check_batches();
        let turns = world.harness.batches().flat_map(|batch| batch.groups).flat_map(|group| group.rollouts);
        assert!(turns.into_iter().all(|rollout| rollout.turns.len() as u32 == 2 + 2 * SUB_AGENTS));
    }
    assert!(out_of_order > 50, "turns come in another order than their calls: {out_of_order}");
}

#[test]
fn what_is_repeated_lost_or_restarted_changes_no_context() {
    for row in 0..12 {
        let spec = agents("alpha = 1.0\nmax_new_tokens = 1\nmax_replacements = 50");
        let world = play(&spec, row, 20, 7);
        let run = world.harness.run();
        assert_eq!(run.state, RunState::Finished, "row={row} {:?}", run.reason);
        let ledger = status::ledger(run);
        assert_eq!((ledger.trained, ledger.in_flight), (6 * 3 * 2, 0), "row={row}");
        assert!(ledger.dropped["lost"] > 0, "row={row} {ledger:?}");
        assert!(world.harness.staleness.iter().all(|staleness| *staleness <= 1), "row={row}");
        world.check_batches();
        assert_eq!(bytes(&replay(&world.harness.log)), bytes(&world.harness.state));
    }
}

/// Its turns were sampled by a version that no batch takes any more: nobody would score it, and it would wait for ever.
#[test]
fn an_agent_that_grows_stale_between_its_calls_starts_again() {
    for row in 0..4 {
        let world = played(World {
            slow: Some(1),
            ..World::new(&agents("alpha = 1.0\nmax_new_tokens = 1"), row, 0, 0)
        });
        let run = world.harness.run();
        assert_eq!(run.state, RunState::Finished, "row={row} {:?}", run.reason);
        let ledger = status::ledger(run);
        assert_eq!((ledger.trained, ledger.dropped["stale"] >= 2), (6 * 3 * 2, true), "row={row} {ledger:?}");
        assert!(world.harness.staleness.iter().all(|staleness| *staleness <= 1), "row={row}");
        world.check_batches();
    }
}

/// A stamp of a later version hid how old its first turn was: below the floor it stayed in play, and nobody scored it.
#[test]
fn an_agent_whose_first_turn_began_before_its_stamp_starts_again() {
    const GROUP: u64 = 1;
    let mut world = World::new(&agents("alpha = 1.0\nmax_new_tokens = 4"), 0, 0, 0);
    let made = |world: &World| world.harness.policy.as_ref().map_or(0, |policy| policy.version.0 + 1);
    let mut held = BTreeMap::<TaskKey, Task>::new();
    let mut play_until = |world: &mut World, until: u64| {
        loop {
            let of_group = |task: &Task| task.key.rollout().is_some_and(|rollout| rollout.group == GROUP);
            let taken = world.harness.queue.extract_if(.., |_, task| of_group(task));
            held.extend(taken.map(|(_, task)| (task.key, task)).collect::<Vec<_>>());
            if made(world) >= until {
                return held.keys().copied().collect::<Vec<_>>();
            }
            assert!(world.work(), "no task is left after {} versions", made(world));
        }
    };
    let resets = play_until(&mut world, 1);
    let call =
        EnvStepDone { state: vec![1], observation: vec![9], follows: Some(0), ..EnvStepDone::default() };
    assert!(!resets.is_empty());
    for reset in &resets {
        world.harness.say(*reset, OutcomeBody::EnvStep(call.clone()));
    }
    let turns = |keys: Vec<TaskKey>| keys.into_iter().filter(|key| matches!(key, TaskKey::Generate { .. }));
    for key in turns(play_until(&mut world, 2)) {
        let OutcomeBody::Generate(mut part) = turn(&[5], &[-0.5], &[(1, 1)]) else { unreachable!() };
        part.finish = millrace_schemas::generate::Finish::Partial;
        let (reason, sampled) = ("its worker leaves".into(), Some(Box::new(part)));
        let returned = millrace_schemas::outcome::Returned { reason, sampled, begun: None };
        world.harness.say(key, OutcomeBody::Returned(returned));
    }
    for key in turns(play_until(&mut world, 3)) {
        world.harness.say(key, turn(&[5, 6], &[-0.5, -0.5], &[(1, 1), (2, 1)]));
    }
    let attempts =
        |keys: Vec<TaskKey>| keys.into_iter().filter_map(TaskKey::rollout).map(|id| id.attempt).max();
    assert_eq!(attempts(play_until(&mut world, 3)), Some(0));
    assert_eq!(attempts(play_until(&mut world, 4)), Some(1));
}

/// What an environment may not do fails its rollout, and the run goes on.
#[test]
fn impossible_calls_are_refused() {
    let call =
        |follows| EnvStepDone { state: vec![1], observation: vec![9], follows, ..EnvStepDone::default() };
    let nothing = EnvStepDone { observation: vec![], ..call(None) };
    let over = EnvStepDone { done: true, ..call(None) };
    for (steps, why) in [
        (vec![call(Some(1))], "follows call=1, which has no turn"),
        (vec![call(Some(0)), call(Some(0))], "at most 8, 2 at once"),
        (vec![nothing], "no later step waits"),
        (vec![over], "before a call of it had its turn"),
    ] {
        let mut harness = Harness::submit(&agents("alpha = 1.0\nmax_new_tokens = 1"), 0);
        let reset = take(&mut harness, |body| matches!(body, TaskBody::EnvStep(_)));
        let rollout = reset.key.rollout().expect("a rollout's");
        harness.say(reset.key, OutcomeBody::EnvStep(call(None)));
        for (step, turn) in steps.into_iter().zip(1..) {
            harness.say(TaskKey::EnvStep { rollout, turn }, OutcomeBody::EnvStep(step));
        }
        let told = format!("{:?}", harness.notices);
        assert!(told.contains(why), "{why}: {told}");
    }
}

#[test]
fn a_part_of_a_turn_is_handed_back_to_its_own_call() {
    let mut harness = Harness::submit(&agents("alpha = 1.0\nmax_new_tokens = 4"), 0);
    let reset = take(&mut harness, |body| matches!(body, TaskBody::EnvStep(_)));
    let rollout = reset.key.rollout().expect("a rollout's");
    let call = |token| EnvStepDone {
        state: vec![1],
        observation: vec![token],
        follows: Some(0),
        ..EnvStepDone::default()
    };
    harness.say(reset.key, OutcomeBody::EnvStep(call(1)));
    harness.say(TaskKey::EnvStep { rollout, turn: 1 }, OutcomeBody::EnvStep(call(2)));
    let generate = |turn| TaskKey::Generate { rollout, turn };
    let OutcomeBody::Generate(mut part) = turn(&[5], &[-0.5], &[(0, 1)]) else { unreachable!() };
    part.finish = millrace_schemas::generate::Finish::Partial;
    let (reason, sampled) = ("its worker leaves".into(), Some(Box::new(part)));
    harness.queue.retain(|_, task| task.key != generate(2));
    harness.say(
        generate(2),
        OutcomeBody::Returned(millrace_schemas::outcome::Returned { reason, sampled, begun: None }),
    );
    harness.restart();
    let asked = |number| {
        let task = harness.queue.values().find(|task| task.key == generate(number)).expect("it is queued");
        let TaskBody::Generate(asked) = harness.resolved(task).body else { unreachable!() };
        (asked.context, asked.sampled.map(|sampled| sampled.tokens))
    };
    assert_eq!((asked(1), asked(2)), ((vec![1], None), (vec![2], Some(vec![5]))));
}
