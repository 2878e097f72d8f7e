//! One message of every kind, with every optional part present. The golden bytes are made of these.

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_schemas::blob::Sha;
use millrace_schemas::brief::{StepBrief, TurnBrief};
use millrace_schemas::env_step::{
    EnvAction, EnvStepDone, EnvStepTask, EnvironmentSpec, FrozenLakeSpec, Settings, Split,
};
use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::event::{Adopted, AdoptedGroup, AdoptedRollout};
use millrace_schemas::generate::{Finish, GenerateDone, GenerateTask, Sampling, Segment};
use millrace_schemas::log_segment::{
    Claim, LogSegment, RolloutEntries, SegmentEntries, SegmentIndex, SegmentPart,
};
use millrace_schemas::outcome::{Lost, Returned};
use millrace_schemas::publish_weights::{Manifest, PublishWeightsDone, PublishWeightsTask, Retention};
use millrace_schemas::reward::{RewardDone, RewardRule, RewardTask, TurnResult};
use millrace_schemas::submit::{ModelSpec, RunSpec, from_toml};
use millrace_schemas::train_shard::{
    Batch, BatchGroup, BatchRollout, BatchTurn, DeltaRef, FileRef, StepVoid, StoredTrajectory,
    TrainShardDone, TrainShardTask, TrainWork,
};
use millrace_schemas::{
    BlobRef, EntryRef, Event, Outcome, OutcomeBody, PolicyVersion, RolloutId, Task, TaskBody, TaskKey,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message in its encoding.
pub(crate) struct Sample {
    /// The file name of its golden bytes.
    pub(crate) name: &'static str,
    /// Its encoding today.
    pub(crate) bytes: Vec<u8>,
    /// Decodes as the message's type, and encodes again.
    pub(crate) again: fn(&[u8]) -> Result<Vec<u8>, String>,
}

fn sample<T: Serialize + DeserializeOwned>(name: &'static str, message: &T) -> Sample {
    Sample {
        name,
        bytes: encode(message).to_vec(),
        again: |bytes| {
            let message: T = decode("sample", bytes).map_err(|e| e.to_string())?;
            Ok(encode(&message).to_vec())
        },
    }
}

/// A stored JSON document: exactly these bytes are hashed, so they may not change either.
fn manifest_sample(name: &'static str, manifest: &Manifest) -> Sample {
    Sample {
        name,
        bytes: manifest.to_json(),
        again: |bytes| {
            serde_json::from_slice(bytes).map(|read: Manifest| read.to_json()).map_err(|e| e.to_string())
        },
    }
}

/// One of every kind.
pub(crate) fn all() -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    samples.extend(tasks().iter().map(|(name, task)| sample(name, task)));
    samples.extend(outcomes().iter().map(|(name, outcome)| sample(name, outcome)));
    samples.extend(briefs().iter().map(|(name, outcome)| sample(name, outcome)));
    samples.extend(events().iter().map(|(name, event)| sample(name, event)));
    samples.push(sample("batch", &batch()));
    samples.push(sample("batch_by_reference", &batch_by_reference()));
    samples.push(manifest_sample("manifest_json", &manifest(file())));
    samples.push(manifest_sample("manifest_json_delta", &manifest(file_delta())));
    samples.push(sample("segment_entries", &segment_entries()));
    samples.push(sample("segment_index", &segment_index()));
    samples.push(Sample {
        name: "segment_json",
        bytes: serde_json::to_vec(&segment()).expect("JSON can express it"),
        again: |bytes| {
            let read = serde_json::from_slice(bytes);
            read.and_then(|read: LogSegment| serde_json::to_vec(&read)).map_err(|e| e.to_string())
        },
    });
    samples
}

