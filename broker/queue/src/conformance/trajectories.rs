//! Entries of the log by position, and tasks and batches that name them.

use millrace_schemas::blob::Sha;
use millrace_schemas::env_step::{EnvAction, EnvStepDone, EnvStepTask, EnvironmentSpec, Latency, Split};
use millrace_schemas::generate::{Finish, GenerateDone, Segment};
use millrace_schemas::train_shard::{Batch, BatchGroup, BatchRollout, BatchTurn, StoredTrajectory};
use millrace_schemas::{
    EntryRef, Event, Outcome, OutcomeBody, PolicyVersion, RolloutId, Task, TaskBody, TaskKey, subjects,
};

use super::{Fixture, run, task};
use crate::broker::Broker;

const ROLLOUT: RolloutId = RolloutId { group: 1, index: 0, attempt: 0 };
/// Tokens of a turn that no message could hold.
const MANY: usize = 300_000;

fn showed(tokens: &[u32], state: u8) -> OutcomeBody {
    let (state, observation) = (vec![state], tokens.to_vec());
    OutcomeBody::EnvStep(EnvStepDone { state, observation, ..EnvStepDone::default() })
}

fn sampled(tokens: usize) -> OutcomeBody {
    OutcomeBody::Generate(GenerateDone {
        tokens: vec![9; tokens],
        logprobs: vec![-0.5; tokens],
        uncut_logprobs: vec![-0.25; tokens],
        segments: vec![Segment { version: PolicyVersion(0), tokens: tokens as u32 }],
        finish: Finish::Stop,
        ..GenerateDone::begun(0)
    })
}

/// Appends outcomes of one rollout; gives the references to them.
async fn appended(broker: &Broker, bodies: Vec<OutcomeBody>) -> Vec<EntryRef> {
    let mut entries = Vec::new();
    for (body, number) in bodies.into_iter().zip(0..) {
        let key = match &body {
            OutcomeBody::Generate(_) => TaskKey::Generate { rollout: ROLLOUT, turn: number },
            _ => TaskKey::EnvStep { rollout: ROLLOUT, turn: number },
        };
        let worker = "w1".parse().expect("a worker's name");
        let event = Event::Outcome(Outcome {
            key,
            worker,
            busy_us: 1,
            request_fingerprint: Some(7),
            body: body.clone(),
        });
        let seq = broker.append(run().as_str(), &event).await.expect("appended").seq;
        entries.push(EntryRef::of(seq, &body).expect("it is part of a trajectory"));
    }
    entries
}

/// A process that has read nothing yet.
fn another(fixture: &Fixture) -> Broker {
    Broker::new(fixture.queue.clone(), fixture.broker.objects().clone())
}

fn next_turn(prefix: &[EntryRef], latest: &[u32]) -> Task {
    let mut task = task(1, 0, 0);
    let TaskBody::Generate(generate) = &mut task.body else { unreachable!("it samples") };
    (generate.prefix, generate.latest) = (prefix.to_vec(), latest.to_vec());
    task
}

fn context(task: &Task) -> &[u32] {
    let TaskBody::Generate(generate) = &task.body else { unreachable!("it samples") };
    assert!(generate.prefix.is_empty() && generate.latest.is_empty());
    &generate.context
}

/// Entries come in the order of the request; a missing entry is `None`.
pub async fn entries_are_read_by_position(fixture: Fixture) {
    let broker = &fixture.broker;
    for unix_ms in 1..=200 {
        broker.append(subjects::ALL_RUNS, &Event::Tick { unix_ms }).await.expect("appended");
    }
    let asked: Vec<u64> = [7, 3, 900].into_iter().chain(1..=200).collect();
    let found = broker.entries(&asked).await.expect("read");
    assert_eq!(found.len(), asked.len());
    for (seq, found) in asked.iter().zip(found) {
        let Some(found) = found else {
            assert_eq!(*seq, 900);
            continue;
        };
        assert_eq!(found.seq, *seq);
        assert!(matches!(found.event, Ok(Event::Tick { unix_ms }) if unix_ms == *seq), "{found:?}");
        let mut read = broker.read_log(*seq).await.expect("read");
        let same = read.next(1).await.expect("read").remove(0);
        assert_eq!((found.stored_ns, found.run), (same.stored_ns, same.run));
    }
    assert!(fixture.queue.log_entries(&[]).await.expect("nothing asked").is_empty());
}

