//! The fold, on its own: the same log gives the same state, restarts change nothing, the bound
//! holds, and the books balance after every event.

mod alpha;
mod agents;
mod begun;
mod calls;
mod closed;
mod conformance;
mod failing;
mod forks;
mod data;
mod demand;
mod domains;
mod evaluation;
mod gang;
mod hostile;
mod milestones;
mod pause;
mod patience;
mod redundant;
mod routing;
mod settled;
mod stall;
mod stored;
mod trajectories;
mod harness;

use std::collections::BTreeSet;

use harness::{Harness, RUN, outcome, replay, turn};
use millrace_coordinator::fold::{State, status};
use millrace_schemas::api::RunState;
use millrace_schemas::env_step::EnvironmentSpec;
use millrace_schemas::envelope::decode;
use millrace_schemas::event::{Adopted, AdoptedGroup, AdoptedRollout};
use millrace_schemas::notice::Notice;
use millrace_schemas::reward::RewardDone;
use millrace_schemas::submit::from_toml;
use millrace_schemas::train_shard::Batch;
use millrace_schemas::{Event, OutcomeBody, PolicyVersion, RolloutId, RunSpec, TaskBody, TaskKey};

fn spec(rollout: &str) -> RunSpec {
    let text = format!(
        r#"
        name = "{RUN}"
        steps = 6
        model = {{ kind = "scripted" }}
        environment = {{ name = "counter", turns = 5 }}
        rewards = [{{ rule = "env_return" }}, {{ rule = "format", weight = 0.1 }}]
        evaluate = {{ prompts = 5, every = 4 }}
        [rollout]
        groups_per_step = 3
        group_size = 2
        {rollout}
        "#
    );
    from_toml(&text).expect("a valid run file")
}

fn to_the_end(harness: &mut Harness) {
    for _ in 0..200_000 {
        let ledger = status::ledger(harness.run());
        assert!(ledger.balanced(), "books do not balance: {ledger:?}");
        if !harness.work() {
            break;
        }
    }
}

fn bytes(state: &State) -> Vec<u8> {
    millrace_schemas::envelope::encode(state).to_vec()
}

/// Takes the first queued task that `wanted` likes out of the queue.
fn take(harness: &mut Harness, wanted: impl Fn(&TaskBody) -> bool) -> millrace_schemas::Task {
    for _ in 0..10_000 {
        if let Some(name) =
            harness.queue.iter().find(|(_, task)| wanted(&task.body)).map(|(name, _)| name.clone())
        {
            return harness.queue.remove(&name).expect("it was found");
        }
        assert!(harness.work(), "no such task ever comes");
    }
    panic!("no such task ever comes");
}

#[test]
fn a_run_finishes_and_its_books_balance() {
    for alpha in ["0.0", "0.5", "1.0", "2.0"] {
        let mut harness = Harness::submit(&spec(&format!("alpha = {alpha}")), 0);
        to_the_end(&mut harness);
        let run = harness.run();
        assert_eq!(run.state, RunState::Finished, "alpha={alpha} {:?}", run.reason);
        assert_eq!(harness.versions, (0..=6).map(PolicyVersion).collect::<Vec<_>>());
        let ledger = status::ledger(run);
        assert_eq!((ledger.trained, ledger.in_flight), (6 * 3 * 2, 0), "alpha={alpha}");
        assert_eq!(harness.staleness.len(), 36);
        let versions: Vec<u64> = run.books.evaluations.iter().map(|e| e.version).collect();
        assert_eq!(versions, [0, 4, 6]);
        assert!(harness.queue.is_empty(), "nothing is left for a worker");
    }
}

#[test]
fn the_bound_on_staleness_is_exact() {
    for (alpha, bound) in [("0.0", 0), ("0.5", 1), ("1.0", 1), ("2.0", 2)] {
        let mut harness = Harness::submit(&spec(&format!("alpha = {alpha}")), 0);
        to_the_end(&mut harness);
        // Reached, and not passed: a fold that never let a rollout grow old would waste what α allows.
        assert_eq!(harness.staleness.iter().max().copied(), Some(bound), "alpha={alpha}");
        let booked: Vec<usize> = (0..harness.run().books.staleness.len()).collect();
        for staleness in booked {
            let seen = harness.staleness.iter().filter(|s| **s == staleness as u64).count() as u64;
            assert_eq!(harness.run().books.staleness[staleness], seen);
        }
    }
}

