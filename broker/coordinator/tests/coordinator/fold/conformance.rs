//! Known defects of other systems, tried on the fold: prompts and groups that a restart loses,
//! bounds and versions that it forgets, steps that are made twice.

use std::collections::{BTreeMap, BTreeSet};

use millrace_coordinator::fold::state::Run;
use millrace_coordinator::fold::status;
use millrace_schemas::api::RunState;
use millrace_schemas::blob::Sha;
use millrace_schemas::generate::Segment;
use millrace_schemas::notice::Notice;
use millrace_schemas::publish_weights::PublishWeightsDone;
use millrace_schemas::train_shard::{Batch, FileRef, TrainWork};
use millrace_schemas::{BlobRef, Event, OutcomeBody, PolicyVersion, Task, TaskBody, TaskKey};

use super::harness::Harness;
use super::{spec, take, to_the_end};

/// Does the first queued task that `wanted` accepts; `false` if there is none.
fn work_on(harness: &mut Harness, wanted: impl Fn(&TaskBody) -> bool) -> bool {
    let name = harness.queue.iter().find(|(_, task)| wanted(&task.body)).map(|(name, _)| name.clone());
    let Some(task) = name.and_then(|name| harness.queue.remove(&name)) else { return false };
    harness.finish(&task);
    true
}

const fn is_train(body: &TaskBody) -> bool {
    matches!(body, TaskBody::TrainShard(_))
}

fn report(harness: &mut Harness, task: &Task, body: OutcomeBody) {
    harness.say(task.key, body);
}

/// Groups that are pending, with their prompts: playing, finished, or in the current step.
fn pending(run: &Run) -> BTreeMap<u64, u64> {
    let training = run.training.iter().flat_map(|training| &training.groups);
    let playing = run.groups.iter();
    playing.chain(training.map(|(id, group)| (id, group))).map(|(id, group)| (*id, group.prompt)).collect()
}

fn dropped(run: &Run) -> u64 {
    status::ledger(run).dropped.values().sum()
}

/// The batch that a train task refers to, as stored.
fn batch_of(harness: &Harness, task: &Task) -> Batch {
    let TaskBody::TrainShard(shard) = &task.body else { panic!("not a train task: {task:?}") };
    let TrainWork::Step { batch, .. } = &shard.work else { panic!("it has no batch: {task:?}") };
    millrace_schemas::envelope::decode("batch", &harness.blobs[&batch.sha256]).expect("a batch")
}

fn ids(batch: &Batch) -> Vec<u64> {
    batch.groups.iter().map(|group| group.group).collect()
}

/// Follows every prompt from event to event.
#[derive(Default)]
struct Prompts {
    pending: BTreeMap<u64, u64>,
    /// Prompts that were trained, or dropped with a reason.
    over: BTreeSet<u64>,
    version: PolicyVersion,
    trained: u64,
    dropped: u64,
}

impl Prompts {
    /// Checks after an event: groups that left were trained or dropped, and the books have them.
    fn look(&mut self, harness: &Harness) {
        let run = harness.run();
        let now = pending(run);
        let gone: Vec<u64> = self.pending.keys().filter(|id| !now.contains_key(id)).copied().collect();
        let rollouts = gone.len() as u64 * u64::from(run.spec.rollout.group_size);
        let booked = (run.books.trained - self.trained) + (dropped(run) - self.dropped);
        assert!(booked >= rollouts, "groups {gone:?} are gone without a reason");
        for (id, prompt) in &self.pending {
            if gone.contains(id) {
                assert!(self.over.insert(*prompt), "prompt {prompt} was given out twice");
            } else {
                assert_eq!(now[id], *prompt, "group {id} has another prompt now");
            }
        }
        let known: BTreeSet<u64> = self.over.iter().chain(now.values()).copied().collect();
        assert!(known.iter().copied().eq(0..run.next_prompt), "a prompt was skipped: {known:?}");
        (self.pending, self.version) = (now, run.version());
        (self.trained, self.dropped) = (run.books.trained, dropped(run));
    }
}

