//! Whether a coordinator gets on. A leader that does not is none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::shell::lanes::Lanes;

/// What the fold and the lanes say of themselves. Clones share it.
#[derive(Clone)]
pub struct Progress {
    fold: Arc<Mutex<Fold>>,
    lanes: Lanes,
}

#[derive(Default)]
struct Fold {
    /// When it last got on with what it is at; `None` while it waits for entries.
    busy: Option<Instant>,
    /// Why it must not lead.
    unfit: Option<String>,
}

impl Progress {
    /// Of a fold that has not begun, and these lanes.
    #[must_use]
    pub fn new(lanes: Lanes) -> Self {
        Self { fold: Arc::default(), lanes }
    }

    fn fold(&self) -> MutexGuard<'_, Fold> {
        // No code panics half-way.
        self.fold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fold is at something, and got on with it just now.
    pub fn folds(&self) {
        self.fold().busy = Some(Instant::now());
    }

    /// The fold waits for entries.
    pub fn rests(&self) {
        self.fold().busy = None;
    }

    /// Why this coordinator must not lead; `None` when it may.
    pub fn set_unfit(&self, why: Option<String>) {
        self.fold().unfit = why;
    }

    /// Why this coordinator must not lead.
    #[must_use]
    pub fn unfit(&self) -> Option<String> {
        self.fold().unfit.clone()
    }

    /// What did not get on for as long as `patience`.
    #[must_use]
    pub fn stalled(&self, patience: Duration) -> Option<&'static str> {
        if self.fold().busy.is_some_and(|since| since.elapsed() >= patience) {
            return Some("folding does not get on");
        }
        (self.lanes.stalled() >= patience).then_some("no command gets done, and neither does a probe")
    }

    /// Whether there is nothing that does not get on.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.stalled(Duration::from_secs(1)).is_none()
    }

    /// Asks for proof that executing works, where no lane got on for as long as this: it may be a run's own trouble.
    pub fn watch(&self, patience: Duration) {
        if self.lanes.stalled() >= patience {
            self.lanes.probe();
        }
    }
}