#[test]
fn replay_gives_the_same_state_byte_for_byte() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    to_the_end(&mut harness);
    assert_eq!(bytes(&replay(&harness.log)), bytes(&harness.state));
    for cut in [3, harness.log.len() / 3, harness.log.len() / 2] {
        // A snapshot in the middle, read back, and the rest of the log.
        let snapshot = bytes(&replay(&harness.log[..cut]));
        let mut state: State = millrace_schemas::envelope::decode("state", &snapshot).expect("a snapshot");
        for (event, seq) in harness.log.iter().zip(1..) {
            state.advance(seq, RUN, event.clone());
        }
        assert_eq!(bytes(&state), bytes(&harness.state));
    }
}

#[test]
fn a_restart_between_any_two_commands_gives_the_same_end() {
    for alpha in ["0.0", "1.0"] {
        let spec = spec(&format!("alpha = {alpha}\nfilter = \"equal_rewards\""));
        let mut undisturbed = Harness::submit(&spec, 0);
        to_the_end(&mut undisturbed);
        assert_eq!(undisturbed.run().state, RunState::Finished);
        for every in [1, 2, 3, 5, 7, 11, 50] {
            let mut harness = Harness::submit(&spec, every);
            to_the_end(&mut harness);
            assert_eq!(bytes(&harness.state), bytes(&undisturbed.state), "alpha={alpha} every={every}");
        }
    }
}

#[test]
fn the_first_outcome_of_a_task_wins() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    let task = take(&mut harness, |body| matches!(body, TaskBody::Generate(_)));
    harness.finish(&task);
    let before = harness.run().clone();
    harness.say(task.key, turn(&[1], &[-9.0], &[(0, 1)]));
    assert_eq!(harness.run().groups, before.groups);
    assert_eq!(harness.run().books.late_outcomes, before.books.late_outcomes + 1);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn one_lost_rollout_refills() {
    let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_replacements = 2"), 0);
    let task = take(&mut harness, |body| matches!(body, TaskBody::Generate(_)));
    let lost = task.key.rollout().expect("a rollout's task");
    let before = harness.run().groups.len();
    harness.append(Event::DeadLetter { key: task.key, reason: "poison".into(), exhausted: false });
    let group = harness.run().group(lost.group).expect("the group goes on");
    assert_eq!(group.rollouts[lost.index as usize].attempt, lost.attempt + 1);
    assert_eq!(harness.run().groups.len(), before, "none comes in its place");
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn a_group_that_keeps_failing_is_dropped_and_another_comes() {
    let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_replacements = 1"), 0);
    // Evaluation first, so that the task taken is one of training.
    let mut task = take(&mut harness, |body| matches!(body, TaskBody::Reward(_)));
    while task.evaluate {
        harness.finish(&task);
        task = take(&mut harness, |body| matches!(body, TaskBody::Reward(_)));
    }
    let id = task.key.rollout().expect("a rollout's task");
    harness.append(Event::DeadLetter { key: task.key, reason: "poison".into(), exhausted: false });
    let second = TaskKey::EnvStep { rollout: millrace_schemas::RolloutId { attempt: 1, ..id }, turn: 0 };
    harness.append(Event::DeadLetter { key: second, reason: "poison".into(), exhausted: false });
    assert!(!harness.run().groups.contains_key(&id.group));
    let dropped = status::ledger(harness.run()).dropped;
    assert_eq!((dropped["failed"], dropped["group_failed"]), (2, 1));
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn zero_rewards_are_refused() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    let task = take(&mut harness, |body| matches!(body, TaskBody::Reward(_)));
    let id = task.key.rollout().expect("a rollout's task");
    let body = OutcomeBody::Reward(RewardDone { score: f64::NAN, ..RewardDone::default() });
    harness.say(task.key, body);
    let (group, _) =
        harness.state.runs.values_mut().next().and_then(|r| r.group_mut(id.group)).expect("its group");
    let rollout = &group.rollouts[id.index as usize];
    assert_eq!(rollout.attempt, 1, "the rollout restarts and is not scored 0");
    assert!(rollout.scores.iter().all(Option::is_none));
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn tokens_of_an_unknown_version_are_refused() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    let task = take(&mut harness, |body| matches!(body, TaskBody::Generate(_)));
    let id = task.key.rollout().expect("a rollout's task");
    harness.say(task.key, turn(&[1], &[-0.1], &[(40, 1)]));
    let (group, _) =
        harness.state.runs.values_mut().next().and_then(|r| r.group_mut(id.group)).expect("its group");
    assert_eq!(group.rollouts[id.index as usize].attempt, 1);
}

#[test]
fn stale_rollouts_restart_and_prompts_survive() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    // A rollout of the first training group whose turn is in a worker's hands while versions go by.
    let held = take(&mut harness, |body| match body {
        TaskBody::Generate(generate) => generate.prefix.len() > 1,
        TaskBody::EnvStep(_)
        | TaskBody::Reward(_)
        | TaskBody::TrainShard(_)
        | TaskBody::PublishWeights(_) => false,
    });
    let id = held.key.rollout().expect("a rollout's task");
    if held.evaluate {
        // The evaluation holds the version; let it end and hold the next.
        harness.finish(&held);
        return stale_rollouts_of_training(harness);
    }
    hold(harness, id);
}