#[test]
fn prompts_survive_restart() {
    for every in [5, 17] {
        let mut harness =
            Harness::submit(&spec("alpha = 1.5\nfilter = \"equal_rewards\"\nmax_replacements = 1"), 0);
        let mut prompts = Prompts::default();
        for turn in 0..20_000 {
            if turn % every == 0 {
                // The queue is lost too, so that only what the state knows can bring a prompt back.
                harness.lose_all(turn % (harness.log.len() + 1));
                prompts.look(&harness);
            }
            // Long rollouts fail now and then, so that some prompts end for a reason.
            let failing = harness.queue.first_key_value().map(|(_, task)| (task.key, task.evaluate));
            match failing {
                Some((key @ TaskKey::Generate { turn: 2, .. }, false)) if turn % 3 == 0 => {
                    harness.queue.pop_first();
                    harness.append(Event::DeadLetter { key, reason: "too long".into(), exhausted: false });
                }
                Some(_) => assert!(harness.work()),
                None => break,
            }
            prompts.look(&harness);
        }
        let run = harness.run();
        assert_eq!(run.state, RunState::Finished, "every={every} {:?}", status::status(run));
        assert!(prompts.pending.is_empty());
        let ledger = status::ledger(run);
        assert!(ledger.balanced() && ledger.trained == 36 && ledger.dropped["failed"] > 0, "{ledger:?}");
    }
}

