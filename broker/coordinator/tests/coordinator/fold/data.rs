//! Rows of a dataset: the row of a prompt follows from seed and number alone, despite kills, and a
//! row's fields reach the rewards.

use std::collections::{BTreeMap, BTreeSet};

use millrace_coordinator::fold::rows;
use millrace_schemas::env_step::{EnvAction, EnvStepDone, EnvironmentSpec, Split};
use millrace_schemas::reward::RewardDone;

use super::*;

/// Few enough rows for many epochs.
const ROWS: u64 = 7;

fn rows_spec(check: &str, more: &str) -> RunSpec {
    let blob = millrace_schemas::BlobRef::of(b"rows");
    let text = format!(
        r#"
        name = "{RUN}"
        steps = 8
        model = {{ kind = "hugging_face", path = "m", context = 600 }}
        rewards = [{{ rule = "custom", pool = "own" }}]
        evaluate = {{ prompts = 3, every = 4 }}
        algorithm = {{ learning_rate = 1e-5 }}
        [rollout]
        groups_per_step = 3
        group_size = 2
        max_new_tokens = 1
        {more}
        [environment]
        name = "dataset"
        path = "rows.jsonl"
        check = "{check}"
        max_turns = 1
        content = {{ blob = {{ sha256 = "{}", bytes = {} }}, train = {ROWS}, held_out = 3 }}
        "#,
        blob.sha256, blob.bytes
    );
    from_toml(&text).expect("a valid run file")
}

/// Rows that were played: of training by prompt, of evaluation by version and row.
#[derive(Default, PartialEq, Debug)]
struct Asked {
    train: BTreeMap<u64, u64>,
    held_out: BTreeSet<(u64, u64)>,
}

impl Asked {
    /// Records the rows of queued tasks.
    fn look(&mut self, harness: &Harness) {
        for task in harness.queue.values() {
            let (TaskBody::EnvStep(step), Some(id)) = (&task.body, task.key.rollout()) else { continue };
            let row = step.row.expect("each task has its row");
            if task.evaluate {
                assert_eq!(step.split, Split::HeldOut);
                self.held_out.insert((task.version.0, row));
            } else if let Some(group) = harness.run().groups.get(&id.group) {
                assert_eq!(step.split, Split::Train);
                let before = self.train.insert(group.prompt, row);
                assert!(
                    before.is_none_or(|before| before == row),
                    "a prompt is one row, in every turn and attempt"
                );
            }
        }
    }
}

/// Plays to the end. At every `lose`th turn everything but log and snapshots is lost.
fn play(spec: &RunSpec, restart_every: usize, lose: usize) -> (Asked, State) {
    let (mut harness, mut asked) = (Harness::submit(spec, restart_every), Asked::default());
    for turn in 1..20_000 {
        if lose > 0 && turn % lose == 0 {
            harness.lose_all(turn % (harness.log.len() + 1));
        }
        asked.look(&harness);
        if !harness.work() {
            break;
        }
    }
    assert_eq!(harness.run().state, RunState::Finished);
    (asked, harness.state)
}

#[test]
fn rows_are_played_epoch_by_epoch_despite_kills() {
    let spec = rows_spec("exact", "alpha = 1.0\nfilter = \"equal_rewards\"");
    let (asked, state) = play(&spec, 0, 0);
    let given = asked.train.len() as u64;
    assert!(given >= 24, "prompts={given}");
    assert!(asked.train.keys().copied().eq(0..given), "each prompt was seen");
    let order: Vec<u64> = asked.train.values().copied().collect();
    for epoch in order.chunks_exact(ROWS as usize) {
        assert!(epoch.iter().copied().collect::<BTreeSet<u64>>().into_iter().eq(0..ROWS), "{epoch:?}");
    }
    let epochs: BTreeSet<&[u64]> = order.chunks_exact(ROWS as usize).collect();
    assert_eq!(epochs.len() as u64, given / ROWS, "each epoch has an order of its own");
    // Each evaluation asks all held-out rows.
    let held_out = [0, 4, 8].iter().flat_map(|version| (0..3).map(move |row| (*version, row)));
    assert!(asked.held_out.iter().copied().eq(held_out));
    for restart_every in [1, 2, 3, 5, 7] {
        let (replayed, end) = play(&spec, restart_every, 0);
        assert_eq!(replayed, asked, "restart_every={restart_every}");
        assert_eq!(bytes(&end), bytes(&state));
    }
    for lose in [4, 11, 50] {
        // Restarts change which of the ready groups come first, and with it how many are filtered;
        // never a row.
        let (replayed, _) = play(&spec, 0, lose);
        for (prompt, row) in &replayed.train {
            assert_eq!(
                Some(*row),
                rows::row_of_prompt((spec.seed, 0), spec.part(0).environment, Split::Train, *prompt)
            );
        }
        assert!(replayed.train.keys().copied().eq(0..replayed.train.len() as u64));
    }
}