fn stale_rollouts_of_training(mut harness: Harness) {
    loop {
        let held = take(&mut harness, |body| matches!(body, TaskBody::Generate(g) if g.prefix.len() > 1));
        if !held.evaluate {
            let id = held.key.rollout().expect("a rollout's task");
            return hold(harness, id);
        }
        harness.finish(&held);
    }
}

fn hold(mut harness: Harness, id: millrace_schemas::RolloutId) {
    let prompt = harness.run().groups[&id.group].prompt;
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished, "the others continue and the prompt is replayed");
    assert!(status::ledger(harness.run()).dropped["stale"] >= 1);
    assert!(harness.staleness.iter().all(|staleness| *staleness <= 1));
    // The held rollout was replaced in its place, and its replacement was trained on: the same group, so the same prompt.
    let trained = harness.batches().flat_map(|batch| batch.groups).flat_map(|group| group.rollouts);
    let of_group: Vec<RolloutId> = trained.map(|one| one.id).filter(|one| one.group == id.group).collect();
    assert!(of_group.iter().any(|one| one.index == id.index && one.attempt > id.attempt), "{of_group:?}");
    assert_eq!(of_group.len(), 2, "{of_group:?}");
    assert!(prompt < harness.run().next_prompt);
}

#[test]
fn cancelled_runs_drop_everything_and_publish_it() {
    let mut harness = Harness::submit(&spec("alpha = 2.0"), 0);
    for _ in 0..60 {
        harness.work();
    }
    harness.append(Event::Cancelled { reason: "enough".into() });
    let ledger = status::ledger(harness.run());
    assert!(ledger.balanced() && ledger.in_flight == 0 && ledger.dropped["cancelled"] > 0, "{ledger:?}");
    assert!(harness.queue.is_empty());
    assert!(harness.policy.as_ref().is_some_and(|policy| policy.ended));
}

#[test]
fn groups_without_signal_are_replaced_but_not_for_ever() {
    // One turn decides, so that many groups of two agree.
    let mut harness = Harness::submit(&spec("alpha = 1.0\nfilter = \"equal_rewards\""), 0);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
    assert!(status::ledger(harness.run()).dropped["filtered"] > 0);
}

