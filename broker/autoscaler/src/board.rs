//! The decisions that stand, for clients of this process. Only a leader that decides has any.

use std::collections::BTreeMap;
use std::sync::Arc;

use millrace_schemas::scale::{PoolScale, Scaled};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::targets::UNREADY;

/// The standing decision about one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Workers that it is to have, as it is [`announced`].
    pub desired: u32,
    /// When it was last made or confirmed.
    pub decided: Instant,
    /// It was only computed: nothing is to follow from it.
    pub dry_run: bool,
}

/// The number that who starts and ends workers is told after these decisions, which come oldest first;
/// `None` without one. A lower one comes late: first the workers that the coordinator chose must be seen to
/// leave, or Kubernetes ends others. After a second fall soon after the first, both wait for the second's
/// workers. Where all go, there is nothing to choose.
pub fn announced<'a>(decisions: impl IntoIterator<Item = &'a Scaled>, unix_ms: u64) -> Option<u32> {
    // Another coordinator's clock may be ahead.
    let is_new = |fell_ms: u64, at_ms: u64| u128::from(at_ms.abs_diff(fell_ms)) < UNREADY.as_millis();
    // The number that is still told, and when the desired one last fell.
    let mut held: Option<(u32, u64)> = None;
    let mut desired = None;
    for decision in decisions {
        held = held.filter(|(_, fell_ms)| is_new(*fell_ms, decision.unix_ms));
        let told = held.map_or(decision.before, |(number, _)| number);
        let falls = 0 < decision.desired && decision.desired < decision.before;
        if decision.dry_run || decision.desired == 0 || decision.desired >= told {
            held = None;
        } else if falls {
            held = Some((told, decision.unix_ms));
        }
        desired = Some(decision.desired);
    }
    held.filter(|(_, fell_ms)| is_new(*fell_ms, unix_ms)).map(|(number, _)| number).or(desired)
}

/// The decisions about a pool, oldest first.
pub fn oldest_first(known: &PoolScale) -> impl Iterator<Item = &Scaled> {
    known.earlier.iter().rev().chain([&known.last])
}

/// By pool; empty while this process decides nothing.
pub type Decisions = BTreeMap<String, Standing>;

/// Written by the loop of the leader, read by the scaler endpoint. Clones share their content.
#[derive(Debug, Clone, Default)]
pub struct Board(Arc<watch::Sender<Decisions>>);

impl Board {
    /// A decision is in the log and stands.
    pub fn set(&self, pool: &str, standing: Standing) {
        self.0.send_modify(|decisions| {
            decisions.insert(pool.to_owned(), standing);
        });
    }

    /// This process decides nothing any more.
    pub fn clear(&self) {
        self.0.send_if_modified(|decisions| {
            let had = !decisions.is_empty();
            decisions.clear();
            had
        });
    }

    /// The decisions, now and as they change.
    #[must_use]
    pub fn follow(&self) -> watch::Receiver<Decisions> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use millrace_schemas::scale::{ScaleCause, ScaleReason};

    use super::*;

    const START_MS: u64 = 1_000_000;

    /// A decision so many milliseconds after the start.
    fn decision(age_ms: u64, before: u32, desired: u32) -> Scaled {
        Scaled {
            pool: "gen".to_owned(),
            before,
            desired,
            leave: Vec::new(),
            unix_ms: START_MS + age_ms,
            dry_run: false,
            reason: ScaleReason { cause: ScaleCause::NoRun, limit: None, wanted: 0.0, budget: None },
        }
    }

    #[test]
    fn a_lower_number_is_told_once_the_chosen_workers_are_seen_to_leave() {
        let at = |before, desired, age_ms: i64| {
            announced(&[decision(0, before, desired)], START_MS.saturating_add_signed(age_ms)).unwrap()
        };
        assert_eq!((at(5, 2, 0), at(5, 2, 7_999), at(5, 2, 8_000)), (5, 5, 2));
        assert_eq!((at(2, 5, 0), at(2, 2, 0)), (5, 2), "it falls alone");
        assert_eq!(at(5, 0, 0), 0, "all go");
        assert_eq!((at(5, 2, -7_999), at(5, 2, -3_600_000)), (5, 2), "a clock is ahead");
        assert_eq!(announced(&[], START_MS), None);
    }

    #[test]
    fn a_number_that_falls_twice_is_told_after_the_last_fall() {
        let told = |decisions: &[Scaled], times: &[u64]| -> Vec<u32> {
            times.iter().map(|at| announced(decisions, START_MS + at).unwrap()).collect()
        };
        let twice = [decision(0, 5, 4), decision(5_000, 4, 3)];
        assert_eq!(told(&twice, &[5_000, 8_500, 12_999, 13_000]), [5, 5, 5, 3]);
        let reason_alone = [decision(0, 5, 4), decision(5_000, 4, 4)];
        assert_eq!(told(&reason_alone, &[5_000, 7_999, 8_000]), [5, 5, 4]);
        let late = [decision(0, 5, 4), decision(8_000, 4, 3)];
        assert_eq!(told(&late, &[8_000, 15_999, 16_000]), [4, 4, 3], "the first was told before");
        let grows_a_little = [decision(0, 5, 3), decision(5_000, 3, 4)];
        assert_eq!(told(&grows_a_little, &[5_000, 8_000]), [5, 4]);
        let grows = [decision(0, 5, 3), decision(5_000, 3, 6), decision(6_000, 6, 5)];
        assert_eq!(told(&grows[..2], &[5_000]), [6]);
        assert_eq!(told(&grows, &[13_999, 14_000]), [6, 5]);
        let all_go = [decision(0, 5, 4), decision(5_000, 4, 0)];
        assert_eq!(told(&all_go, &[5_000]), [0]);
        let known = PoolScale { last: twice[1].clone(), earlier: vec![twice[0].clone()] };
        assert_eq!(announced(oldest_first(&known), START_MS + 8_500), Some(5));
    }
}
