//! Whether a full batch waits for groups in play. With each version the groups that began too long
//! ago start again, and those are the longest: without patience, training sees fewer of them than
//! were begun.

use std::collections::BTreeSet;

use millrace_schemas::PolicyVersion;

use crate::fold::domains;
use crate::fold::rollout::{Group, Phase, Rollout};
use crate::fold::state::Run;
use crate::fold::window::{self, Ready};

/// Since when a batch of the groups `chosen` waits; `None` if it is to be cut now or if there is
/// none.
pub(super) fn held_since(run: &mut Run, chosen: Option<&[u64]>) -> Option<u64> {
    let since = run.held_since_ms.unwrap_or(run.at_ms);
    let waited = run.at_ms.saturating_sub(since);
    if waited < run.spec.rollout.patience_ms && chosen.is_some_and(|chosen| waiting_helps(run, chosen)) {
        return Some(since);
    }
    run.books.counters.held_ms += waited;
    None
}

/// Whether the step would make fewer groups too old if the groups in play finished before it. The
/// last step makes none too old.
fn waiting_helps(run: &Run, chosen: &[u64]) -> bool {
    let bound = run.spec.max_staleness();
    if bound == 0 || run.version().next().0 >= run.spec.steps {
        return false;
    }
    let too_old = made_too_old(run, chosen);
    let finished: Vec<Ready> = run.groups.iter().map(|(id, group)| ready(run, *id, group)).collect();
    let best = || window::choose_batch(&run.spec, domains::room(run), &finished);
    too_old > 0 && best().is_some_and(|best| made_too_old(run, &best) < too_old)
}

/// How many groups that were begun the version made from `chosen` makes too old, as `stale::restart`
/// judges them.
fn made_too_old(run: &Run, chosen: &[u64]) -> usize {
    let next = run.version().next();
    let (bound, floor) = (run.spec.max_staleness(), window::floor(&run.spec, next));
    let chosen: BTreeSet<u64> = chosen.iter().copied().collect();
    let others = || run.groups.iter().filter(|(id, _)| !chosen.contains(id));
    let oldest = others().filter(|(_, group)| group.staleness(next) == bound);
    let oldest = oldest.map(|(id, group)| (group.playing > 0, *id)).collect();
    let beyond: BTreeSet<u64> = window::beyond_oldest_share(&run.spec, oldest).into_iter().collect();
    let is_too_old = |(id, group): &(&u64, &Group)| {
        oldest_begun(group).is_some_and(|start| start < floor || start == floor && beyond.contains(id))
    };
    others().filter(is_too_old).count()
}

/// The oldest version of a group's rollouts, without those of which no turn was asked for. A first
/// turn in play has no token here and starts again all the same.
fn oldest_begun(group: &Group) -> Option<PolicyVersion> {
    let begun = group.rollouts.iter().filter(|rollout| rollout.phase != Phase::Reset);
    begun.map(Rollout::version).min()
}

/// A group as if it was finished.
pub(super) fn ready(run: &Run, id: u64, group: &Group) -> Ready {
    Ready { group: id, domain: group.domain, staleness: group.staleness(run.version()) }
}
