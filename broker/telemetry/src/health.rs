//! The health of a process, for `/healthz` and as metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;

/// Set by the process, read by the HTTP server. Clones share their content.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<HealthState>>);

#[derive(Debug, Default)]
struct HealthState {
    connected: bool,
    leader: Option<bool>,
    stages: Vec<String>,
    progress: Option<Instant>,
    troubles: BTreeMap<String, String>,
    leaving: bool,
}

/// The response of `/healthz`, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether the queue responds. The HTTP status is 200 if it does and the process does not leave,
    /// else 503.
    pub connected: bool,
    /// Whether this coordinator is the leader; `None` for other processes.
    pub leader: Option<bool>,
    /// The stages that a worker serves.
    pub stages: Vec<String>,
    /// Milliseconds since the last progress; `None` before the first.
    pub last_progress_ms_ago: Option<u64>,
    /// Reasons why something makes no progress, by its name (a run's, for example). Empty if all is
    /// well.
    pub troubles: BTreeMap<String, String>,
    /// Whether the process was asked to leave and takes nothing new.
    pub leaving: bool,
}

impl Health {
    fn state(&self) -> MutexGuard<'_, HealthState> {
        // A panic cannot leave the content half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether the queue responds.
    pub fn set_connected(&self, connected: bool) {
        self.state().connected = connected;
        metrics::gauge!("millrace_connected").set(f64::from(u8::from(connected)));
    }

    /// Sets whether this coordinator is the leader.
    pub fn set_leader(&self, leader: bool) {
        self.state().leader = Some(leader);
        metrics::gauge!("millrace_leader").set(f64::from(u8::from(leader)));
    }

    /// Records that this process was asked to leave.
    pub fn set_leaving(&self) {
        self.state().leaving = true;
    }

    /// The stages that this worker serves.
    pub fn set_stages(&self, stages: impl IntoIterator<Item = String>) {
        self.state().stages = stages.into_iter().collect();
    }

    /// Records progress.
    pub fn progress(&self) {
        self.state().progress = Some(Instant::now());
    }

    /// Sets why `what` makes no progress; `None` if it does again.
    pub fn set_trouble(&self, what: &str, why: Option<String>) {
        let mut state = self.state();
        metrics::gauge!("millrace_trouble", "what" => what.to_owned())
            .set(f64::from(u8::from(why.is_some())));
        match why {
            Some(why) => state.troubles.insert(what.to_owned(), why),
            None => state.troubles.remove(what),
        };
    }

    /// The response of `/healthz` now.
    #[must_use]
    pub fn report(&self) -> Report {
        let state = self.state();
        Report {
            connected: state.connected,
            leader: state.leader,
            stages: state.stages.clone(),
            last_progress_ms_ago: state.progress.map(|at| at.elapsed().as_millis() as u64),
            troubles: state.troubles.clone(),
            leaving: state.leaving,
        }
    }
}
