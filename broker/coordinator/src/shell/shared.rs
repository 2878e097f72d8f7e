//! The state as the driver, the API and the ticker of one process share it. The lock is held for a fold or a
//! look, never over I/O.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::fold::state::State;

/// A handle on the state. Clones share it.
#[derive(Clone)]
pub struct Shared {
    state: Arc<Mutex<State>>,
    folded: Arc<watch::Sender<u64>>,
    blocked: Arc<Mutex<Option<String>>>,
    /// The latest epoch that a key was seen to be written in.
    written_in: Arc<AtomicU64>,
}

impl Shared {
    /// Shares `state`.
    #[must_use]
    pub fn new(state: State) -> Self {
        let seq = state.seq;
        let folded = Arc::new(watch::Sender::new(seq));
        Self {
            state: Arc::new(Mutex::new(state)),
            folded,
            blocked: Arc::default(),
            written_in: Arc::default(),
        }
    }

    /// Looks at the state, or folds into it.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in the fold of a run closes that run; any other ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key was written in this epoch. The log may not know of it, nor the lease: each may have lost its newest part.
    pub fn saw_epoch(&self, epoch: u64) {
        self.written_in.fetch_max(epoch, Ordering::Relaxed);
    }

    /// The latest epoch that the log or a key is known to have been written in. Who begins to lead, or leads, is later.
    #[must_use]
    pub fn latest_epoch(&self) -> u64 {
        self.lock().epoch.max(self.written_in.load(Ordering::Relaxed))
    }

    /// Tells those who wait that everything up to `seq` is folded.
    pub fn folded(&self, seq: u64) {
        self.folded.send_replace(seq);
    }

    /// Waits until the event at `seq` is folded; says whether it was within `patience`.
    pub async fn wait_for(&self, seq: u64, patience: Duration) -> bool {
        let mut folded = self.folded.subscribe();
        // The sender lives as long as `self`, so this ends by the condition or by time.
        timeout(patience, folded.wait_for(|folded| *folded >= seq)).await.is_ok()
    }

    /// What the state says is not to be believed, and why; `None` where it is again.
    pub fn block(&self, why: Option<String>) {
        *self.blocked.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why what the state says is not to be believed.
    #[must_use]
    pub fn blocked(&self) -> Option<String> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