#[test]
fn fields_of_a_row_reach_its_rewards() {
    let mut harness = Harness::submit(&rows_spec("exact", ""), 0);
    let mut seen = 0;
    for _ in 0..20_000 {
        for task in harness.queue.values().map(|task| harness.resolved(task)) {
            let (TaskBody::Reward(reward), Some(id)) = (&task.body, task.key.rollout()) else { continue };
            let Some(group) = harness.run().groups.get(&id.group) else { continue };
            let environment = harness.run().spec.part(0).environment;
            let row =
                rows::row_of_prompt((1, 0), environment, Split::Train, group.prompt).expect("it asks rows");
            assert_eq!(reward.row["answer"], row.to_string());
            seen += 1;
        }
        if !harness.work() {
            break;
        }
    }
    assert!(seen >= 48, "{seen}");
}

#[test]
fn the_first_reward_decides_success_if_the_environment_cannot() {
    for (check, scores, successes) in
        [("by_reward", [1.0, 0.99], [true, false]), ("exact", [1.0, 0.99], [false, false])]
    {
        let mut harness = Harness::submit(&rows_spec(check, ""), 0);
        let mut ended = Vec::new();
        while ended.len() < 2 {
            let task = take(&mut harness, |body| match body {
                TaskBody::EnvStep(step) => matches!(step.action, EnvAction::Step { .. }),
                TaskBody::Reward(_) => true,
                _ => false,
            });
            let id = task.key.rollout().expect("a rollout's task");
            match &task.body {
                TaskBody::EnvStep(_) => {
                    let mut body = harness.answer(&task);
                    if let OutcomeBody::EnvStep(done) = &mut body {
                        (done.done, done.success) = (true, false);
                    }
                    harness.say(task.key, body);
                }
                _ if task.evaluate => harness.finish(&task),
                _ => {
                    let score = scores[ended.len()];
                    harness.say(task.key, OutcomeBody::Reward(RewardDone { score, ..RewardDone::default() }));
                    ended.push(harness.run().groups[&id.group].rollouts[id.index as usize].success);
                }
            }
        }
        assert_eq!(ended, successes, "{check}");
    }
}

/// Whether the goal was reached is known when the scores are there, and not before.
#[test]
fn a_rollout_that_succeeds_in_its_last_turn_is_not_truncated() {
    let mut spec = rows_spec("by_reward", "");
    spec.rollout.max_new_tokens = 1;
    for dataset in spec.environments_mut().filter_map(EnvironmentSpec::dataset_mut) {
        (dataset.max_turns, dataset.prompt_tokens) = (2, 256);
        dataset.tools = vec!["calculator".to_owned()];
    }
    assert_eq!(spec.refusals(), []);
    let mut harness = Harness::submit(&spec, 0);
    while let Some((_, task)) = harness.queue.pop_first() {
        let body = match (harness.answer(&task), task.key) {
            (OutcomeBody::EnvStep(step), _) => {
                OutcomeBody::EnvStep(EnvStepDone { done: false, success: false, ..step })
            }
            (OutcomeBody::Reward(done), TaskKey::Reward { rollout, .. }) => {
                OutcomeBody::Reward(RewardDone { score: f64::from(rollout.index), ..done })
            }
            (body, _) => body,
        };
        harness.append(outcome(task.key, Some(task.request_fingerprint()), body));
    }
    assert_eq!(harness.run().state, RunState::Finished);
    let rollouts: Vec<_> =
        harness.batches().flat_map(|batch| batch.groups).flat_map(|group| group.rollouts).collect();
    assert_eq!(rollouts.len(), 8 * 3 * 2);
    for rollout in rollouts {
        assert_eq!((rollout.turns.len(), rollout.success), (2, rollout.id.index == 1));
        assert_eq!(rollout.truncated, !rollout.success);
    }
}

#[test]
fn a_run_without_its_rows_is_refused() {
    let mut spec = rows_spec("exact", "");
    for dataset in spec.environments_mut().filter_map(EnvironmentSpec::dataset_mut) {
        dataset.content = None;
    }
    let refusals = spec.missing_at_submit();
    assert!(refusals[0].to_string().contains("submit the run with `millrace submit`"), "{refusals:?}");
    let mut state = State::default();
    assert!(state.advance(1, RUN, Event::Submitted(Box::new(spec))).is_empty());
    assert!(state.runs.is_empty() && state.ignored == 1);
}
