//! Snapshots are taken beside the fold. The state is copied under its lock, and encoded, written
//! and verified outside of it. Only the leader writes them. A failed snapshot is retried with
//! back-off.

use std::time::Duration;

use millrace_queue::{Broker, BrokerError};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::Driver;
use crate::fold::state::State;
use crate::shell::journal;

/// Age of a snapshot after which the next is written, however few events came since.
const EVERY: Duration = Duration::from_secs(600);
/// Pause before a failed snapshot is retried; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How long a coordinator that shuts down tries to write a last snapshot. Without it the next
/// leader folds more of the log.
const LAST: Duration = Duration::from_secs(10);
/// Groups above which a state is encoded off the async threads.
const LARGE_GROUPS: usize = 256;

/// Progress of snapshots.
pub(super) struct Snapshots {
    /// Position of the newest snapshot that was written or loaded.
    pub(super) saved: u64,
    /// When that was.
    saved_at: Instant,
    /// The current snapshot; returns its position. Empty between snapshots.
    pub(super) writing: JoinSet<Result<u64, BrokerError>>,
    not_before: Instant,
    pause: Duration,
}

impl Snapshots {
    pub(super) fn new(saved: u64) -> Self {
        let now = Instant::now();
        Self { saved, saved_at: now, writing: JoinSet::new(), not_before: now, pause: FIRST_PAUSE }
    }

    /// Records the result of a snapshot.
    pub(super) fn written(&mut self, result: Result<u64, BrokerError>) {
        match result {
            Ok(seq) => {
                (self.saved, self.pause) = (self.saved.max(seq), FIRST_PAUSE);
                self.saved_at = Instant::now();
            }
            // Nothing is lost: the log holds everything that the snapshot would have.
            Err(error) => {
                tracing::warn!(%error, pause = ?self.pause, "failed to write a snapshot; retrying after a pause");
                self.not_before = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

impl Driver {
    /// Starts a snapshot if one is due and none is running: after so many events, or so long after
    /// the one before. The log is trimmed behind snapshots, so one is due sooner while the log has
    /// little room left.
    pub(super) fn save_where_due(&mut self) {
        let Snapshots { saved, saved_at, writing, not_before, .. } = &mut self.snapshots;
        if !self.acting || !writing.is_empty() || Instant::now() < *not_before {
            return;
        }
        let every = if self.trimming.pressed { self.config.trim.every.min(EVERY) } else { EVERY };
        let news = self.shared.lock().seq.saturating_sub(*saved);
        if news >= self.config.snapshot_events || (news > 0 && saved_at.elapsed() >= every) {
            let state = self.shared.lock().clone();
            writing.spawn(write(self.broker.clone(), self.config.instance.clone(), state));
        }
    }

    /// Writes a snapshot at shutdown, if this coordinator leads and the state has changed.
    pub(super) async fn save_last(&mut self) {
        self.snapshots.writing.shutdown().await;
        let state = self.shared.lock().clone();
        if !self.acting || state.seq == self.snapshots.saved {
            return;
        }
        let last = write(self.broker.clone(), self.config.instance.clone(), state);
        match timeout(LAST, last).await {
            Ok(result) => self.snapshots.written(result),
            Err(_) => tracing::warn!("failed to write a last snapshot in time"),
        }
    }
}

/// Writes a snapshot. Returns its position.
async fn write(broker: Broker, instance: String, state: State) -> Result<u64, BrokerError> {
    let seq = state.seq;
    let groups: usize = state.runs.values().map(|run| run.groups.len()).sum();
    let content = if groups > LARGE_GROUPS {
        let encode = move || journal::encode_state(&state);
        tokio::task::spawn_blocking(encode).await.expect("encoding does not panic")
    } else {
        journal::encode_state(&state)
    };
    journal::save(&broker, &instance, seq, content).await?;
    Ok(seq)
}
