//! Which run a server works for: it has one set of weights.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_schemas::RunId;
use tokio::time::Instant;

use super::session::Session;

/// The run that has the server.
#[derive(Debug)]
pub(super) struct Tenancy {
    pub(super) run: RunId,
    /// `None` until its first version is fetched.
    pub(super) session: Option<Arc<Session>>,
    usage: Arc<Usage>,
}

/// When the last task of the run ended here.
#[derive(Debug)]
struct Usage(Mutex<Instant>);

/// A task of the run that has the server. Until it is dropped, no other run gets the server.
#[derive(Debug)]
pub(in crate::generate) struct Admission(Arc<Usage>);

impl Drop for Admission {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl Tenancy {
    pub(super) fn new(run: RunId) -> Self {
        Self { run, session: None, usage: Arc::new(Usage(Mutex::new(Instant::now()))) }
    }

    pub(super) fn admit(&self) -> Admission {
        Admission(self.usage.clone())
    }

    /// Whether the run has had no task here for this long.
    pub(super) fn is_idle(&self, within: Duration) -> bool {
        let last = *self.usage.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::strong_count(&self.usage) == 1 && last.elapsed() >= within
    }

    /// Ends the session, for another run. `false` while its weights change.
    pub(super) fn yield_server(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.end_unused())
    }
}