/// Every reader gets the whole context, whether its parts are in the task, in the log or in an
/// object.
pub async fn a_task_names_what_was_said_before(fixture: Fixture) {
    let bodies = vec![showed(&[1, 2], 0), sampled(MANY), showed(&[3, 4], 1), sampled(2), showed(&[5], 2)];
    let entries = appended(&fixture.broker, bodies).await;
    let parts = [vec![1, 2], vec![9; MANY], vec![3, 4], vec![9; 2], vec![5]];
    let whole: Vec<u32> = parts.concat();
    let carrying = next_turn(&entries, &[5]);
    let bare = next_turn(&entries, &[]);
    assert_eq!(carrying.request_fingerprint(), bare.request_fingerprint());
    let readers = [fixture.broker.clone(), another(&fixture)];
    for broker in readers {
        for task in [&carrying, &bare, &carrying] {
            let mut task = task.clone();
            broker.resolve(&mut task).await.expect("all of it is there");
            assert!(context(&task) == whole);
        }
    }
    // Turn after turn, as one worker has them, and then others than follow from those that it had.
    let broker = another(&fixture);
    for of in [0..1, 0..3, 0..5, 2..5, 0..3, 2..3, 0..2, 0..5] {
        for latest in [&[][..], &parts[of.end - 1]] {
            let mut task = next_turn(&entries[of.clone()], latest);
            broker.resolve(&mut task).await.expect("all of it is there");
            assert!(context(&task) == parts[of.clone()].concat(), "{of:?}");
        }
    }
    let mut step = Task {
        key: TaskKey::EnvStep { rollout: ROLLOUT, turn: 1 },
        body: TaskBody::EnvStep(EnvStepTask {
            environment: EnvironmentSpec::Counter { turns: 3, latency: Latency::default() },
            split: Split::Train,
            seed: 1,
            row: None,
            answers: None,
            prefix: entries[2..4].to_vec(),
            action: EnvAction::Step { state: Vec::new(), tokens: Vec::new() },
        }),
        ..task(1, 0, 0)
    };
    broker.resolve(&mut step).await.expect("all of it is there");
    let TaskBody::EnvStep(step) = step.body else { unreachable!("it steps") };
    assert_eq!(step.action, EnvAction::Step { state: vec![1], tokens: vec![9; 2] });
}

/// A trainer sees what was sampled; turns of another rollout are context.
pub async fn a_batch_names_its_turns(fixture: Fixture) {
    let bodies = vec![showed(&[1, 2], 0), sampled(3), showed(&[3, 4], 1), sampled(2)];
    let entries = appended(&fixture.broker, bodies).await;
    let turn = |tokens| BatchTurn {
        at: 0,
        logprobs: Vec::new(),
        segments: vec![Segment { version: PolicyVersion(0), tokens }],
        reward: 0.5,
    };
    let rollout = |turns, uncut_logprobs| BatchRollout {
        id: ROLLOUT,
        start_version: PolicyVersion(0),
        reward: 1.0,
        success: true,
        truncated: false,
        tokens: Vec::new(),
        turns,
        forks: Vec::new(),
        stored: Some(StoredTrajectory { entries: entries.clone(), uncut_logprobs }),
    };
    let rollouts = vec![rollout(vec![turn(3), turn(2)], false), rollout(vec![turn(2)], true)];
    let mut batch = Batch {
        run: run(),
        base: PolicyVersion(0),
        manifest: Sha::of(b"manifest"),
        config: Sha::of(b"config"),
        seed: 1,
        temperature: 1.0,
        sample_below: None,
        groups: vec![BatchGroup { group: 1, domain: 0, rollouts }],
    };
    let rollouts = batch.groups.iter_mut().flat_map(|group| &mut group.rollouts);
    another(&fixture).resolve_rollouts(&run(), rollouts).await.expect("all of it is there");
    assert!(batch.is_resolved());
    let [whole, later] = batch.groups.remove(0).rollouts.try_into().expect("two rollouts");
    assert_eq!(whole.tokens, [1, 2, 9, 9, 9, 3, 4, 9, 9]);
    assert_eq!(later.tokens, whole.tokens);
    let turns = |rollout: &BatchRollout| -> Vec<(u32, Vec<f32>)> {
        rollout.turns.iter().map(|turn| (turn.at, turn.logprobs.clone())).collect()
    };
    assert_eq!(turns(&whole), [(2, vec![-0.5; 3]), (7, vec![-0.5; 2])]);
    assert_eq!(turns(&later), [(7, vec![-0.25; 2])]);
}

/// A missing or wrong reference is an error: no task is done with other content.
pub async fn a_reference_that_gives_nothing_is_told(fixture: Fixture) {
    let entries = appended(&fixture.broker, vec![showed(&[1, 2], 0), sampled(3), showed(&[3], 1)]).await;
    let seq = fixture.broker.append(subjects::ALL_RUNS, &Event::Tick { unix_ms: 1 }).await;
    let tick = EntryRef { seq: seq.expect("appended").seq, ..entries[2] };
    let wrong = [
        (EntryRef { seq: 900, ..entries[2] }, "seq=900 is not there"),
        (EntryRef { check: 1, ..entries[2] }, "other content"),
        (EntryRef { seq: entries[0].seq, ..entries[2] }, "other content"),
        (tick, "is of run=all"),
    ];
    for (last, words) in wrong {
        let mut task = next_turn(&[entries[0], entries[1], last], &[]);
        let error = another(&fixture).resolve(&mut task).await.expect_err("it is not there").to_string();
        assert!(error.contains(words), "{error}");
    }
}