/// A version in the object store that a lost part of the log had committed.
fn standing(version: u64, group: u64, start: u64) -> Adopted {
    let rollout =
        AdoptedRollout { attempt: 0, start_version: PolicyVersion(start), reward: 1.0, success: true };
    Adopted {
        version: PolicyVersion(version),
        manifest: millrace_schemas::blob::Sha::of(b"another"),
        batch: Some(millrace_schemas::BlobRef::of(b"another batch")),
        groups: (group..group + 3)
            .map(|group| AdoptedGroup { group, domain: 0, rollouts: vec![rollout; 2] })
            .collect(),
    }
}

#[test]
fn versions_never_go_back() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    let task = take(
        &mut harness,
        |body| matches!(body, TaskBody::PublishWeights(p) if p.manifest.version == PolicyVersion(2)),
    );
    // Another commit of v2 exists: ours is not counted, and the existing one is adopted.
    let body = OutcomeBody::PublishWeights(millrace_schemas::publish_weights::PublishWeightsDone {
        manifest: millrace_schemas::blob::Sha::of(b"another"),
        batch: Some(millrace_schemas::BlobRef::of(b"another batch")),
        created: false,
        bytes: 1,
        collected: Vec::new(),
    });
    harness.say(task.key, body);
    assert_eq!(harness.run().version(), PolicyVersion(1));
    let ours: Vec<u64> = harness
        .run()
        .training
        .iter()
        .flat_map(|training| training.groups.iter().map(|(id, _)| *id))
        .collect();
    let unknown = harness.run().next_group + 5;
    harness.append(Event::Adopted(Box::new(standing(2, unknown, 1))));
    assert_eq!(harness.run().version(), PolicyVersion(2));
    let ledger = status::ledger(harness.run());
    assert!(ledger.balanced(), "{ledger:?}");
    assert_eq!(ledger.trained, 12, "rollouts of the committed versions count as trained");
    let kept = |id: &u64| {
        let training = harness.run().training.iter().flat_map(|training| &training.groups);
        harness.run().groups.contains_key(id) || training.into_iter().any(|(group, _)| group == id)
    };
    assert!(ours.iter().all(kept), "what we had trained on in vain is trained on next");
    // An older version, or the same one repeated, changes nothing.
    let before = harness.run().clone();
    harness.append(Event::Adopted(Box::new(standing(2, unknown, 1))));
    harness.append(Event::Adopted(Box::new(standing(1, unknown, 0))));
    assert_eq!(*harness.run(), before);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
    assert!(harness.versions.is_sorted());
}

#[test]
fn rollouts_of_an_adopted_version_are_not_trained_twice() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    // A group in play, in the log; finished and trained on, in the object store.
    while harness.run().groups.len() < 3 {
        assert!(harness.work());
    }
    let playing = *harness.run().groups.keys().next().expect("a group");
    let admitted = harness.run().books.admitted;
    harness.append(Event::Adopted(Box::new(standing(1, playing, 0))));
    assert_eq!(harness.run().version(), PolicyVersion(1));
    assert!(!harness.run().groups.contains_key(&playing));
    let ledger = status::ledger(harness.run());
    assert!(ledger.balanced() && ledger.trained == 6 && ledger.admitted >= admitted, "{ledger:?}");
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn a_dropped_rollout_that_was_trained_is_counted_once() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    while harness.run().groups.len() < 3 {
        assert!(harness.work());
    }
    let group = *harness.run().groups.keys().next().expect("a group");
    let rollout = RolloutId { group, index: 1, attempt: 0 };
    harness.append(Event::DeadLetter {
        key: TaskKey::EnvStep { rollout, turn: 0 },
        reason: "no".into(),
        exhausted: false,
    });
    let before = status::ledger(harness.run());
    assert_eq!(before.dropped["failed"], 1, "the log that is left knows of its drop, not of its training");
    harness.append(Event::Adopted(Box::new(standing(1, group, 0))));
    let after = status::ledger(harness.run());
    assert!(after.balanced(), "{after:?}");
    assert_eq!((after.trained, after.dropped["failed"], after.dropped["superseded"]), (6, 0, 1), "{after:?}");
    let ids = 2 * harness.run().next_group - 2 * 5 + 1;
    assert_eq!(
        after.admitted, ids,
        "every rollout of every group but the 5 of the evaluation, and one more attempt"
    );
    // A version that this log made itself proves that no lost part came as far.
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
    assert!(harness.run().books.dropped_lately.len() < 12, "what is noted does not grow with the run");
}

