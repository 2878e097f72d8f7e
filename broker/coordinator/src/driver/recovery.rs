//! What a coordinator does when the queue is not what it was: catch up, fold anew, mend keys, do it all again.

use millrace_queue::{BrokerError, Log, Logged, QueueError};
use millrace_schemas::RunId;
use millrace_schemas::notice::Notice;
use millrace_schemas::policy::Policy;

use super::{Driver, FOLD_AT_ONCE};
use crate::state::State;
use crate::{execute, journal};

impl Driver {
    /// Those of `entries` that are not folded yet. A reader of the log begins with the entry that was folded last: that
    /// it stands is proof that the log is what the state was made from.
    pub(super) fn fresh(&self, mut entries: Vec<Logged>) -> Result<Vec<Logged>, BrokerError> {
        let state = self.shared.lock();
        let (seq, stored_ns) = (state.seq, state.stored_ns);
        drop(state);
        if entries.iter().any(|entry| entry.seq == seq && stored_ns != 0 && entry.stored_ns != stored_ns) {
            return Err(QueueError::Lost { seq }.into());
        }
        entries.retain(|entry| entry.seq > seq);
        Ok(entries)
    }

    /// Folds all that the log holds by now.
    pub(super) async fn catch_up(&mut self, log: &mut Log) -> Result<(), BrokerError> {
        let end = self.broker.queue().log_end().await?;
        while self.shared.lock().seq < end {
            let entries = log.next(FOLD_AT_ONCE).await;
            self.on_entries(entries).await;
            if self.lost {
                return Err(QueueError::Lost { seq: self.shared.lock().seq }.into());
            }
        }
        Ok(())
    }

    /// The log lost entries that were folded: the state is made anew from what is left. What the lost part held
    /// is done again.
    pub(super) async fn recover(&mut self) -> Result<Log, BrokerError> {
        let state = journal::restore(&self.broker).await?;
        let log = self.broker.read_log(state.seq.max(1)).await?;
        let end = self.broker.queue().log_end().await?;
        let (from, to) = (end.min(state.seq) + 1, self.shared.lock().seq);
        self.saved = state.seq;
        let seq = state.seq;
        *self.shared.lock() = state;
        self.shared.folded(seq);
        self.acting = false;
        execute::tell(&self.broker, &Notice::LogLost { from, to }).await;
        Ok(log)
    }

    /// Takes back from the policy keys what the log does not know: that a run has ended, or that a step is void. It
    /// knew once, and lost it. Whoever else acts writes a key only after the log has its reason; so what the key
    /// said before the log was read to its end, and the log does not say, is lost.
    pub(super) async fn mend_keys(&mut self, log: &mut Log) -> Result<(), BrokerError> {
        let live: Vec<RunId> = live_runs(&self.shared.lock());
        let mut keys = Vec::new();
        for run in live {
            if let Some((policy, revision)) = self.broker.policy(&run).await? {
                keys.push((run, policy, revision));
            }
        }
        self.catch_up(log).await?;
        for (run, standing, revision) in keys {
            let mended = mended(&self.shared.lock(), &run, &standing);
            if let Some(policy) = mended {
                tracing::warn!(%run, "the policy key knows of what the log lost; taking it back");
                self.broker.replace_policy(&run, &policy, revision).await?;
            }
        }
        Ok(())
    }
}

fn live_runs(state: &State) -> Vec<RunId> {
    state.runs.iter().filter(|(_, run)| !run.is_closed()).map(|(id, _)| id.clone()).collect()
}

/// What the key should say instead, if it says too much.
fn mended(state: &State, run: &RunId, standing: &Policy) -> Option<Policy> {
    let run = state.runs.get(run).filter(|run| !run.is_closed())?;
    let attempt = match &run.policy {
        Some(known) if known.version == standing.version => known.attempt,
        Some(_) | None => standing.attempt,
    };
    let mended = Policy { ended: false, attempt: attempt.min(standing.attempt), ..standing.clone() };
    (mended != *standing).then_some(mended)
}