#[test]
fn surplus_groups_are_kept() {
    let mut harness = Harness::submit(&spec("alpha = 2.0"), 0);
    let train = take(
        &mut harness,
        |body| matches!(body, TaskBody::TrainShard(shard) if matches!(shard.work, TrainWork::Step { .. })),
    );
    let first = ids(&batch_of(&harness, &train));
    while work_on(&mut harness, |body| !is_train(body)) {}
    let surplus = harness.run().ready.clone();
    let finished = harness.run().groups.clone();
    assert_eq!((first.len(), surplus.len()), (3, 6), "the window is (1 + 2) · 3 groups");

    // Handed over is what a version is committed with, and nothing before: restarts change neither.
    let in_flight =
        |harness: &Harness| harness.run().training.as_ref().map(|training| training.groups.clone());
    let held = in_flight(&harness);
    harness.lose_all(harness.log.len() / 2);
    assert_eq!((&harness.run().ready, &harness.run().groups), (&surplus, &finished));
    assert_eq!(in_flight(&harness), held);
    harness.finish(&train);
    harness.lose_all(harness.log.len());
    assert_eq!(
        (in_flight(&harness), harness.run().books.trained),
        (held, 0),
        "trained, and not yet committed"
    );

    // Two more steps are made of what was there, as it was.
    let mut used = Vec::new();
    for _ in 0..2 {
        while work_on(&mut harness, |body| matches!(body, TaskBody::PublishWeights(_))) {}
        let train = harness.queue.values().find(|task| is_train(&task.body)).cloned();
        let train = train.expect("a batch is cut at once from what was finished");
        let batch = batch_of(&harness, &train);
        let domain = harness.run().spec.part(0);
        for group in &batch.groups {
            let as_finished = finished[&group.group].to_batch(group.group, &domain, false);
            assert_eq!(*group, as_finished);
        }
        used.extend(ids(&batch));
        assert!(work_on(&mut harness, is_train));
    }
    assert_eq!(used, surplus, "oldest first, and none is missing");
    assert_eq!(dropped(harness.run()), 0);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn producer_failure_is_visible() {
    let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_replacements = 2"), 0);
    // The environment of one group fails on every worker and every try.
    let first = take(&mut harness, |body| matches!(body, TaskBody::Reward(_)));
    harness.finish(&first);
    let id = *harness.run().groups.keys().last().expect("the window is full");
    let mut letters = Vec::new();
    for _ in 0..200_000 {
        let Some((_, task)) = harness.queue.first_key_value() else { break };
        let key = task.key;
        let broken = matches!(key, TaskKey::EnvStep { rollout, .. } if rollout.group == id);
        if !broken {
            harness.work();
            continue;
        }
        harness.queue.pop_first();
        letters.push(key);
        harness.append(Event::DeadLetter {
            key,
            reason: "reset failed: no display".into(),
            exhausted: false,
        });
    }
    assert_eq!(harness.run().state, RunState::Finished, "nobody waits for it for ever");
    assert!(letters.len() > 2, "each rollout is replaced before its group is given up: {letters:?}");
    let reported = harness.notices.iter().filter_map(|notice| match notice {
        Notice::DeadLetter { task, reason, .. } if reason.contains("no display") => Some(*task),
        _ => None,
    });
    let reported: Vec<TaskKey> = reported.collect();
    assert!(reported.iter().all(|key| letters.contains(key)) && reported.len() >= 3, "{reported:?}");
    let ledger = status::ledger(harness.run());
    assert_eq!(ledger.trained, 36, "another prompt came in its place");
    assert!(
        ledger.balanced() && ledger.dropped["failed"] >= 3 && ledger.dropped["group_failed"] == 1,
        "{ledger:?}"
    );
}

/// No worker has work left: none is queued, none is in flight, and a restarted coordinator queues
/// none.
fn assert_released(harness: &mut Harness, in_flight: Vec<Task>) {
    assert!(harness.queue.is_empty(), "{:?}", harness.queue.keys());
    let policy = harness.policy.clone().expect("a version is committed");
    for task in &in_flight {
        assert!(
            policy.is_stale(task.key, task.version, task.evaluate),
            "in flight for a run that is over: {}",
            task.key
        );
    }
    assert!(policy.ended);
    for task in in_flight {
        harness.finish(&task);
    }
    harness.lose_all(0);
    harness.append(Event::Tick { unix_ms: 9_000_000 });
    assert!(harness.queue.is_empty(), "{:?}", harness.queue.keys());
    assert_eq!(status::ledger(harness.run()).in_flight, 0);
    assert!(status::status(harness.run()).tasks.values().all(|tasks| *tasks == 0));
}

#[test]
fn end_of_run_releases_workers() {
    let mut harness = Harness::submit(&spec("alpha = 2.0"), 0);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
    assert_released(&mut harness, Vec::new());

    // The run ends with a task of each kind in flight and others queued.
    let kinds: [fn(&TaskBody) -> bool; 4] = [
        |body| matches!(body, TaskBody::Generate(_)),
        |body| matches!(body, TaskBody::Reward(_)),
        is_train,
        |body| matches!(body, TaskBody::PublishWeights(_)),
    ];
    let mut queued = 0;
    for kind in kinds {
        let mut harness = Harness::submit(&spec("alpha = 2.0"), 0);
        for _ in 0..50 {
            harness.work();
        }
        let in_flight = take(&mut harness, kind);
        queued += harness.queue.len();
        harness.append(Event::Cancelled { reason: "enough".into() });
        assert_released(&mut harness, vec![in_flight]);
    }
    assert!(queued > 0, "something was there to be purged");
}

/// Samples by a version that is `lag` behind, as a late engine does.
fn sample_late(harness: &mut Harness, task: &Task, lag: u64) {
    let version = PolicyVersion(harness.run().version().0.saturating_sub(lag));
    let OutcomeBody::Generate(mut done) = harness.answer(task) else { panic!("not a turn: {task:?}") };
    done.segments = vec![Segment { version, tokens: 1 }];
    report(harness, task, OutcomeBody::Generate(done));
}

/// One turn in eleven is sampled by each version up to one beyond the bound.
const fn lag(turn: u64, bound: u64) -> u64 {
    if turn % 11 <= bound + 1 { turn % 11 } else { 0 }
}

#[test]
fn staleness_holds_after_recovery() {
    for (alpha, bound) in [("0.0", 0), ("1.0", 1), ("2.0", 2)] {
        let mut harness = Harness::submit(&spec(&format!("alpha = {alpha}")), 0);
        let mut oldest = 0;
        for turn in 0..200_000_u64 {
            if turn.is_multiple_of(23) {
                harness.lose_all(turn as usize * 7 % (harness.log.len() + 1));
            }
            let Some((_, task)) = harness.queue.pop_first() else { break };
            match &task.body {
                TaskBody::Generate(_) if !task.evaluate => sample_late(&mut harness, &task, lag(turn, bound)),
                TaskBody::TrainShard(shard) if matches!(shard.work, TrainWork::Step { .. }) => {
                    // By the version of each token, and by the manifest that the step starts from.
                    let batch = batch_of(&harness, &task);
                    let rollouts = batch.groups.iter().flat_map(|group| &group.rollouts);
                    let first = rollouts.map(|rollout| rollout.turns[0].segments[0].version);
                    oldest =
                        oldest.max(first.map(|start| batch.base.staleness(start)).max().expect("rollouts"));
                    assert!(oldest <= bound, "alpha={alpha} oldest={oldest} base={}", batch.base);
                    harness.finish(&task);
                }
                _ => harness.finish(&task),
            }
        }
        assert_eq!(harness.run().state, RunState::Finished, "alpha={alpha}");
        assert_eq!(oldest, bound, "alpha={alpha}: the bound is reached, so that the test is meaningful");
    }
}

/// Which steps may store their weights as changes, also where the coordinator starts over between them.
#[test]
fn weights_are_whole_at_every_anchor_and_at_the_end() {
    for (anchor_every, whole) in [(1, &[1, 2, 3, 4, 5][..]), (3, &[3, 5]), (9, &[5])] {
        let mut spec = spec("alpha = 1.0");
        spec.steps = 5;
        spec.weights.anchor_every = anchor_every;
        let mut harness = Harness::submit(&spec, 7);
        let mut seen = Vec::new();
        while let Some((_, task)) = harness.queue.pop_first() {
            if let TaskBody::TrainShard(shard) = &task.body
                && let TrainWork::Step { delta, .. } = &shard.work
                && !delta
            {
                seen.push(shard.work.makes().0);
            }
            harness.finish(&task);
        }
        assert_eq!(harness.run().state, RunState::Finished, "every {anchor_every}");
        seen.dedup();
        assert_eq!(seen, whole, "every {anchor_every}");
    }
}

#[test]
fn trainer_restart_goes_on() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    for makes in 1..=6 {
        let train = take(
            &mut harness,
            |body| matches!(body, TaskBody::TrainShard(shard) if matches!(shard.work, TrainWork::Step { .. })),
        );
        let committed = harness.run().policy.clone().expect("a version is committed");
        let TaskBody::TrainShard(shard) = &train.body else { unreachable!("taken as one") };
        let TrainWork::Step { base, manifest, .. } = &shard.work else { unreachable!("taken as one") };
        assert_eq!(
            (base.0, *manifest),
            (makes - 1, committed.manifest),
            "it starts where the last one ended"
        );
        // The trainer is lost with the task in its hands, and the coordinator and the queue with
        // it.
        for cut in [0, harness.log.len() / 2, harness.log.len()] {
            harness.lose_all(cut);
            let requeued: Vec<&Task> = harness.queue.values().filter(|task| is_train(&task.body)).collect();
            assert_eq!(requeued, [&train], "the same step of the committed version");
        }
        assert!(work_on(&mut harness, is_train));
        harness.lose_all(harness.log.len());
        let commits = harness.queue.values().filter(|task| matches!(task.body, TaskBody::PublishWeights(_)));
        let commits: Vec<TaskKey> = commits.map(|task| task.key).collect();
        assert_eq!(commits, [TaskKey::PublishWeights { version: makes, attempt: 0 }]);
    }
    to_the_end(&mut harness);
    assert_eq!(harness.versions, (0..=6).map(PolicyVersion).collect::<Vec<_>>());
}