/// A tick, and an outcome whose payload is in the object store.
fn segment_entries() -> SegmentEntries {
    let headers = [("Millrace-Claim", "ab/9"), ("Millrace-Epoch", "3")];
    let headers = headers.map(|(name, value)| vec![(name.to_owned(), value.to_owned())]);
    SegmentEntries {
        seq: vec![300, 70_000],
        stored_ns: vec![1, u64::MAX],
        subject: vec!["mr.log.lake.outcome.generate".to_owned(), "mr.log.all.tick".to_owned()],
        headers: headers.to_vec(),
        payload: vec![Bytes::new(), Bytes::from_static(b"tick")],
    }
}

fn segment_index() -> SegmentIndex {
    let run = || "lake".parse().expect("a run's name");
    SegmentIndex {
        rollouts: vec![RolloutEntries { rollout: ROLLOUT, seq: vec![300] }],
        versions: BTreeMap::from([(PolicyVersion(4), vec![300])]),
        claims: vec![Claim { run: run(), blob: blob("payload") }],
    }
}

fn segment() -> LogSegment {
    let run = "lake".parse().expect("a run's name");
    let part = SegmentPart { run, entries: 2, raw_bytes: 90, data: blob("data"), index: blob("index") };
    LogSegment { log: "00000000000000ab".to_owned(), first: 300, last: 301, parts: vec![part] }
}

pub(crate) const ROLLOUT: RolloutId = RolloutId { group: 7, index: 3, attempt: 1 };

pub(crate) fn run_spec() -> RunSpec {
    from_toml(
        "name = \"lake\"\nsteps = 40\nmodel = { kind = \"decoder\", vocabulary = 128 }\nenvironment = { name = \"frozen_lake\" }",
    )
    .expect("the sample run file is valid")
}

fn blob(word: &str) -> BlobRef {
    BlobRef::of(word.as_bytes())
}

fn scored() -> RewardTask {
    RewardTask {
        rule: RewardRule::EnvReturn,
        turns: vec![TurnResult { reward: -0.5, valid: true, tokens: 1 }],
        success: true,
        settings: Settings::new(),
        conversation: Vec::new(),
        row: [].into(),
        prefix: Vec::new(),
    }
}

fn sampled() -> GenerateTask {
    GenerateTask {
        context: vec![1, 2, 300, 70_000],
        min_version: PolicyVersion(4),
        max_new_tokens: 1,
        sampling: Sampling { stop_tokens: vec![5], ..Sampling::at(1.0) },
        seed: 42,
        prefix: Vec::new(),
        latest: Vec::new(),
        begun: None,
        sampled: None,
    }
}

/// A task of every stage, and of every shape that a stage has.
pub(crate) fn tasks() -> Vec<(&'static str, Task)> {
    let environment = EnvironmentSpec::FrozenLake(FrozenLakeSpec::default());
    let env_step = |action| TaskBody::EnvStep(step_of(&environment, action));
    let reward = scored();
    let model = ModelSpec::Decoder {
        vocabulary: 128,
        layers: 2,
        width: 64,
        heads: 4,
        feed_forward: 256,
        context: 512,
        init_std: 0.02,
    };
    let train =
        |work| TaskBody::TrainShard(TrainShardTask { rank: 1, world: 2, gang: 77, timeout_ms: 60_000, work });
    let step = |delta| TrainWork::Step {
        base: PolicyVersion(4),
        manifest: Sha::of(b"manifest"),
        batch: blob("batch"),
        algorithm: Box::default(),
        checkpoint: true,
        delta,
        reference: None,
    };
    let publish = PublishWeightsTask {
        manifest: manifest(file()),
        retention: Retention { newest: 4, every: 10, checkpoint_every: 8, ..Retention::default() },
    };
    let shard = |makes| TaskKey::TrainShard { makes, rank: 0, attempt: 0 };
    let mut tasks = vec![
        (
            "task_generate",
            task(TaskKey::Generate { rollout: ROLLOUT, turn: 2 }, TaskBody::Generate(sampled())),
        ),
        (
            "task_env_step_reset",
            task(TaskKey::EnvStep { rollout: ROLLOUT, turn: 0 }, env_step(EnvAction::Reset)),
        ),
        (
            "task_env_step",
            task(
                TaskKey::EnvStep { rollout: ROLLOUT, turn: 2 },
                env_step(EnvAction::Step { state: vec![0, 1, 255], tokens: vec![9] }),
            ),
        ),
        ("task_reward", task(TaskKey::Reward { rollout: ROLLOUT, reward: 0 }, TaskBody::Reward(reward))),
        ("task_train_shard_initialise", task(shard(0), train(TrainWork::Initialise { model, seed: 1 }))),
        ("task_train_shard", task(shard(5), train(step(false)))),
        ("task_train_shard_delta", task(shard(5), train(step(true)))),
        (
            "task_publish_weights",
            task(TaskKey::PublishWeights { version: 5, attempt: 0 }, TaskBody::PublishWeights(publish)),
        ),
    ];
    tasks.extend(tasks_by_reference(&environment));
    tasks
}

