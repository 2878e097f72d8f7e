//! Removes groups from the window, and restarts rollouts within them.

use millrace_schemas::RolloutId;

use crate::fold::books::DropReason;
use crate::fold::command::Commands;
use crate::fold::context::TaskContext;
use crate::fold::milestone::Milestone;
use crate::fold::rollout::{Group, Phase};
use crate::fold::state::Run;
use crate::fold::tasks;

/// Drops all groups that are not in training.
pub(crate) fn drop_all(run: &mut Run, reason: DropReason) {
    let ids: Vec<u64> = run.groups.keys().copied().collect();
    for id in ids {
        remove(run, id, |_| reason);
    }
}

/// Drops a group, each rollout with its reason.
pub(crate) fn remove(run: &mut Run, id: u64, reason: impl Fn(u32) -> DropReason) {
    let Some(group) = run.groups.remove(&id) else { return };
    run.ready.retain(|ready| *ready != id);
    for (id, rollout) in group.ids(id).zip(&group.rollouts) {
        let reason = reason(id.index);
        run.books.drop_rollout(id, group.domain, reason, rollout.busy_us);
        if reason == DropReason::Surplus {
            run.books.counters.surplus_turns += rollout.turns.len() as u64;
        }
    }
}

/// Counts the rollout as dropped, and starts its replacement at the current version.
pub(crate) fn restart(run: &mut Run, id: RolloutId, reason: DropReason, out: &mut Commands) {
    let version = run.version();
    let (evaluate_temperature, _) = run.evaluate_pass();
    let ready = run.ready.iter().position(|group| *group == id.group);
    let Run { spec, groups, evaluation, books, ready: ready_groups, .. } = run;
    let evaluating = evaluation.as_mut().and_then(|evaluation| evaluation.groups.get_mut(&id.group));
    let evaluate = evaluating.is_some();
    let Some(group) = evaluating.or_else(|| groups.get_mut(&id.group)) else { return };
    let Group { domain, prompt, start, rollouts, playing } = group;
    let (domain, prompt) = (*domain, *prompt);
    let Some(rollout) = rollouts.get_mut(id.index as usize) else { return };
    let (dropped, busy_us) = (RolloutId { attempt: rollout.attempt, ..id }, rollout.busy_us);
    let replacement = RolloutId { attempt: rollout.attempt + 1, ..id };
    if evaluate {
        let (reason, rollout) = (reason.name(), replacement);
        books.milestones.add(|| Milestone::Dropped { rollout: dropped, reason, busy_us });
        books.milestones.add(|| Milestone::Admitted { rollout, version, evaluate });
    } else {
        books.drop_rollout(dropped, domain, reason, busy_us);
        books.admit(replacement, domain, version);
    }
    if rollout.phase == Phase::Finished {
        *playing += 1;
        if let Some(at) = ready {
            ready_groups.remove(at);
        }
    }
    rollout.replace(version, start.as_ref());
    let (id, domain) = (replacement, spec.part(domain));
    let context = TaskContext { spec, version, evaluate, evaluate_temperature, id, domain, prompt };
    tasks::put(&context, rollout, out);
}
