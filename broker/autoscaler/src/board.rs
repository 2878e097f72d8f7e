//! The decisions that stand, for clients of this process. Only a leader that decides has any.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

/// The standing decision about one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Workers that it is to have.
    pub desired: u32,
    /// When it was last made or confirmed.
    pub decided: Instant,
    /// It was only computed: nothing is to follow from it.
    pub dry_run: bool,
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
