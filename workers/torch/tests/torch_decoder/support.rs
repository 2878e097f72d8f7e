//! Versions, requests and batches to test with.

use std::collections::BTreeMap;

use millrace_policy::random::Stream;
use millrace_policy::{
    Engine, EngineRequest, LoadedVersion, NoPast, PolicyError, Ticket, TrainStep, Trained, Trainer,
};
use millrace_schemas::blob::Sha;
use millrace_schemas::generate::{GenerateDone, GenerateTask, Sampling};
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::{Algorithm, ModelSpec};
use millrace_schemas::train_shard::{Batch, BatchGroup, BatchRollout, BatchTurn, FileRef};
use millrace_schemas::{BlobRef, PolicyVersion, RolloutId};
use millrace_torch::{EngineSettings, TorchEngine, TorchTrainer, TorchWeights};

/// Tokens that the models know.
pub(crate) const VOCABULARY: u32 = 32;

pub(crate) fn model(layers: u32, context: u32, init_std: f64) -> ModelSpec {
    ModelSpec::Decoder {
        vocabulary: VOCABULARY,
        layers,
        width: 64,
        heads: 4,
        feed_forward: 256,
        context,
        init_std,
    }
}

/// A version with these files, as if it had been committed and fetched.
pub(crate) fn version(number: u64, trained: &Trained) -> LoadedVersion {
    let files = trained.files.iter();
    let files = files.map(|(name, bytes)| FileRef::whole(name, BlobRef::of(bytes))).collect();
    let manifest = Manifest {
        run: "test".parse().unwrap(),
        version: PolicyVersion(number),
        parent: None,
        batch: None,
        config: Sha::of(b"config"),
        files,
        metrics: BTreeMap::new(),
    };
    let sha = Sha::of(&manifest.to_json());
    LoadedVersion { version: PolicyVersion(number), manifest, sha, files: trained.files.clone() }
}

/// Version 0 from a seed. `init_std` above the default makes distributions that are far from even.
pub(crate) fn initial(seed: u64) -> LoadedVersion {
    version(0, &TorchTrainer::new().initialise(&model(2, 256, 0.2), seed).unwrap())
}

pub(crate) fn engine(weights: &LoadedVersion) -> TorchEngine {
    TorchEngine::new(weights, EngineSettings::default()).unwrap()
}

/// Reads weights and has the engine swap to them.
pub(crate) fn load(engine: &mut TorchEngine, weights: &LoadedVersion) {
    engine.swap(Box::new(TorchWeights::read(weights).unwrap())).unwrap();
}

pub(crate) fn rollout(index: u32) -> RolloutId {
    RolloutId { group: 0, index, attempt: 0 }
}

pub(crate) fn tokens(count: usize, seed: u64) -> Vec<u32> {
    let mut random = Stream::new(seed);
    (0..count).map(|_| random.below(u64::from(VOCABULARY)) as u32).collect()
}

pub(crate) fn task(context: Vec<u32>, max_new_tokens: u32, seed: u64) -> GenerateTask {
    GenerateTask::new(context, max_new_tokens, Sampling::at(1.0), seed)
}

pub(crate) fn request(index: u32, task: GenerateTask) -> EngineRequest {
    EngineRequest { ticket: Ticket(u64::from(index)), rollout: rollout(index), task }
}

/// Runs the engine until `count` requests have ended; their results by ticket.
pub(crate) fn run(
    engine: &mut TorchEngine,
    count: usize,
) -> BTreeMap<Ticket, Result<GenerateDone, PolicyError>> {
    let mut results = BTreeMap::new();
    while results.len() < count {
        results.extend(engine.step().unwrap().into_iter().map(|one| (one.ticket, one.result)));
    }
    results
}

/// The turns of tasks in one batch, in order.
pub(crate) fn turns(engine: &mut TorchEngine, tasks: Vec<GenerateTask>) -> Vec<GenerateDone> {
    let count = tasks.len();
    for (index, task) in tasks.into_iter().enumerate() {
        engine.admit(request(index as u32, task));
    }
    run(engine, count).into_values().map(Result::unwrap).collect()
}

/// A batch of `groups` × `size` rollouts of `turns` turns: observations of `observation` tokens,
/// each followed by a turn of `new` tokens that the engine really sampled. Rewards are drawn.
pub(crate) fn sampled_batch(
    weights: &LoadedVersion,
    groups: u64,
    size: u32,
    shape: Shape,
    seed: u64,
) -> Batch {
    sampled_by(&mut engine(weights), weights, groups, size, shape, seed)
}

