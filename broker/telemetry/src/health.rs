//! How a process is, for `/healthz`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;

/// Told by the process, asked by the HTTP server. Clones share their content.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    connected: bool,
    leader: Option<bool>,
    stages: Vec<String>,
    progress: Option<Instant>,
    troubles: BTreeMap<String, String>,
}

/// What `/healthz` says, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The queue answers. The status is 200 when it does, else 503.
    pub connected: bool,
    /// This coordinator acts; `None` for other processes.
    pub leader: Option<bool>,
    /// The stages that a worker serves.
    pub stages: Vec<String>,
    /// Milliseconds since something was last done; `None` while nothing was.
    pub last_progress_ms_ago: Option<u64>,
    /// What does not get on, by what is concerned (a run's name, for example), and why. Empty when all is well.
    pub troubles: BTreeMap<String, String>,
}

impl Health {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here can be left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the queue answers.
    pub fn set_connected(&self, connected: bool) {
        self.state().connected = connected;
    }

    /// Whether this coordinator acts.
    pub fn set_leader(&self, leader: bool) {
        self.state().leader = Some(leader);
    }

    /// The stages that this worker serves.
    pub fn set_stages(&self, stages: impl IntoIterator<Item = String>) {
        self.state().stages = stages.into_iter().collect();
    }

    /// Something was done just now.
    pub fn progress(&self) {
        self.state().progress = Some(Instant::now());
    }

    /// What is concerned does not get on, and why; `None` when it gets on again.
    pub fn set_trouble(&self, what: &str, why: Option<String>) {
        let mut state = self.state();
        match why {
            Some(why) => state.troubles.insert(what.to_owned(), why),
            None => state.troubles.remove(what),
        };
    }

    /// What `/healthz` says now.
    #[must_use]
    pub fn report(&self) -> Report {
        let state = self.state();
        Report {
            connected: state.connected,
            leader: state.leader,
            stages: state.stages.clone(),
            last_progress_ms_ago: state.progress.map(|at| at.elapsed().as_millis() as u64),
            troubles: state.troubles.clone(),
        }
    }
}