#[test]
fn an_outcome_with_another_request_fingerprint_is_ignored() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    let task = take(&mut harness, |body| matches!(body, TaskBody::Generate(_)));
    let outcome = |answers| outcome(task.key, Some(answers), turn(&[1], &[-0.5], &[(0, 1)]));
    let tokens = harness.run().books.counters.turns;
    harness.append(outcome(task.request_fingerprint() ^ 1));
    assert_eq!((harness.run().books.counters.turns, harness.run().books.late_outcomes), (tokens, 1));
    assert!(harness.queue.values().any(|queued| queued.key == task.key), "the task is requeued");
    harness.append(outcome(task.request_fingerprint()));
    assert_eq!(harness.run().books.late_outcomes, 1);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

/// If unlikely tokens are cut off, the trainer gets what it can compare: log-probs of the behaviour
/// policy, at its temperature and restriction, without the cut.
#[test]
fn cut_distributions_are_trained_at_the_temperature_and_restriction_of_sampling() {
    for (rollout, logprob) in [("temperature = 0.5", -0.5), ("temperature = 0.5\ntop_p = 0.9", -0.25)] {
        let mut harness = Harness::submit(&spec(rollout), 0);
        to_the_end(&mut harness);
        let batches: Vec<Batch> = harness.batches().collect();
        assert!(!batches.is_empty());
        for batch in batches {
            assert_eq!((batch.temperature, batch.sample_below.is_some()), (0.5, true));
            let rollouts = batch.groups.iter().flat_map(|group| &group.rollouts);
            let turns = rollouts.flat_map(|rollout| &rollout.turns);
            assert!(turns.flat_map(|turn| &turn.logprobs).all(|found| *found == logprob));
        }
    }
}

/// A rollout is truncated if its last turn ended by length, or if it took its most turns: a run may
/// mask it.
#[test]
fn a_batch_marks_truncated_rollouts() {
    let batches = |spec: &RunSpec| {
        let mut harness = Harness::submit(spec, 0);
        to_the_end(&mut harness);
        let batches = harness.blobs.values().filter_map(|blob| decode::<Batch>("batch", blob).ok());
        batches.flat_map(|batch| batch.groups).flat_map(|group| group.rollouts).collect::<Vec<_>>()
    };
    // The harness's turns all end by length, which means truncation if that is more than one token.
    assert!(batches(&spec("max_new_tokens = 1")).iter().all(|rollout| !rollout.truncated));
    assert!(batches(&spec("max_new_tokens = 4")).iter().all(|rollout| rollout.truncated));
    let mut short = spec("max_new_tokens = 1");
    short.environment = Some(EnvironmentSpec::Counter { turns: 2, latency: Default::default() });
    let rollouts = batches(&short);
    assert!(
        rollouts.iter().any(|rollout| rollout.truncated) && rollouts.iter().any(|rollout| !rollout.truncated)
    );
    assert!(
        rollouts.iter().all(|rollout| rollout.truncated == (!rollout.success && rollout.turns.len() == 2))
    );
}

#[test]
fn a_turn_without_uncut_logprobs_is_refused_if_sampling_cuts() {
    let mut harness = Harness::submit(&spec("top_k = 3"), 0);
    let task = take(&mut harness, |body| matches!(body, TaskBody::Generate(_)));
    let TaskBody::Generate(generate) = &task.body else { unreachable!() };
    assert_eq!(generate.sampling.top_k, 3);
    harness.say(task.key, turn(&[1], &[-0.5], &[(0, 1)]));
    let reported = |notice: &Notice| matches!(notice, Notice::DeadLetter { reason, .. } if reason.contains("uncut_logprobs"));
    assert!(harness.notices.iter().any(reported), "{:?}", harness.notices);
    to_the_end(&mut harness);
}
