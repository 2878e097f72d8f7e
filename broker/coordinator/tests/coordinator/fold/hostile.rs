//! Impossible outcomes: each is refused, its rollout restarts, and nothing of it is trained on.

use millrace_coordinator::fold::{State, status};
use millrace_schemas::api::RunState;
use millrace_schemas::env_step::EnvStepDone;
use millrace_schemas::envelope::decode;
use millrace_schemas::publish_weights::PublishWeightsDone;
use millrace_schemas::reward::RewardDone;
use millrace_schemas::train_shard::{FileRef, TrainShardDone};
use millrace_schemas::{BlobRef, Event, Outcome, OutcomeBody, Task, TaskBody, TaskKey};

use super::harness::{Harness, turn};
use super::{spec, take};

fn step(reward: f64, observation: Vec<u32>, done: bool) -> OutcomeBody {
    OutcomeBody::EnvStep(EnvStepDone {
        state: vec![],
        observation,
        reward,
        done,
        success: true,
        valid: true,
        ..EnvStepDone::default()
    })
}

fn shard(name: &str, metric: f64) -> OutcomeBody {
    let files = vec![FileRef::whole(name, BlobRef::of(b"x"))];
    OutcomeBody::TrainShard(TrainShardDone { files, metrics: [("loss".to_owned(), metric)].into() })
}

/// Impossible outcomes for a task of this stage; the newest version is `now`.
fn lies(task: &Task, now: u64) -> Vec<OutcomeBody> {
    let score = |score| OutcomeBody::Reward(RewardDone { score, ..RewardDone::default() });
    match task.body {
        TaskBody::Generate(_) => vec![
            turn(&[], &[], &[]),
            turn(&[1], &[-0.5, -0.5], &[(now, 1)]),
            turn(&[1, 2], &[-0.5, -0.5], &[(now, 1)]),
            turn(&[1], &[-0.5], &[(now, u32::MAX), (now, 2)]),
            turn(&[1], &[f32::NAN], &[(now, 1)]),
            turn(&[1], &[f32::NEG_INFINITY], &[(now, 1)]),
            turn(&[1], &[0.5], &[(now, 1)]),
            // Of a version that is not made yet.
            turn(&[1], &[-0.5], &[(now + 1, 1)]),
            turn(&[1], &[-0.5], &[(u64::MAX, 1)]),
            // Younger than it is: nothing was sampled by the version that comes first.
            turn(&[1], &[-0.5], &[(now, 0), (now, 1)]),
            turn(&vec![1; 5_000], &vec![-0.5; 5_000], &[(now, 5_000)]),
            score(1.0),
        ],
        TaskBody::EnvStep(_) => vec![
            step(f64::NAN, vec![1], false),
            step(f64::INFINITY, vec![1], false),
            step(f64::MAX, vec![1], false),
            step(0.0, vec![], false),
            // A turn that is not there yet.
            OutcomeBody::EnvStep(EnvStepDone {
                observation: vec![1],
                follows: Some(u32::MAX),
                ..EnvStepDone::default()
            }),
            turn(&[1], &[-0.5], &[(now, 1)]),
        ],
        TaskBody::Reward(_) => {
            vec![score(f64::NAN), score(f64::NEG_INFINITY), score(f64::MAX), step(1.0, vec![1], true)]
        }
        TaskBody::TrainShard(_) => vec![
            shard("../manifest.json", 0.0),
            shard("", 0.0),
            shard("model", f64::NAN),
            OutcomeBody::PublishWeights(PublishWeightsDone {
                manifest: millrace_schemas::blob::Sha::of(b"x"),
                batch: None,
                created: true,
                bytes: u64::MAX,
                collected: vec![],
            }),
        ],
        TaskBody::PublishWeights(_) => vec![shard("model", 0.0), score(0.0)],
    }
}

fn tell(harness: &mut Harness, key: TaskKey, body: OutcomeBody) {
    let worker = "liar".parse().expect("a name");
    // Nobody works that long; a sum of it does not fit.
    harness.append(Event::Outcome(Outcome {
        key,
        worker,
        request_fingerprint: None,
        busy_us: u64::MAX,
        body,
    }));
}

/// Checks that all that was trained is possible.
fn sound(harness: &Harness) {
    for batch in harness.batches() {
        for rollout in batch.groups.iter().flat_map(|group| &group.rollouts) {
            assert!(rollout.reward.is_finite(), "{rollout:?}");
            assert!(rollout.start_version <= batch.base, "{rollout:?}");
            for turn in &rollout.turns {
                let sampled: u64 = turn.segments.iter().map(|segment| u64::from(segment.tokens)).sum();
                assert_eq!(sampled, turn.logprobs.len() as u64);
                assert!(turn.logprobs.iter().all(|p| p.is_finite() && *p <= 1e-3), "{turn:?}");
                assert!(turn.segments.iter().all(|segment| segment.version <= batch.base), "{turn:?}");
            }
        }
    }
}