/// As [`sampled_batch`], by an engine that has these weights.
pub(crate) fn sampled_by(
    engine: &mut TorchEngine,
    weights: &LoadedVersion,
    groups: u64,
    size: u32,
    shape: Shape,
    seed: u64,
) -> Batch {
    let mut random = Stream::new(seed);
    let count = groups as usize * size as usize;
    let mut rows: Vec<(Vec<u32>, Vec<BatchTurn>)> = vec![(Vec::new(), Vec::new()); count];
    for turn in 0..shape.turns {
        let mut tasks = Vec::new();
        for (index, (row, _)) in rows.iter_mut().enumerate() {
            let extra = random.below(3) as usize;
            row.extend(tokens(shape.observation + extra, seed ^ random.below(1 << 40)));
            let mut task = task(row.clone(), shape.new, (turn * count + index) as u64);
            task.sampling.sample_below = shape.below;
            tasks.push(task);
        }
        for ((row, turns), done) in rows.iter_mut().zip(self::turns(engine, tasks)) {
            let at = row.len() as u32;
            row.extend(&done.tokens);
            turns.push(BatchTurn { at, logprobs: done.logprobs, segments: done.segments, reward: 0.0 });
        }
    }
    let mut rows = rows.into_iter();
    let groups = (0..groups).map(|group| BatchGroup {
        domain: 0,
        group,
        rollouts: (0..size)
            .map(|index| {
                let (tokens, turns) = rows.next().unwrap();
                let reward = random.unit();
                BatchRollout {
                    id: RolloutId { group, index, attempt: 0 },
                    start_version: weights.version,
                    reward,
                    success: reward > 0.5,
                    truncated: false,
                    tokens,
                    turns,
                    forks: Vec::new(),
                    stored: None,
                }
            })
            .collect(),
    });
    Batch {
        run: "test".parse().unwrap(),
        base: weights.version,
        manifest: weights.sha,
        config: Sha::of(b"config"),
        seed,
        temperature: 1.0,
        sample_below: shape.below,
        groups: groups.collect(),
    }
}

/// The same rollouts after fewer turns, so that they have unlike numbers of sampled tokens; and as
/// if they had been sampled by a policy that moved every log-probability by up to `off`.
pub(crate) fn uneven(batch: &Batch, off: f64) -> Batch {
    let (mut batch, mut random) = (batch.clone(), Stream::new(batch.seed));
    let rollouts = batch.groups.iter_mut().flat_map(|group| &mut group.rollouts);
    for (index, rollout) in rollouts.enumerate() {
        rollout.turns.truncate(1 + index % rollout.turns.len());
        for logprob in rollout.turns.iter_mut().flat_map(|turn| &mut turn.logprobs) {
            *logprob += (off * (2.0 * random.unit() - 1.0)) as f32;
        }
        rollout.forks.retain(|fork| fork.turn as usize <= rollout.turns.len());
        let last = rollout.turns.last().unwrap();
        rollout.tokens.truncate(last.at as usize + last.logprobs.len());
    }
    batch
}

/// The shape of a rollout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) turns: usize,
    pub(crate) observation: usize,
    pub(crate) new: u32,
    /// Only tokens below this are drawn.
    pub(crate) below: Option<u32>,
}

/// One step with a KL penalty towards `reference`.
pub(crate) fn step_near(
    reference: Option<&LoadedVersion>,
    base: &LoadedVersion,
    batch: &Batch,
    algorithm: &Algorithm,
) -> Result<Trained, PolicyError> {
    let blob = BlobRef::of(b"batch");
    let step =
        TrainStep { batch, blob, algorithm, reference, assignment: None, checkpoint: true, past: &NoPast };
    TorchTrainer::new().step(base, &step)
}

/// One step.
pub(crate) fn step(
    trainer: &mut TorchTrainer,
    base: &LoadedVersion,
    batch: &Batch,
    algorithm: &Algorithm,
) -> Result<Trained, PolicyError> {
    let blob = BlobRef::of(b"batch");
    trainer.step(
        base,
        &TrainStep {
            batch,
            blob,
            algorithm,
            reference: None,
            assignment: None,
            checkpoint: true,
            past: &NoPast,
        },
    )
}
