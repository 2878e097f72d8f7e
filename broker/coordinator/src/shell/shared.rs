//! The state that the driver, the API and the ticker of one process share. The lock is held for a
//! fold or a read, never during I/O.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::fold::state::State;

/// A handle on the state. Clones share it.
#[derive(Clone)]
pub struct SharedState {
    state: Arc<Mutex<State>>,
    folded: Arc<watch::Sender<u64>>,
    blocked: Arc<Mutex<Option<String>>>,
    /// The latest epoch that a key was seen to be written in.
    written_in: Arc<AtomicU64>,
}

impl SharedState {
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

    /// Locks the state, to read it or to fold into it.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in the fold of a run closes that run; any other ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a key was written in this epoch. The log and the lease may not have it: each
    /// may have lost its newest part.
    pub fn saw_epoch(&self, epoch: u64) {
        self.written_in.fetch_max(epoch, Ordering::Relaxed);
    }

    /// The latest epoch in which the log or a key is known to have been written. A leader's epoch
    /// must be later.
    #[must_use]
    pub fn latest_epoch(&self) -> u64 {
        self.lock().epoch.max(self.written_in.load(Ordering::Relaxed))
    }

    /// Announces that everything up to `seq` is folded.
    pub fn folded(&self, seq: u64) {
        self.folded.send_replace(seq);
    }

    /// Waits until the event at `seq` is folded. Returns whether it was within `patience`.
    pub async fn wait_for(&self, seq: u64, patience: Duration) -> bool {
        let mut folded = self.folded.subscribe();
        // The sender lives as long as `self`, so this ends by the condition or by time.
        timeout(patience, folded.wait_for(|folded| *folded >= seq)).await.is_ok()
    }

    /// Sets why the state must not be relied on; `None` if it may.
    pub fn block(&self, why: Option<String>) {
        *self.blocked.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why the state must not be relied on; `None` if it may.
    #[must_use]
    pub fn blocked(&self) -> Option<String> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
