//! The decisions that stand, for clients of this process. Only a leader that decides has any.

use std::collections::BTreeMap;
use std::sync::Arc;

use millrace_schemas::scale::Scaled;
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

/// The number that who starts and ends workers is told of a decision. A lower one comes late: first the
/// workers that the coordinator chose must be seen to leave, or Kubernetes ends others. Where all go, there is
/// nothing to choose.
#[must_use]
pub fn announced(last: &Scaled, unix_ms: u64) -> u32 {
    let falls = 0 < last.desired && last.desired < last.before;
    // Another coordinator's clock may be ahead.
    let is_new = u128::from(unix_ms.abs_diff(last.unix_ms)) < UNREADY.as_millis();
    if falls && is_new { last.before } else { last.desired }
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

    #[test]
    fn a_lower_number_is_told_once_the_chosen_workers_are_seen_to_leave() {
        let reason = ScaleReason { cause: ScaleCause::NoRun, limit: None, wanted: 0.0, budget: None };
        let at = |before, desired, age_ms: i64| {
            let pool = "gen".to_owned();
            let unix_ms = 1_000_000;
            let last = Scaled {
                pool,
                before,
                desired,
                leave: Vec::new(),
                unix_ms,
                dry_run: false,
                reason: reason.clone(),
            };
            announced(&last, unix_ms.saturating_add_signed(age_ms))
        };
        assert_eq!((at(5, 2, 0), at(5, 2, 7_999), at(5, 2, 8_000)), (5, 5, 2));
        assert_eq!((at(2, 5, 0), at(2, 2, 0)), (5, 2), "it falls alone");
        assert_eq!(at(5, 0, 0), 0, "all go");
        assert_eq!((at(5, 2, -7_999), at(5, 2, -3_600_000)), (5, 2), "a clock is ahead");
    }
}