#[test]
fn an_impossible_outcome_of_a_rollout_is_refused_and_the_rollout_restarts() {
    let stages: [fn(&TaskBody) -> bool; 3] = [
        |body| matches!(body, TaskBody::Generate(_)),
        |body| matches!(body, TaskBody::EnvStep(_)),
        |body| matches!(body, TaskBody::Reward(_)),
    ];
    for wanted in stages {
        let mut first = Harness::submit(&spec("alpha = 1.0"), 0);
        let count = lies(&take(&mut first, wanted), 0).len();
        for lie in 0..count {
            let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_replacements = 3"), 0);
            let task = take(&mut harness, wanted);
            let now = harness.run().version().0;
            let body = lies(&task, now).swap_remove(lie);
            let words = format!("{body:?}").chars().take(200).collect::<String>();
            let id = task.key.rollout().expect("a rollout's task");
            tell(&mut harness, task.key, body.clone());
            let run = harness.state.runs.values_mut().next().expect("the run");
            let (group, evaluate) = run.group_mut(id.group).expect("its group");
            assert_eq!(group.rollouts[id.index as usize].attempt, id.attempt + 1, "taken in: {words}");
            if !evaluate {
                assert_eq!(status::ledger(harness.run()).dropped["failed"], 1, "{words}");
            }
            // Repeated, it is ignored.
            let before = harness.run().books.late_outcomes;
            tell(&mut harness, task.key, body);
            assert_eq!(harness.run().books.late_outcomes, before + 1, "{words}");
            super::to_the_end(&mut harness);
            assert_eq!(harness.run().state, RunState::Finished, "{words}");
            sound(&harness);
        }
    }
}

#[test]
fn an_impossible_outcome_of_a_step_pauses_the_run_until_it_is_requeued() {
    let stages: [fn(&TaskBody) -> bool; 2] =
        [|body| matches!(body, TaskBody::TrainShard(_)), |body| matches!(body, TaskBody::PublishWeights(_))];
    for wanted in stages {
        let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
        let task = take(&mut harness, wanted);
        for lie in lies(&task, 0) {
            let words = format!("{lie:?}");
            tell(&mut harness, task.key, lie);
            let run = harness.run();
            assert_eq!(run.state, RunState::Paused, "taken in: {words}");
            assert!(run.reason.as_ref().is_some_and(|reason| reason.contains("refused")), "{:?}", run.reason);
            harness.append(Event::Requeued { key: task.key });
            assert_ne!(harness.run().state, RunState::Paused, "{words}");
        }
        super::to_the_end(&mut harness);
        assert_eq!(harness.run().state, RunState::Finished);
        sound(&harness);
    }
}

#[test]
fn the_books_balance_for_any_outcomes_in_any_order() {
    for seed in 0..20_u64 {
        let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_replacements = 100"), 0);
        let (mut dice, mut done) = (seed * 2_654_435_761 + 1, Vec::<TaskKey>::new());
        for _ in 0..20_000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let roll = dice >> 33;
            let next = harness.queue.first_key_value().map(|(_, task)| task.clone());
            let Some(task) = next else { break };
            // A lie of some stage about a task that is waited for, or about one that was.
            let rollouts = task.key.rollout().is_some();
            let lies = lies(&task, harness.run().version().0);
            let lie = lies[(roll / 64) as usize % lies.len()].clone();
            match roll % 64 {
                0..=5 if rollouts => {
                    harness.queue.pop_first();
                    tell(&mut harness, task.key, lie);
                }
                6..=9 if !done.is_empty() => {
                    let key = done[(roll / 64) as usize % done.len()];
                    tell(&mut harness, key, lie);
                }
                _ => {
                    done.push(task.key);
                    harness.work();
                }
            }
            let ledger = status::ledger(harness.run());
            assert!(ledger.balanced(), "seed={seed}: {ledger:?}");
        }
        assert_eq!(harness.run().state, RunState::Finished, "seed={seed} {:?}", harness.run().reason);
        sound(&harness);
    }
}

#[test]
fn a_corrupted_snapshot_is_read_or_refused() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    for _ in 0..60 {
        harness.work();
    }
    let sound = super::bytes(&harness.state);
    for at in 0..sound.len() {
        assert!(decode::<State>("snapshot", &sound[..at]).is_err(), "cut at {at}");
        for flip in [1, 0x80, 0xff] {
            let mut bytes = sound.clone();
            bytes[at] ^= flip;
            let _ = decode::<State>("snapshot", &bytes);
        }
    }
}
