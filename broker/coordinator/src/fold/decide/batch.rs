//! Cuts a batch.

use std::collections::BTreeMap;

use crate::fold::books::DropReason;
use crate::fold::command::Commands;
use crate::fold::milestone::Milestone;
use crate::fold::rollout::Group;
use crate::fold::stages::train_shard;
use crate::fold::state::{Run, Training};
use crate::fold::window::{self, Ready};
use crate::fold::{domains, groups, purge};

/// Cuts a batch if enough groups are finished, no step is in progress, and no evaluation is in
/// progress.
pub(super) fn cut(run: &mut Run, out: &mut Commands) {
    let version = run.version();
    let idle = run.training.is_none() && run.evaluation.is_none() && run.policy.is_some();
    if !idle || !run.state.works() || version.0 >= run.spec.steps {
        return;
    }
    if run.ready.len() < run.spec.rollout.groups_per_step as usize {
        return;
    }
    let ready: Vec<Ready> = run
        .ready
        .iter()
        .map(|id| (id, &run.groups[id]))
        .map(|(id, group)| Ready { group: *id, domain: group.domain, staleness: group.staleness(version) })
        .collect();
    let Some(chosen) = window::choose_batch(&run.spec, domains::room(run), &ready) else { return };
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