fn step_of(environment: &EnvironmentSpec, action: EnvAction) -> EnvStepTask {
    let (environment, split, seed, row, prefix) =
        (environment.clone(), Split::Train, u64::MAX, None, Vec::new());
    EnvStepTask { environment, split, seed, row, prefix, answers: None, action }
}

/// Tasks whose content is stored in the log, as the coordinator puts them.
fn tasks_by_reference(environment: &EnvironmentSpec) -> [(&'static str, Task); 5] {
    let [before, turn, answer] = entries();
    let generate = GenerateTask {
        context: Vec::new(),
        min_version: PolicyVersion(4),
        max_new_tokens: 1,
        sampling: Sampling { stop_tokens: vec![5], ..Sampling::at(1.0) },
        seed: 42,
        prefix: vec![before, turn, answer],
        latest: vec![10, 11],
        begun: None,
        sampled: None,
    };
    let begun = GenerateTask { begun: Some(turn), latest: Vec::new(), ..generate.clone() };
    let action = EnvAction::Step { state: Vec::new(), tokens: vec![9] };
    let step = EnvStepTask { prefix: vec![before, turn], ..step_of(environment, action) };
    let action = EnvAction::Step { state: Vec::new(), tokens: Vec::new() };
    let listens = EnvStepTask { prefix: vec![before], answers: Some(0), ..step_of(environment, action) };
    let reward = RewardTask { prefix: vec![before, answer], ..scored() };
    let env_step = TaskKey::EnvStep { rollout: ROLLOUT, turn: 1 };
    [
        (
            "task_generate_by_reference",
            task(TaskKey::Generate { rollout: ROLLOUT, turn: 2 }, TaskBody::Generate(generate)),
        ),
        (
            "task_generate_begun",
            task(TaskKey::Generate { rollout: ROLLOUT, turn: 2 }, TaskBody::Generate(begun)),
        ),
        ("task_env_step_by_reference", task(env_step, TaskBody::EnvStep(step))),
        ("task_env_step_listens", task(env_step, TaskBody::EnvStep(listens))),
        (
            "task_reward_by_reference",
            task(TaskKey::Reward { rollout: ROLLOUT, reward: 0 }, TaskBody::Reward(reward)),
        ),
    ]
}

fn task(key: TaskKey, body: TaskBody) -> Task {
    let pool = key.stage().name().parse().expect("a stage's name can name a pool");
    let run = "lake".parse().expect("a run's name");
    Task { run, key, pool, version: PolicyVersion(4), evaluate: true, body }
}

/// A turn that can be trained on.
pub(crate) fn turn() -> GenerateDone {
    GenerateDone {
        tokens: vec![9, 5],
        logprobs: vec![-0.7, -0.25],
        uncut_logprobs: Vec::new(),
        segments: vec![
            Segment { version: PolicyVersion(4), tokens: 1 },
            Segment { version: PolicyVersion(5), tokens: 1 },
        ],
        finish: Finish::Stop,
        prefill_tokens: 18,
        cached_tokens: 2,
    }
}

fn env_step() -> EnvStepDone {
    EnvStepDone {
        state: vec![1, 2],
        observation: vec![10, 11],
        reward: 1.0,
        done: false,
        success: false,
        valid: true,
        ..EnvStepDone::default()
    }
}

/// What the log holds of outcomes whose content is in the object store.
fn briefs() -> Vec<(&'static str, Outcome)> {
    let outcome = |key, body| Outcome {
        key,
        worker: "w1".parse().expect("a worker's name"),
        busy_us: 1_500,
        request_fingerprint: Some(7),
        body,
    };
    vec![
        (
            "outcome_generate_brief",
            outcome(
                TaskKey::Generate { rollout: ROLLOUT, turn: 2 },
                OutcomeBody::TurnBrief(TurnBrief::of(&turn())),
            ),
        ),
        (
            "outcome_env_step_brief",
            outcome(
                TaskKey::EnvStep { rollout: ROLLOUT, turn: 2 },
                OutcomeBody::StepBrief(StepBrief::of(&env_step())),
            ),
        ),
    ]
}

/// An outcome of every stage.
pub(crate) fn outcomes() -> Vec<(&'static str, Outcome)> {
    let outcome = |key, body| Outcome {
        key,
        worker: "w1".parse().expect("a worker's name"),
        busy_us: 1_500,
        request_fingerprint: None,
        body,
    };
    let shard = |file| OutcomeBody::TrainShard(TrainShardDone { files: vec![file], metrics: metrics() });
    let makes = TaskKey::TrainShard { makes: 5, rank: 0, attempt: 0 };
    let publish = PublishWeightsDone {
        manifest: Sha::of(b"manifest"),
        batch: Some(blob("batch")),
        created: false,
        bytes: 1 << 33,
        collected: vec![PolicyVersion(1), PolicyVersion(2)],
    };
    vec![
        (
            "outcome_generate",
            outcome(TaskKey::Generate { rollout: ROLLOUT, turn: 2 }, OutcomeBody::Generate(turn())),
        ),
        (
            "outcome_env_step",
            outcome(TaskKey::EnvStep { rollout: ROLLOUT, turn: 2 }, OutcomeBody::EnvStep(env_step())),
        ),
        (
            "outcome_reward",
            outcome(
                TaskKey::Reward { rollout: ROLLOUT, reward: 0 },
                OutcomeBody::Reward(RewardDone { score: 0.75, ..RewardDone::default() }),
            ),
        ),
        (
            "outcome_lost",
            outcome(
                TaskKey::EnvStep { rollout: ROLLOUT, turn: 2 },
                OutcomeBody::Lost(Lost { reason: "its worker is gone".into() }),
            ),
        ),
        ("outcome_train_shard", outcome(makes, shard(file()))),
        ("outcome_train_shard_delta", outcome(makes, shard(file_delta()))),
        (
            "outcome_void",
            outcome(
                TaskKey::TrainShard { makes: 5, rank: 1, attempt: 0 },
                OutcomeBody::Void(StepVoid { reason: "rank=0 hung up".into() }),
            ),
        ),
        (
            "outcome_returned",
            outcome(
                TaskKey::TrainShard { makes: 5, rank: 1, attempt: 0 },
                OutcomeBody::Returned(Returned::undone("no space left on device".into())),
            ),
        ),
        (
            "outcome_publish_weights",
            outcome(TaskKey::PublishWeights { version: 5, attempt: 0 }, OutcomeBody::PublishWeights(publish)),
        ),
    ]
}

fn events() -> Vec<(&'static str, Event)> {
    let key = TaskKey::Generate { rollout: ROLLOUT, turn: 2 };
    let outcome = outcomes().swap_remove(0).1;
    vec![
        ("event_submitted", Event::Submitted(Box::new(run_spec()))),
        ("event_outcome", Event::Outcome(outcome)),
        ("event_dead_letter", Event::DeadLetter { key, reason: "no such token".into(), exhausted: false }),
        ("event_requeued", Event::Requeued { key }),
        ("event_cancelled", Event::Cancelled { reason: "asked for".into() }),
        (
            "event_paused",
            Event::Paused { reason: "the disk is full".into(), remedy: "free some, then resume".into() },
        ),
        ("event_resumed", Event::Resumed),
        ("event_archived", Event::Archived),
        (
            "event_joined",
            Event::Joined { worker: "w1".parse().expect("a worker's name"), instance: "0192".into() },
        ),
        (
            "event_left",
            Event::Left { worker: "w1".parse().expect("a worker's name"), instance: "0192".into() },
        ),
        (
            "event_adopted",
            Event::Adopted(Box::new(Adopted {
                version: PolicyVersion(5),
                manifest: Sha::of(b"manifest"),
                batch: Some(blob("batch")),
                groups: vec![AdoptedGroup {
                    domain: 0,
                    group: 3,
                    rollouts: vec![AdoptedRollout {
                        attempt: 1,
                        start_version: PolicyVersion(4),
                        reward: 0.5,
                        success: true,
                    }],
                }],
            })),
        ),
        ("event_tick", Event::Tick { unix_ms: 1_790_000_000_000 }),
    ]
}

fn metrics() -> BTreeMap<String, f64> {
    BTreeMap::from([("entropy".to_owned(), 1.25), ("loss".to_owned(), -0.1)])
}

/// What an environment showed first, a turn, and the answer to it.
fn entries() -> [EntryRef; 3] {
    [(70, 1, u64::MAX), (300, 2, 7), (70_000, 2, 1 << 40)].map(EntryRef::from)
}

/// The same batch as a step refers to it.
pub(crate) fn batch_by_reference() -> Batch {
    let mut batch = batch();
    let rollout = &mut batch.groups[0].rollouts[0];
    rollout.tokens.clear();
    rollout.turns[0] = BatchTurn { at: 0, logprobs: Vec::new(), ..rollout.turns[0].clone() };
    rollout.stored = Some(StoredTrajectory { entries: entries()[..2].to_vec(), uncut_logprobs: true });
    batch
}

/// A batch of one rollout with one turn.
pub(crate) fn batch() -> Batch {
    let turn = turn();
    let rollout = BatchRollout {
        id: ROLLOUT,
        start_version: PolicyVersion(4),
        reward: 0.5,
        success: true,
        truncated: false,
        tokens: vec![1, 9, 5],
        turns: vec![BatchTurn { at: 1, logprobs: turn.logprobs, segments: turn.segments, reward: 0.5 }],
        forks: Vec::new(),
        stored: None,
    };
    Batch {
        run: "lake".parse().expect("a run's name"),
        base: PolicyVersion(5),
        manifest: Sha::of(b"manifest"),
        config: Sha::of(b"config"),
        seed: 11,
        temperature: 1.0,
        sample_below: None,
        groups: vec![BatchGroup { group: 7, domain: 0, rollouts: vec![rollout] }],
    }
}

fn file() -> FileRef {
    FileRef::whole("model.safetensors", blob("weights"))
}

fn file_delta() -> FileRef {
    let delta = DeltaRef { anchor: blob("anchor"), changes: blob("changes") };
    FileRef { delta: Some(delta), ..file() }
}

fn manifest(file: FileRef) -> Manifest {
    Manifest {
        run: "lake".parse().expect("a run's name"),
        version: PolicyVersion(5),
        parent: Some(Sha::of(b"parent")),
        batch: Some(blob("batch")),
        config: Sha::of(b"config"),
        files: vec![file],
        metrics: metrics(),
    }
}
