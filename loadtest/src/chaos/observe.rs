//! Watches the log from outside and notes when the outcome of each task was seen.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_queue::{Broker, Log, Objects};
use millrace_schemas::{Event, OutcomeBody, RunId, TaskKey};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::player::Player;
use crate::checkers::{PolicyWatch, SnapshotWatch};

/// Entries read at once.
const AT_ONCE: usize = 1_024;
/// Before the log is read again after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// An outcome in the log.
#[derive(Debug, Clone)]
pub struct ObservedTurn {
    /// Seconds from the beginning to when it was seen.
    pub at_s: f64,
    /// The run.
    pub run: RunId,
    /// The task.
    pub key: TaskKey,
    /// Tokens sampled; 0 for all but `generate`.
    pub tokens: u64,
}

/// Watches until it is stopped.
pub struct Observer {
    seen: Arc<Mutex<Vec<ObservedTurn>>>,
    policies: PolicyWatch,
    snapshots: SnapshotWatch,
    watching: [JoinHandle<()>; 3],
}

impl Observer {
    /// Begins to watch; time counts from `began`.
    ///
    /// # Errors
    /// The queue or the object store cannot be reached.
    pub async fn start(url: &str, objects: &Path, began: Instant) -> anyhow::Result<Self> {
        let player = Player::connect(url, "observer").await?;
        let broker = Broker::new(player.queue().clone(), Objects::open(&objects.to_string_lossy())?);
        let seen = Arc::<Mutex<Vec<ObservedTurn>>>::default();
        let (policies, snapshots) = (PolicyWatch::default(), SnapshotWatch::default());
        let watching = [
            tokio::spawn(policies.clone().run(broker.clone())),
            tokio::spawn(snapshots.clone().run(broker.clone())),
            tokio::spawn(watch(broker, seen.clone(), began)),
        ];
        Ok(Self { seen, policies, snapshots, watching })
    }

    /// Every value of the policy keys that was seen.
    #[must_use]
    pub const fn policies(&self) -> &PolicyWatch {
        &self.policies
    }

    /// Every snapshot that was named, loaded at that moment.
    #[must_use]
    pub const fn snapshots(&self) -> &SnapshotWatch {
        &self.snapshots
    }

    /// Ends the observation and returns its record.
    #[must_use]
    pub fn stop(self) -> Vec<ObservedTurn> {
        self.watching.iter().for_each(JoinHandle::abort);
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Consumes the log. Produces notes. Waits for entries. Ends when aborted. On failure: reads on after a pause.
async fn watch(broker: Broker, seen: Arc<Mutex<Vec<ObservedTurn>>>, began: Instant) {
    let mut log = loop {
        match broker.read_log(1).await {
            Ok(log) => break log,
            Err(_) => sleep(PAUSE).await,
        }
    };
    loop {
        match next(&mut log, began).await {
            Ok(new) => seen.lock().unwrap_or_else(PoisonError::into_inner).extend(new),
            Err(error) => {
                tracing::debug!(%error, "the log cannot be read now");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn next(log: &mut Log, began: Instant) -> Result<Vec<ObservedTurn>, millrace_queue::BrokerError> {
    let entries = log.next(AT_ONCE).await?;
    let at_s = began.elapsed().as_secs_f64();
    let seen = entries.into_iter().filter_map(|entry| {
        let Ok(Event::Outcome(outcome)) = entry.event else { return None };
        let tokens =
            if let OutcomeBody::Generate(done) = outcome.body { done.tokens.len() as u64 } else { 0 };
        Some(ObservedTurn { at_s, run: entry.run.parse().ok()?, key: outcome.key, tokens })
    });
    Ok(seen.collect())
}