#[test]
fn step_applied_once() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    let mut settled = Vec::new();
    while let Some((_, task)) = harness.queue.pop_first() {
        let before = harness.run().version();
        harness.finish(&task);
        let late = match task.body {
            TaskBody::TrainShard(_) => shard("of a second try"),
            TaskBody::PublishWeights(_) => commit("of a second try"),
            TaskBody::Generate(_) | TaskBody::EnvStep(_) | TaskBody::Reward(_) => continue,
        };
        // Its ack was lost: it is redone by another worker with another result, now and much later.
        let after = (harness.run().version(), harness.run().books.trained, harness.run().training.clone());
        let queued = harness.queue.len();
        settled.push((task, late));
        for (task, late) in &settled {
            report(&mut harness, task, late.clone());
        }
        let run = harness.run();
        assert_eq!((run.version(), run.books.trained, run.training.clone()), after);
        assert_eq!(harness.queue.len(), queued, "nothing more is put for it");
        assert!(run.version().0 <= before.0 + 1);
    }
    assert_eq!(harness.run().state, RunState::Finished);
    assert_eq!(harness.versions, (0..=6).map(PolicyVersion).collect::<Vec<_>>());
    let steps: Vec<u64> = harness.run().books.curve.iter().map(|point| point.version).collect();
    assert_eq!((steps, harness.run().books.trained), ((1..=6).collect(), 36));
}

fn shard(content: &str) -> OutcomeBody {
    let files = vec![FileRef::whole("model", BlobRef::of(content.as_bytes()))];
    let metrics = BTreeMap::new();
    OutcomeBody::TrainShard(millrace_schemas::train_shard::TrainShardDone { files, metrics })
}

/// A commit that found another batch committed.
fn commit(content: &str) -> OutcomeBody {
    let (manifest, batch) = (Sha::of(content.as_bytes()), Some(BlobRef::of(content.as_bytes())));
    let created = false;
    OutcomeBody::PublishWeights(PublishWeightsDone {
        manifest,
        batch,
        created,
        bytes: 1,
        collected: Vec::new(),
    })
}
