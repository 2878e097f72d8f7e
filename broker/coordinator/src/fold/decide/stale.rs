//! Restarts rollouts that became too old with a new version.

use millrace_schemas::{PolicyVersion, RolloutId};

use crate::fold::books::DropReason;
use crate::fold::command::Commands;
use crate::fold::state::Run;
use crate::fold::{groups, staleness, tasks, window};

/// Restarts rollouts below the floor of a new version, and rollouts at the floor beyond the share
/// of a batch that may be that old.
pub(super) fn restart(run: &mut Run, out: &mut Commands) {
    let floor = window::floor(&run.spec, run.version());
    restart_old(run, &|_, version| version < floor, out);
    let beyond = window::beyond_oldest_share(&run.spec, staleness::oldest(run));
    restart_old(run, &|group, version| version <= floor && beyond.contains(&group), out);
}

/// Restarts rollouts for which `is_old` holds, by group and version, at the current version.
/// Rollouts without a token are only stamped with it.
fn restart_old(run: &mut Run, is_old: &dyn Fn(u64, PolicyVersion) -> bool, out: &mut Commands) {
    let version = run.version();
    let mut stale = Vec::new();
    let mut unstarted = Vec::new();
    for (id, group) in &mut run.groups {
        for (rollout, index) in group.rollouts.iter_mut().zip(0..) {
            if !is_old(*id, rollout.version()) {
                continue;
            }
            let rollout_id = RolloutId { group: *id, index, attempt: rollout.attempt };
            // Where calls are side by side, it has no `start` before it is over.
            if !rollout.turns.is_empty() {
                stale.push(rollout_id);
            } else {
                rollout.stamp = version;
                unstarted.push(rollout_id);
            }
        }
    }
    for id in stale {
        groups::restart(run, id, DropReason::Stale, out);
    }
    for id in unstarted {
        tasks::put_rollout(run, id, out);
    }
}
