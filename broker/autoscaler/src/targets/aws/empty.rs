//! Instances on which no worker lives: they start, their worker drained, or it never came up. Pure; AWS
//! does not tell when an instance started, so times count from when this process first saw it.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_aws::{GroupState, Instance, Phase};
use tokio::time::Instant;

use super::{Machines, active};

/// An instance may be without a worker for this long at least: fetching a release and weights takes
/// minutes, and heartbeats may be lost meanwhile.
const LEAST: Duration = Duration::from_secs(5 * 60);
/// A start-up that was measured longer than this is taken for a lack of capacity.
const LONGEST_START_UP: Duration = Duration::from_secs(60 * 60);
/// The patience doubles so often at most: 5 minutes become 5 hours.
const DOUBLINGS: u32 = 6;
/// After so long without a look, heartbeats were not heard either: times count from now.
const GAP: Duration = Duration::from_secs(3 * 60);

/// What was seen of one instance.
#[derive(Debug, Clone, Copy)]
struct Vacancy {
    first: Instant,
    /// In service and without a worker since then; `None` while it starts, or while a worker lives on it.
    empty: Option<Instant>,
    /// A worker lived on it.
    served: bool,
}

/// The instances of one group, and the replacements of those without a worker.
#[derive(Debug, Default)]
pub(super) struct Empty {
    seen: BTreeMap<String, Vacancy>,
    looked: Option<Instant>,
    /// Replacements since an instance last came up.
    in_a_row: u32,
    last: Option<Instant>,
}

impl Empty {
    /// Takes in a group's state.
    pub(super) fn look(&mut self, state: &GroupState, machines: &Machines, now: Instant) {
        if self.looked.replace(now).is_none_or(|looked| now.duration_since(looked) > GAP) {
            self.seen.clear();
        }
        self.seen.retain(|id, _| active(state).any(|instance| instance.id == *id));
        for instance in active(state) {
            let new = Vacancy { first: now, empty: None, served: false };
            let seen = self.seen.entry(instance.id.clone()).or_insert(new);
            if machines.occupied.contains(&instance.id) {
                if !seen.served && seen.first < now {
                    // It came up while this process looked: starting works.
                    self.in_a_row = 0;
                }
                (seen.served, seen.empty) = (true, None);
            } else if instance.phase == Phase::InService && machines.all_known {
                seen.empty.get_or_insert(now);
            } else {
                seen.empty = None;
            }
        }
    }

    /// The active instances without a worker: first those that AWS still starts, then the youngest.
    pub(super) fn youngest_first(&self, state: &GroupState, machines: &Machines) -> Vec<String> {
        let mut empty: Vec<_> =
            active(state).filter(|instance| !machines.occupied.contains(&instance.id)).collect();
        empty.sort_by_key(|instance| {
            let first = self.seen.get(&instance.id).map(|seen| seen.first);
            (instance.phase == Phase::Pending, first, &instance.id)
        });
        empty.into_iter().rev().map(|instance| instance.id.clone()).collect()
    }

    /// The instance that has been without a worker for longest, and for how many seconds, if that is
    /// longer than a start takes. One at a time: the next is due when this one's replacement had as long.
    /// Each replacement doubles the patience until an instance comes up, so that one whose start is slow
    /// is not ended again and again.
    pub(super) fn overdue(&self, state: &GroupState, start_up: Duration) -> Option<(String, u64)> {
        let now = self.looked?;
        let patience = LEAST.max(start_up.min(LONGEST_START_UP)) * 2_u32.pow(self.in_a_row.min(DOUBLINGS));
        if self.last.is_some_and(|last| now.duration_since(last) < patience) {
            return None;
        }
        let empty = active(state).filter_map(|Instance { id, .. }| Some((self.seen.get(id)?.empty?, id)));
        let (since, id) = empty.min()?;
        let empty = now.duration_since(since);
        (empty >= patience).then(|| (id.clone(), empty.as_secs()))
    }

    /// AWS replaces this instance.
    pub(super) fn replaced(&mut self, instance: &str) {
        self.seen.remove(instance);
        (self.last, self.in_a_row) = (self.looked, self.in_a_row.saturating_add(1));
    }
}
