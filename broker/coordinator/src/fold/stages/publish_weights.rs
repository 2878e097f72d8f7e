//! After a commit: the policy is the committed version, and the batch is booked as trained.

use millrace_schemas::api::{CurvePoint, RunState};
use millrace_schemas::blob::Sha;
use millrace_schemas::notice::{Notice, StepNotice};
use millrace_schemas::policy::Policy;
use millrace_schemas::publish_weights::{Manifest, PublishWeightsDone, PublishWeightsTask};
use millrace_schemas::subjects::PUBLISH_POOL;
use millrace_schemas::train_shard::BatchTurn;
use millrace_schemas::{PolicyVersion, Task, TaskBody, TaskKey};

use crate::fold::command::{Command, Commands};
use crate::fold::milestone::Milestone;
use crate::fold::pools::pool;
use crate::fold::rollout::Group;
use crate::fold::state::{ExhaustedStep, Run};
use crate::fold::{policy, purge, window};

/// The task that commits a version.
#[must_use]
pub(crate) fn task(run: &Run, attempt: u32, manifest: Manifest) -> Command {
    Command::PutTask(Box::new(Task {
        run: run.spec.name.clone(),
        key: TaskKey::PublishWeights { version: manifest.version.0, attempt },
        pool: pool(PUBLISH_POOL),
        version: run.version(),
        evaluate: false,
        body: TaskBody::PublishWeights(PublishWeightsTask { manifest, retention: run.spec.weights }),
    }))
}

/// Whether the current step waits for this commit.
pub(crate) fn is_awaited(run: &Run, key: TaskKey) -> bool {
    let TaskKey::PublishWeights { version, attempt } = key else { return false };
    run.training.as_ref().is_some_and(|training| {
        training.makes.0 == version && training.attempt == attempt && training.manifest.is_some()
    })
}

/// Applies a commit.
pub(crate) fn done(
    run: &mut Run,
    key: TaskKey,
    request_fingerprint: Option<u64>,
    done: &PublishWeightsDone,
    out: &mut Commands,
) {
    if !is_awaited(run, key) {
        run.books.late_outcomes += 1;
        return;
    }
    let Some(training) = run.training.take() else { return };
    let version = training.makes;
    // An older program's outcomes have no request fingerprint, and it names the same batch by
    // another hash.
    let is_older = request_fingerprint.is_none() && done.created;
    if !is_older && done.batch != training.manifest.as_ref().and_then(|manifest| manifest.batch) {
        // The log lost this version, but the object store has it. The first commit wins: it is
        // adopted with the batch that it was trained on.
        run.training = Some(training);
        out.push(Command::Adopt { run: run.spec.name.clone(), version });
        return;
    }
    if done.created {
        // The commit was the first: no lost part of the log had committed this version.
        run.books.dropped_lately.clear();
    }
    book_step(run, run.version(), version, &training.groups, out);
    committed(run, version, done.manifest, out);
}

/// Makes a committed version the current policy.
pub(crate) fn committed(run: &mut Run, version: PolicyVersion, manifest: Sha, out: &mut Commands) {
    let before = run.version();
    run.books.milestones.add(|| Milestone::Committed { version });
    run.filtered_since_step = 0;
    run.failures.since_step = 0;
    run.exhausted = ExhaustedStep::default();
    run.moved();
    run.gang.voids = 0;
    let floor = window::floor(&run.spec, version);
    if version == PolicyVersion(0) {
        run.reference = Some(manifest);
    }
    let partitions = run.spec.rollout.partitions;
    policy::set(run, Policy { version, manifest, floor, attempt: 0, partitions, ended: false }, out);
    purge_below(run, before, floor, out);
    if run.state == RunState::Starting {
        run.state = RunState::Running;
    }
}

/// Purges queued tasks of versions that fell below the floor since the version was `before`.
fn purge_below(run: &Run, before: PolicyVersion, floor: PolicyVersion, out: &mut Commands) {
    for version in window::floor(&run.spec, before).0..floor.0 {
        purge::of_version(run, PolicyVersion(version), out);
    }
}

/// Counts the rollouts of a committed step as trained, and publishes a notice.
pub(crate) fn book_step(
    run: &mut Run,
    base: PolicyVersion,
    made: PolicyVersion,
    groups: &[(u64, Group)],
    out: &mut Commands,
) {
    if made == PolicyVersion(0) {
        return;
    }
    let weights: Vec<Vec<f64>> = run.spec.parts().map(|domain| domain.reward_weights()).collect();
    let (mut count, mut solved, mut reward, mut tokens, mut max_staleness) = (0_u64, 0_u64, 0.0, 0, 0);
    let rollouts = || {
        groups.iter().flat_map(|(id, group)| {
            group.ids(*id).zip(&group.rollouts).map(|(id, rollout)| (id, group.domain, rollout))
        })
    };
    // Success is measured over the rollouts that started at the beginning of their prompt, if there
    // are any.
    let all_continued = rollouts().all(|(_, _, rollout)| rollout.skipped > 0);
    for (id, domain, rollout) in rollouts() {
        run.books.train_rollout(id, domain, base, rollout.version());
        if all_continued || rollout.skipped == 0 {
            count += 1;
            solved += u64::from(rollout.success);
            reward += rollout.reward(weights[domain as usize].iter().copied());
        }
        tokens += rollout.turns.iter().map(BatchTurn::tokens).sum::<u64>();
        max_staleness = max_staleness.max(base.staleness(rollout.version()));
        run.books.counters.trained_turns += rollout.turns.len() as u64;
    }
    for ((domain, weights), number) in run.books.domains.iter_mut().zip(&weights).zip(0..) {
        let of_domain = groups.iter().map(|(_, group)| group).filter(|group| group.domain == number);
        domain.book_step(of_domain, weights);
    }
    let mean = |sum: f64| sum / count.max(1) as f64;
    let point =
        CurvePoint { version: made.0, success: mean(solved as f64), reward: mean(reward), at_ms: run.at_ms };
    run.books.add_point(point);
    out.push(Command::Notice(Box::new(Notice::Step(StepNotice {
        run: run.spec.name.clone(),
        version: made,
        success: point.success,
        reward: point.reward,
        sampled_tokens: tokens,
        max_staleness,
        unix_ms: run.now_unix_ms(),
        metrics: run.books.metrics.clone(),
    }))));
}
