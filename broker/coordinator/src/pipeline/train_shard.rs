//! A batch is cut and trained. After all ranks' shares: the version is published.

use std::collections::BTreeMap;

use millrace_schemas::envelope::encode;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::subjects::TRAIN_POOL;
use millrace_schemas::train_shard::{Batch, TrainShardDone, TrainShardTask, TrainWork};
use millrace_schemas::{BlobRef, PolicyVersion, Task, TaskBody, TaskKey};

use crate::command::{Command, Commands};
use crate::pipeline::publish_weights;
use crate::pipeline::seeds::{Purpose, seed};
use crate::pipeline::submit::pool;
use crate::state::{Run, Training};
use crate::window::{self, Ready};

/// Ranks of a gang.
const WORLD: u32 = 1;

/// Cuts a batch if there are enough finished groups, no other step is in the making, and no evaluation is
/// under way.
pub(super) fn cut(run: &mut Run, out: &mut Commands) {
    let version = run.version();
    let idle = run.training.is_none() && run.evaluation.is_none() && run.policy.is_some();
    if !idle || run.state.is_over() || version.0 >= run.spec.steps {
        return;
    }
    let ready: Vec<Ready> = run
        .ready
        .iter()
        .map(|group| Ready { group: *group, staleness: run.groups[group].staleness(version) })
        .collect();
    let Some(chosen) = window::choose_batch(&run.spec, &ready) else { return };
    run.ready.retain(|group| !chosen.contains(group));
    let groups = chosen
        .iter()
        .map(|id| (*id, run.groups.remove(id).expect("finished groups are in the state until they are cut")))
        .collect();
    let training =
        Training { makes: version.next(), attempt: 0, groups, manifest: None, shards: BTreeMap::new() };
    run.training = Some(training);
    put(run, out);
}

/// The batch of the step in the making, as it is stored; `None` for version 0.
fn batch(run: &Run, training: &Training) -> Option<(BlobRef, bytes::Bytes)> {
    let base = run.policy.as_ref()?;
    let weights = run.reward_weights();
    let content = encode(&Batch {
        run: run.spec.name.clone(),
        base: base.version,
        manifest: base.manifest,
        config: run.config,
        seed: seed(run.spec.seed, Purpose::Step, &[base.version.0]),
        temperature: run.spec.rollout.temperature,
        sample_below: run.spec.sample_below(),
        groups: training.groups.iter().map(|(id, group)| group.to_batch(*id, &weights)).collect(),
    });
    Some((BlobRef::of(&content), content))
}

/// Puts what the step in the making waits for: its batch and the ranks' shares, or its commit.
pub fn put(run: &Run, out: &mut Commands) {
    let Some(training) = &run.training else { return };
    if let Some(manifest) = &training.manifest {
        out.push(publish_weights::put(run, training.attempt, manifest.clone()));
        return;
    }
    let batch = if training.makes == PolicyVersion(0) { None } else { batch(run, training) };
    let work = match (&run.policy, batch) {
        (Some(policy), Some((blob, content))) => {
            out.push(Command::PutBlob { run: run.spec.name.clone(), content });
            TrainWork::Step {
                base: policy.version,
                manifest: policy.manifest,
                batch: blob,
                algorithm: run.spec.algorithm.clone(),
            }
        }
        _ => TrainWork::Initialise {
            model: run.spec.model.clone(),
            seed: seed(run.spec.seed, Purpose::Model, &[]),
        },
    };
    for rank in (0..WORLD).filter(|rank| !training.shards.contains_key(rank)) {
        let key = TaskKey::TrainShard { makes: training.makes.0, rank, attempt: training.attempt };
        out.push(Command::PutTask(Box::new(Task {
            run: run.spec.name.clone(),
            key,
            pool: pool(TRAIN_POOL),
            version: run.version(),
            evaluate: false,
            body: TaskBody::TrainShard(TrainShardTask { rank, world: WORLD, work: work.clone() }),
        })));
    }
}

/// Whether the step in the making waits for this share.
pub(super) fn is_awaited(run: &Run, key: TaskKey) -> bool {
    let TaskKey::TrainShard { makes, rank, attempt } = key else { return false };
    run.training.as_ref().is_some_and(|training| {
        training.makes.0 == makes
            && training.attempt == attempt
            && training.manifest.is_none()
            && rank < WORLD
            && !training.shards.contains_key(&rank)
    })
}

/// Takes a rank's share in.
pub(super) fn done(run: &mut Run, key: TaskKey, done: TrainShardDone, out: &mut Commands) {
    if !is_awaited(run, key) {
        run.books.late_outcomes += 1;
        return;
    }
    let TaskKey::TrainShard { rank, .. } = key else { return };
    let blob = run.training.as_ref().and_then(|training| batch(run, training)).map(|(blob, _)| blob);
    let parent = run.policy.as_ref().map(|policy| policy.manifest);
    let (name, config) = (run.spec.name.clone(), run.config);
    let Some(training) = run.training.as_mut() else { return };
    training.shards.insert(rank, done.files);
    if rank == 0 {
        run.books.metrics = done.metrics;
    }
    if training.shards.len() < WORLD as usize {
        return;
    }
    training.manifest = Some(Manifest {
        run: name,
        version: training.makes,
        parent,
        batch: blob,
        config,
        files: training.shards.values().flatten().cloned().collect(),
        metrics: run.books.metrics.clone(),
    });
    put(run, out);
}
