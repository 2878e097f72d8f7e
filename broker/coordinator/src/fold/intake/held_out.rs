//! Held-out prompts of the current evaluation: the first observation and the result of each.

use millrace_schemas::limits::MAX_SHOWN_BYTES;
use millrace_schemas::text::cut;
use millrace_schemas::{OutcomeBody, TaskKey};

use crate::fold::books::DropReason;
use crate::fold::milestone::Milestone;
use crate::fold::rollout::Rollout;
use crate::fold::spread::fingerprint;
use crate::fold::state::Run;

/// If the outcome is the reset of a held-out prompt, keeps the observation's fingerprint. Prompts
/// that were drawn twice count as one in the standard error.
pub(crate) fn shown(run: &mut Run, key: TaskKey, body: &OutcomeBody) {
    if let Some(evaluation) = run.evaluation.as_mut()
        && let TaskKey::EnvStep { rollout, turn: 0 } = key
        && evaluation.groups.contains_key(&rollout.group)
    {
        let shown = match body {
            OutcomeBody::EnvStep(done) => fingerprint(&done.observation),
            OutcomeBody::StepBrief(step) => step.check,
            _ => return,
        };
        evaluation.shown.insert(rollout.group, shown);
    }
}

/// Counts a prompt that was played to its end and scored.
pub(crate) fn finished(run: &mut Run, id: u64) {
    let Run { spec, evaluation, books, .. } = run;
    let Some(evaluation) = evaluation.as_mut() else { return };
    let Some(group) = evaluation.groups.remove(&id) else { return };
    // A snapshot of an older version has no fingerprints; its prompts count as distinct.
    let shown = evaluation.shown.remove(&id).unwrap_or(id);
    let weights = spec.part(group.domain).reward_weights();
    let rollouts = group.rollouts.len() as u32;
    let version = evaluation.version;
    let ended = group.ids(id).zip(&group.rollouts);
    books.milestones.add_each(ended, |(rollout, Rollout { success, .. })| Milestone::Evaluated {
        rollout,
        version,
        success: *success,
    });
    let solved = group.rollouts.iter().filter(|rollout| rollout.success).count() as u32;
    let reward: f64 = group.rollouts.iter().map(|rollout| rollout.reward(weights.iter().copied())).sum();
    evaluation.count(group.domain, |counts| {
        counts.finished += 1;
        counts.rollouts += rollouts;
        counts.solved += solved;
        counts.reward += reward;
        counts.spread.count(shown, rollouts, solved);
    });
}

/// Counts a prompt that is given up. It is neither solved nor unsolved.
pub(crate) fn failed(run: &mut Run, id: u64, reason: &str) {
    let Some(evaluation) = run.evaluation.as_mut() else { return };
    if let Some(group) = evaluation.groups.remove(&id) {
        let ended = group.ids(id).zip(&group.rollouts);
        run.books.milestones.add_each(ended, |(rollout, Rollout { busy_us, .. })| Milestone::Dropped {
            rollout,
            reason: DropReason::Failed.name(),
            busy_us: *busy_us,
        });
        evaluation.count(group.domain, |counts| counts.failed += 1);
        evaluation.reason = Some(cut(reason, MAX_SHOWN_BYTES).to_owned());
    }
}
