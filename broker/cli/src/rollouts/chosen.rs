//! The choice among rollouts: as many as are asked for are held, never more.

use millrace_schemas::{PolicyVersion, RolloutId, RunSpec};

use super::replay::{Fate, Played};

/// Which come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Those that ended last.
    Newest,
    /// Those with the highest reward; of equals the newest.
    Best,
    /// Those with the lowest reward; of equals the newest.
    Worst,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) order: Order,
    /// At most so many, 1 or more.
    pub(super) limit: usize,
    /// Only those of which this version sampled tokens.
    pub(super) version: Option<PolicyVersion>,
    /// Only this group.
    pub(super) group: Option<u64>,
    /// Held-out rollouts, or those for training; with a group, either.
    pub(super) evaluation: bool,
    /// Only those that were dropped, and these without a reward too.
    pub(super) dropped: bool,
    /// No run is named: there must be only one.
    pub(super) of_any_run: bool,
}

/// Rollouts chosen so far.
#[derive(Debug)]
pub(super) struct Chosen {
    wanted: Wanted,
    /// The first of the order come first. `[limit]` at most.
    rollouts: Vec<(Key, Played)>,
}

/// Sorts rollouts: by the first number, then by the position of their last outcome, both downwards.
type Key = (f64, u64);

impl Chosen {
    pub(super) const fn new(wanted: Wanted) -> Self {
        Self { wanted, rollouts: Vec::new() }
    }

    pub(super) const fn of_any_run(&self) -> bool {
        self.wanted.of_any_run
    }

    /// Takes in a rollout that ended, if it is among the first of those wanted.
    pub(super) fn consider(&mut self, played: Played, spec: &RunSpec) {
        let Some(key) = self.wanted.key(&played, spec) else { return };
        let before = |(other, _): &(Key, Played)| {
            other.0.total_cmp(&key.0).then(other.1.cmp(&key.1)) == std::cmp::Ordering::Greater
        };
        let at = self.rollouts.partition_point(before);
        if at < self.wanted.limit {
            self.rollouts.insert(at, (key, played));
            self.rollouts.truncate(self.wanted.limit);
        }
    }

    /// Something else became of a rollout that was considered before.
    pub(super) fn change(&mut self, id: RolloutId, fate: Fate) {
        for (_, played) in self.rollouts.iter_mut().filter(|(_, played)| played.id == id) {
            played.fate = fate;
        }
        let dropped = self.wanted.dropped;
        self.rollouts.retain(|(_, played)| !dropped || matches!(played.fate, Fate::Dropped { .. }));
    }

    pub(super) fn into_sorted(self) -> Vec<Played> {
        self.rollouts.into_iter().map(|(_, played)| played).collect()
    }
}

impl Wanted {
    /// Where a rollout belongs; `None` if it is not wanted.
    fn key(&self, played: &Played, spec: &RunSpec) -> Option<Key> {
        let reward = played.reward(&spec.part(played.domain).reward_weights());
        let is_dropped = matches!(played.fate, Fate::Dropped { .. });
        let kind = self.group.is_some() || self.evaluation == played.evaluate;
        let fits = self.group.is_none_or(|group| group == played.id.group)
            && self.version.is_none_or(|version| played.versions.contains(&version))
            && (!self.dropped || is_dropped);
        // One that was cut short has no text, or no reward; without one it has no place by reward.
        let whole = if self.dropped { !played.entries.is_empty() } else { reward.is_some() };
        let number = match self.order {
            Order::Newest => Some(0.0),
            Order::Best => reward,
            Order::Worst => reward.map(|reward| -reward),
        };
        (kind && fits && whole).then_some((number?, played.last))
    }
}
