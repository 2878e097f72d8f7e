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

/// Whether one of the members that make a step together is no member any more.
fn has_lost_a_member(run: &Run, members: &Members) -> bool {
    let Some(training) = &run.training else { return false };
    let awaited = |rank| !training.shards.contains_key(&rank);
    training.is_together() && training.manifest.is_none() && !run.gang.stands(members, awaited)
}

/// Begins the step in the making anew, with the same batch: what its ranks did is void.
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

/// Restarts the step in the making if a member left in the middle of it.
pub(crate) fn restart_if_member_lost(run: &mut Run, members: &Members, out: &mut Commands) {
    if has_lost_a_member(run, members) {
        tell_void(run, "a member left".to_owned(), out);
        restart(run, out);
    }
}

fn tell_void(run: &Run, reason: String, out: &mut Commands) {
    let Some(training) = &run.training else { return };
    out.push(Command::Notice(Box::new(Notice::StepVoid {
        run: run.spec.name.clone(),
        version: training.makes,
        attempt: training.attempt,
        reason,
    })));
}

/// A shard that nobody could do is tried again: the other ranks gave up waiting for it.
pub(crate) fn requeued(run: &mut Run, out: &mut Commands) {
    if run.training.as_ref().is_some_and(Training::is_together) {
        restart(run, out);
    }
}

/// The step in the making is tried again under another name, so that whatever came of it before is known for that. Shares
/// that are all done stand.
pub(crate) fn retry(run: &mut Run, out: &mut Commands) {
    match run.training.as_mut() {
        // One worker makes version 0, whatever the gang.
        Some(training) if training.manifest.is_some() || training.makes == PolicyVersion(0) => {
            training.attempt += 1;
        }
        Some(_) => restart(run, out),
        None => {}
    }
}

/// A rank lost its gang.
pub(crate) fn void(run: &mut Run, key: TaskKey, void: &StepVoid, out: &mut Commands) {
    if !is_awaited(run, key) || run.broken.is_some() {
        run.books.late_outcomes += 1;
        return;
    }
    run.gang.voids += 1;
    let TaskKey::TrainShard { rank, .. } = key else { return };
    tell_void(run, format!("rank={rank}: {}", void.reason), out);
    restart(run, out);
}

/// The batch of the step in the making, encoded; `None` for version 0.
fn batch(run: &Run, training: &Training) -> Option<Bytes> {
    if training.makes == PolicyVersion(0) {
        return None;
    }
    let base = run.policy.as_ref()?;
    let rollout = &run.spec.rollout;
    // Where unlikely tokens are cut off, the trainer compares the log-probabilities before the cut.
    let cuts = run.spec.sampling(rollout.temperature).cuts();
    let to_batch =
        |(id, group): &(u64, Group)| group.to_batch(*id, &run.spec.part(group.domain).reward_weights(), cuts);
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

/// Names the batch of the step in the making; `None` for version 0.
pub(crate) fn stored_batch(run: &Run, training: &Training) -> Option<BlobRef> {
    // A step of a snapshot of before does not hold the name.
    training.batch.or_else(|| batch(run, training).as_deref().map(BlobRef::of))
}

/// Puts what the step in the making waits for, from the state alone: its batch and the ranks' shards, or its commit.
pub fn put(run: &Run, out: &mut Commands) {
    let Some(training) = &run.training else { return };
    let waits_for_shards = training.ranks.is_some() && training.manifest.is_none();
    if let Some(content) = waits_for_shards.then(|| batch(run, training)).flatten() {
        out.push(Command::PutBlob { run: run.spec.name.clone(), content });
    }
    put_shards(run, out);
}

/// Puts the ranks' shards of the step in the making, whose batch is stored, or its commit.
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

/// What each rank of the step in the making computes.
fn work(run: &Run, training: &Training) -> TrainWork {
    match (&run.policy, stored_batch(run, training)) {
        (Some(policy), Some(batch)) => TrainWork::Step {
            base: policy.version,
            manifest: policy.manifest,
            batch,
            algorithm: Box::new(run.spec.algorithm.clone()),
            checkpoint: run.spec.weights.is_checkpoint(training.makes) || training.makes.0 == run.spec.steps,
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

/// Whether the step in the making waits for this shard.
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

/// The shard of this rank, if what it asks is not what was answered: the answer is to a task of the same name, of a
/// part of the log that was lost, and that task stood in the way of this one.
fn asked_otherwise(run: &Run, key: TaskKey, answers: Option<u64>) -> Option<Task> {
    let TaskKey::TrainShard { rank, .. } = key else { return None };
    let (training, answers) = (run.training.as_ref()?, answers?);
    let shard = shard(run, training, training.ranks.as_ref()?, rank, work(run, training));
    (shard.question() != answers).then_some(shard)
}

/// Takes a rank's shard in.
pub(crate) fn done(
    run: &mut Run,
    key: TaskKey,
    answers: Option<u64>,
    done: TrainShardDone,
    out: &mut Commands,
) {
    if !is_awaited(run, key) {
        run.books.late_outcomes += 1;
        return;
    }
    if let Some(shard) = asked_otherwise(run, key, answers) {
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
