//! Whether a coordinator makes progress. A leader without progress gives its lease up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::shell::lanes::Lanes;

/// Progress of the fold and of the lanes. Clones share it.
#[derive(Clone)]
pub struct Progress {
    fold: Arc<Mutex<Fold>>,
    lanes: Lanes,
}

#[derive(Default)]
struct Fold {
    /// When it last made progress; `None` while it waits for entries.
    busy: Option<Instant>,
    /// Why it must not lead.
    unfit: Option<String>,
}

impl Progress {
    /// Progress of a fold that has not started, and of these lanes.
    #[must_use]
    pub fn new(lanes: Lanes) -> Self {
        Self { fold: Arc::default(), lanes }
    }

    fn fold(&self) -> MutexGuard<'_, Fold> {
        // No code panics half-way.
        self.fold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fold is busy and made progress now.
    pub fn set_busy(&self) {
        self.fold().busy = Some(Instant::now());
    }

    /// The fold waits for entries.
    pub fn set_idle(&self) {
        self.fold().busy = None;
    }

    /// Sets why this coordinator must not lead; `None` if it may.
    pub fn set_unfit(&self, why: Option<String>) {
        self.fold().unfit = why;
    }

    /// Why this coordinator must not lead; `None` if it may.
    #[must_use]
    pub fn unfit(&self) -> Option<String> {
        self.fold().unfit.clone()
    }

    /// What made no progress for as long as `patience`; `None` if nothing.
    #[must_use]
    pub fn stalled(&self, patience: Duration) -> Option<&'static str> {
        if self.fold().busy.is_some_and(|since| since.elapsed() >= patience) {
            return Some("the fold makes no progress");
        }
        (self.lanes.stalled() >= patience).then_some("no command is completed, and a probe is not either")
    }

    /// Whether fold and lanes make progress.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.stalled(Duration::from_secs(1)).is_none()
    }

    /// Starts a probe if no lane made progress for as long as `patience`. The probe distinguishes a
    /// failing run from a failure of execution as a whole.
    pub fn watch(&self, patience: Duration) {
        if self.lanes.stalled() >= patience {
            self.lanes.probe();
        }
    }
}
