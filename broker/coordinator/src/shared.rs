//! The state as the driver, the API and the ticker of one process share it. The lock is held for a fold or a
//! look, never over I/O.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::state::State;

/// A handle on the state. Clones share it.
#[derive(Clone)]
pub struct Shared {
    state: Arc<Mutex<State>>,
    folded: Arc<watch::Sender<u64>>,
}

impl Shared {
    /// Shares `state`.
    #[must_use]
    pub fn new(state: State) -> Self {
        let seq = state.seq;
        Self { state: Arc::new(Mutex::new(state)), folded: Arc::new(watch::Sender::new(seq)) }
    }

    /// Looks at the state, or folds into it.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in the fold of a run closes that run; any other ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who wait that everything up to `seq` is folded.
    pub fn folded(&self, seq: u64) {
        self.folded.send_replace(seq);
    }

    /// Waits until the event at `seq` is folded.
    pub async fn wait_for(&self, seq: u64) {
        // The sender lives as long as `self`, so this ends by the condition alone.
        let _ = self.folded.subscribe().wait_for(|folded| *folded >= seq).await;
    }
}
