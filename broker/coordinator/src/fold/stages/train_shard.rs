//! A step: its batch and its ranks' shards. After all shards: the commit of the version.

use bytes::Bytes;
use millrace_schemas::envelope::encode;
use millrace_schemas::notice::Notice;
use millrace_schemas::policy::Policy;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::subjects::{TRAIN_POOL, member_pool};
use millrace_schemas::train_shard::{Batch, StepVoid, TrainShardDone, TrainShardTask, TrainWork};
use millrace_schemas::{BlobRef, PolicyVersion, Stage, Task, TaskBody, TaskKey};

use crate::fold::command::{Command, Commands};
use crate::fold::gang::Members;
use crate::fold::pools::pool;
use crate::fold::rollout::Group;
use crate::fold::seeds::{Purpose, seed};
use crate::fold::stages::publish_weights;
use crate::fold::state::{RankAssignment, Run, Training};
use crate::fold::{policy, purge};

/// Whether a member that still has a shard of the step to compute has left.
fn has_lost_a_member(run: &Run, members: &Members) -> bool {
    let Some(training) = &run.training else { return false };
    let awaited = |rank| !training.shards.contains_key(&rank);
    training.is_together() && training.manifest.is_none() && !run.gang.is_intact(members, awaited)
}

/// Restarts the current step with the same batch, as the next attempt. The shards that are done are
/// void.
pub(crate) fn restart(run: &mut Run, out: &mut Commands) {
    let Some(training) = run.training.as_mut() else { return };
    training.attempt += 1;
    training.shards.clear();
    training.ranks = None;
    run.gang.broken = true;
    run.books.void_steps += 1;
    let attempt = training.attempt;
    purge::of_stage(run, Stage::TrainShard, out);
    if let Some(policy) = run.policy.clone() {
        policy::set(run, Policy { attempt, ..policy }, out);
    }
}

/// Restarts the current step if a member left in the middle of it.
pub(crate) fn restart_if_member_lost(run: &mut Run, members: &Members, out: &mut Commands) {
    if has_lost_a_member(run, members) {
        notify_void(run, "a member left".to_owned(), out);
        restart(run, out);
    }
}

fn notify_void(run: &Run, reason: String, out: &mut Commands) {
    let Some(training) = &run.training else { return };
    out.push(Command::Notice(Box::new(Notice::StepVoid {
        run: run.spec.name.clone(),
        version: training.makes,
        attempt: training.attempt,
        reason,
    })));
}

/// A shard that was a dead letter is requeued. The other ranks have given up waiting for it, so the
/// step restarts.
pub(crate) fn requeued(run: &mut Run, out: &mut Commands) {
    if run.training.as_ref().is_some_and(Training::is_together) {
        restart(run, out);
    }
}

/// Retries the current step as the next attempt, so that late outcomes of the attempt before are
/// recognised. If all shards are done, they are kept and only the commit is retried.
pub(crate) fn retry(run: &mut Run, out: &mut Commands) {
    match run.training.as_mut() {
        // One worker alone makes version 0, also in a run with a gang.
        Some(training) if training.manifest.is_some() || training.makes == PolicyVersion(0) => {
            training.attempt += 1;
        }
        Some(_) => restart(run, out),
        None => {}
    }
}

/// Makes the current step again from its batch although all shards are done: files that they wrote
/// are gone, so it cannot be committed.
pub(crate) fn remake(run: &mut Run, out: &mut Commands) {
    if let Some(training) = run.training.as_mut() {
        training.manifest = None;
        training.shards.clear();
    }
    retry(run, out);
}

/// A rank lost its connection to the gang: the attempt is void and the step restarts.
pub(crate) fn void(run: &mut Run, key: TaskKey, void: &StepVoid, out: &mut Commands) {
    if !is_awaited(run, key) || run.broken.is_some() {
        run.books.late_outcomes += 1;
        return;
    }
    run.gang.voids += 1;
    let TaskKey::TrainShard { rank, .. } = key else { return };
    notify_void(run, format!("rank={rank}: {}", void.reason), out);
    restart(run, out);
}

/// The batch of the current step, encoded; `None` for version 0.
fn batch(run: &Run, training: &Training) -> Option<Bytes> {
    if training.makes == PolicyVersion(0) {
        return None;
    }
    let base = run.policy.as_ref()?;
    let rollout = &run.spec.rollout;
    // If unlikely tokens are cut off, the trainer compares the log-probs before the cut.
    let cuts = run.spec.sampling(rollout.temperature).cuts();
    let to_batch = |(id, group): &(u64, Group)| group.to_batch(*id, &run.spec.part(group.domain), cuts);
    Some(encode(&Batch {
        run: run.spec.name.clone(),
        base: base.version,
        manifest: base.manifest,
        config: run.config,
        seed: seed(run.spec.seed, Purpose::Step, &[base.version.0]),
        temperature: rollout.temperature,
        sample_below: run.spec.sample_below(),
        groups: training.groups.iter().map(to_batch).collect(),
    }))
}

