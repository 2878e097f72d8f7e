//! Snapshots are taken beside the fold: the state is copied under its lock and encoded, written and proved outside of
//! it. Only the leader writes them. One that fails is tried again with back-off.

use std::time::Duration;

use millrace_queue::{Broker, BrokerError};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::Driver;
use super::trimming::Need;
use crate::fold::state::State;
use crate::shell::journal;

/// Before a snapshot that failed is tried again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// For the last snapshot of a coordinator that leaves. Without it the next one folds more of the log.
const LAST: Duration = Duration::from_secs(10);
/// Groups above which a state is encoded off the async threads.
const LARGE_GROUPS: usize = 256;

/// How snapshots stand.
pub(super) struct Snapshots {
    /// Position of the newest that was written, or found.
    pub(super) saved: u64,
    /// The one under way.
    pub(super) writing: JoinSet<Result<Need, BrokerError>>,
    not_before: Instant,
    pause: Duration,
}

impl Snapshots {
    pub(super) fn new(saved: u64) -> Self {
        Self { saved, writing: JoinSet::new(), not_before: Instant::now(), pause: FIRST_PAUSE }
    }

    /// Takes in how the one under way ended.
    pub(super) fn written(&mut self, result: Result<Need, BrokerError>) {
        match result {
            Ok(need) => (self.saved, self.pause) = (self.saved.max(need.seq), FIRST_PAUSE),
            // The log holds everything that the snapshot would have.
            Err(error) => {
                tracing::warn!(%error, pause = ?self.pause, "failed to write a snapshot; trying again later");
                self.not_before = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

impl Driver {
    /// Begins a snapshot where one is due and none is under way.
    pub(super) fn save_where_due(&mut self) {
        let Snapshots { saved, writing, not_before, .. } = &mut self.snapshots;
        if !self.acting || !writing.is_empty() || Instant::now() < *not_before {
            return;
        }
        if self.shared.lock().seq >= *saved + self.config.snapshot_events {
            let state = self.shared.lock().clone();
            writing.spawn(write(self.broker.clone(), self.config.instance.clone(), state));
        }
    }

    /// Writes a snapshot on leaving, if this coordinator leads and there is something new.
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

/// Writes a snapshot; says what whoever loads it needs of the log.
async fn write(broker: Broker, instance: String, state: State) -> Result<Need, BrokerError> {
    let need = Need::of(&state);
    let groups: usize = state.runs.values().map(|run| run.groups.len()).sum();
    let content = if groups > LARGE_GROUPS {
        let encode = move || journal::encode_state(&state);
        tokio::task::spawn_blocking(encode).await.expect("encoding does not panic")
    } else {
        journal::encode_state(&state)
    };
    journal::save(&broker, &instance, need.seq, content).await?;
    Ok(need)
}
