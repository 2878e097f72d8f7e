//! Cuts a batch.

use std::collections::BTreeMap;

use crate::fold::books::DropReason;
use crate::fold::command::Commands;
use crate::fold::decide::patience;
use crate::fold::milestone::Milestone;
use crate::fold::rollout::Group;
use crate::fold::stages::train_shard;
use crate::fold::state::{Run, Training};
use crate::fold::window::{self, Ready};
use crate::fold::{domains, groups, purge};

/// Cuts a batch if enough groups are finished, no step is in progress, no evaluation is in progress,
/// and it does not wait for older groups.
pub(super) fn cut(run: &mut Run, out: &mut Commands) {
    let chosen = chosen(run);
    run.held_since_ms = patience::held_since(run, chosen.as_deref());
    let Some(chosen) = chosen.filter(|_| run.held_since_ms.is_none()) else { return };
    let version = run.version();
    run.ready.retain(|group| !chosen.contains(group));
    let groups: Vec<(u64, Group)> = chosen
        .iter()
        .map(|id| (*id, run.groups.remove(id).expect("finished groups are in the state until they are cut")))
        .collect();
    let makes = version.next();
    let rollouts = || groups.iter().flat_map(|(id, group)| group.ids(*id)).collect();
    run.books.milestones.add(|| Milestone::Cut { makes, rollouts: rollouts() });
    let training = Training {
        makes,
        attempt: 0,
        ranks: None,
        groups,
        batch: None,
        manifest: None,
        shards: BTreeMap::new(),
    };
    let batch = train_shard::stored_batch(run, &training);
    run.training = Some(Training { batch, ..training });
    // The next step cannot use them, and they could occupy workers for a long time.
    if run.spec.max_staleness() == 0 && !run.groups.is_empty() {
        groups::drop_all(run, DropReason::Surplus);
        purge::of_version(run, version, out);
    }
}

/// The groups of a batch that could be cut now.
fn chosen(run: &Run) -> Option<Vec<u64>> {
    let idle = run.training.is_none() && run.evaluation.is_none() && run.policy.is_some();
    if !idle || !run.state.works() || run.version().0 >= run.spec.steps {
        return None;
    }
    if run.ready.len() < run.spec.rollout.groups_per_step as usize {
        return None;
    }
    let ready: Vec<Ready> = run.ready.iter().map(|id| patience::ready(run, *id, &run.groups[id])).collect();
    window::choose_batch(&run.spec, domains::room(run), &ready)
}