/// Reference to the batch of the current step; `None` for version 0.
pub(crate) fn stored_batch(run: &Run, training: &Training) -> Option<BlobRef> {
    // A snapshot of an older version does not have it.
    training.batch.or_else(|| batch(run, training).as_deref().map(BlobRef::of))
}

/// Queues what the current step waits for, from the state alone: its batch and the ranks' shards,
/// or its commit.
pub fn put(run: &Run, out: &mut Commands) {
    let Some(training) = &run.training else { return };
    let waits_for_shards = training.ranks.is_some() && training.manifest.is_none();
    if let Some(content) = waits_for_shards.then(|| batch(run, training)).flatten() {
        out.push(Command::PutBlob { run: run.spec.name.clone(), content });
    }
    put_shards(run, out);
}

/// Queues the shards of the current step, whose batch is stored, or its commit.
fn put_shards(run: &Run, out: &mut Commands) {
    let Some(training) = &run.training else { return };
    let Some(ranks) = &training.ranks else { return };
    if let Some(manifest) = &training.manifest {
        out.push(publish_weights::task(run, training.attempt, manifest.clone()));
        return;
    }
    let work = work(run, training);
    for rank in (0..ranks.world()).filter(|rank| !training.shards.contains_key(rank)) {
        out.push(Command::PutTask(Box::new(shard(run, training, ranks, rank, work.clone()))));
    }
}

/// What each rank of the current step computes.
fn work(run: &Run, training: &Training) -> TrainWork {
    match (&run.policy, stored_batch(run, training)) {
        (Some(policy), Some(batch)) => TrainWork::Step {
            base: policy.version,
            manifest: policy.manifest,
            batch,
            algorithm: Box::new(run.spec.algorithm.clone()),
            checkpoint: run.spec.weights.is_checkpoint(training.makes) || training.makes.0 == run.spec.steps,
            delta: !run.spec.weights.is_anchor(training.makes) && training.makes.0 != run.spec.steps,
            reference: run.reference.filter(|_| run.spec.algorithm.kl.is_some()),
        },
        _ => TrainWork::Initialise {
            model: run.spec.model.clone(),
            seed: seed(run.spec.seed, Purpose::Model, &[]),
        },
    }
}

/// The task of one rank.
fn shard(run: &Run, training: &Training, ranks: &RankAssignment, rank: u32, work: TrainWork) -> Task {
    let world = ranks.world();
    Task {
        run: run.spec.name.clone(),
        key: TaskKey::TrainShard { makes: training.makes.0, rank, attempt: training.attempt },
        pool: ranks.workers.get(rank as usize).map_or_else(|| pool(TRAIN_POOL), member_pool),
        version: run.version(),
        evaluate: false,
        body: TaskBody::TrainShard(TrainShardTask {
            rank,
            world,
            gang: ranks.gang,
            timeout_ms: if world > 1 { run.spec.gang.timeout_ms } else { 0 },
            work,
        }),
    }
}

/// Whether the current step waits for this shard.
pub(crate) fn is_awaited(run: &Run, key: TaskKey) -> bool {
    let TaskKey::TrainShard { makes, rank, attempt } = key else { return false };
    run.training.as_ref().is_some_and(|training| {
        training.makes.0 == makes
            && training.attempt == attempt
            && training.manifest.is_none()
            && training.ranks.as_ref().is_some_and(|ranks| rank < ranks.world())
            && !training.shards.contains_key(&rank)
    })
}

/// The shard of this rank, if its request fingerprint differs from the outcome's. The outcome then
/// is of a task of the same name from a lost part of the log, and that task kept this one out of
/// the queue.
fn mismatched_request(run: &Run, key: TaskKey, request_fingerprint: Option<u64>) -> Option<Task> {
    let TaskKey::TrainShard { rank, .. } = key else { return None };
    let (training, request_fingerprint) = (run.training.as_ref()?, request_fingerprint?);
    let shard = shard(run, training, training.ranks.as_ref()?, rank, work(run, training));
    (shard.request_fingerprint() != request_fingerprint).then_some(shard)
}

/// Applies the outcome of a rank's shard.
pub(crate) fn done(
    run: &mut Run,
    key: TaskKey,
    request_fingerprint: Option<u64>,
    done: TrainShardDone,
    out: &mut Commands,
) {
    if !is_awaited(run, key) {
        run.books.late_outcomes += 1;
        return;
    }
    if let Some(shard) = mismatched_request(run, key, request_fingerprint) {
        run.books.late_outcomes += 1;
        out.push(Command::PutTask(Box::new(shard)));
        return;
    }
    let TaskKey::TrainShard { rank, .. } = key else { return };
    let blob = run.training.as_ref().and_then(|training| stored_batch(run, training));
    let parent = run.policy.as_ref().map(|policy| policy.manifest);
    let (name, config) = (run.spec.name.clone(), run.config);
    let Some(training) = run.training.as_mut() else { return };
    training.shards.insert(rank, done.files);
    if rank == 0 {
        run.books.metrics = done.metrics;
    }
    if training.ranks.as_ref().is_none_or(|ranks| training.shards.len() < ranks.world() as usize) {
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
    put_shards(run, out);
}
