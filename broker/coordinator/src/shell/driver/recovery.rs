//! What a coordinator does when the queue is not what it was: catch up, fold anew, mend keys, do it all again.

use std::time::Duration;

use millrace_queue::{BrokerError, Log, Logged, QueueError};
use millrace_schemas::RunId;
use millrace_schemas::limits::REQUEST_TIMEOUT_MS;
use millrace_schemas::notice::Notice;
use millrace_schemas::policy::Policy;
use millrace_schemas::subjects::LOG_STREAM;

use tokio::time::timeout;

use super::snapshots::Snapshots;
use super::{Driver, FOLD_AT_ONCE, PAUSE};
use crate::fold::state::State;
use crate::shell::{execute, journal};

/// For entries that the log holds to come.
const PATIENCE: Duration = Duration::from_millis(REQUEST_TIMEOUT_MS / 2);

/// Why folding cannot go on where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The log lost its newest part, which was folded.
    End,
    /// The log lacks entries between what was folded and what it holds.
    Gap,
}

/// Why entries were not folded.
#[derive(Debug)]
pub(super) enum Unfolded {
    /// The log is not what was folded.
    Lost(Lost),
    /// It could not be read.
    Failed(BrokerError),
}

impl From<BrokerError> for Unfolded {
    fn from(error: BrokerError) -> Self {
        Self::Failed(error)
    }
}

impl From<QueueError> for Unfolded {
    fn from(error: QueueError) -> Self {
        Self::Failed(error.into())
    }
}

impl Driver {
    /// Those of `entries` that are not folded yet. A reader of the log begins with the entry that was folded last: that
    /// it stands is proof that the log is what the state was made from. One that it passed over is never skipped.
    pub(super) fn fresh(&self, mut entries: Vec<Logged>) -> Result<Vec<Logged>, Unfolded> {
        let state = self.shared.lock();
        let (seq, stored_ns) = (state.seq, state.stored_ns);
        drop(state);
        if entries.iter().any(|entry| entry.seq == seq && stored_ns != 0 && entry.stored_ns != stored_ns) {
            return Err(Unfolded::Lost(Lost::End));
        }
        entries.retain(|entry| entry.seq > seq);
        let mut expected = seq + 1..;
        match entries.iter().all(|entry| Some(entry.seq) == expected.next()) {
            true => Ok(entries),
            false => Err(Unfolded::Lost(Lost::Gap)),
        }
    }

    /// Folds all that the log holds by now. Where entries do not come that it should hold, they are gone.
    pub(super) async fn catch_up(&mut self, log: &mut Log) -> Result<(), Unfolded> {
        let end = self.broker.queue().log_end().await?;
        loop {
            let seq = self.shared.lock().seq;
            if seq >= end {
                return Ok(());
            }
            match timeout(PATIENCE, log.next(FOLD_AT_ONCE)).await {
                Ok(entries) => self.on_entries(entries).await,
                Err(_) => self.lost = Some(Lost::Gap),
            }
            if let Some(lost) = self.lost {
                return Err(Unfolded::Lost(lost));
            }
        }
    }

    /// Where folding cannot go on, it goes on from the newest snapshot: where the log lost its newest part, with what
    /// is left, and what the lost part held is done again; where it was trimmed beyond what was folded, behind what
    /// the snapshot has. Where no snapshot covers a gap this coordinator says so and does not lead.
    pub(super) async fn recover(&mut self) -> Option<Log> {
        let lost = self.lost?;
        self.acting = false;
        self.lanes.restart([]);
        match self.restored(lost).await {
            Ok(log) => {
                self.block(None);
                self.lost = None;
                return Some(log);
            }
            Err(Unfolded::Lost(_)) => {}
            Err(Unfolded::Failed(error)) => {
                tracing::error!(%error, "failed to fold what is left of the log; trying again");
            }
        }
        tokio::time::sleep(PAUSE).await;
        None
    }

    async fn restored(&mut self, lost: Lost) -> Result<Log, Unfolded> {
        let restored = journal::restore(&self.broker).await?;
        let known = self.shared.lock().seq;
        // What is folded stands where a gap follows it.
        let state = (lost == Lost::End || restored.seq > known).then_some(restored);
        let seq = state.as_ref().map_or(known, |state| state.seq);
        let end = self.broker.queue().log_end().await?;
        if let Some(gap) = self.gap_after(seq, end).await? {
            self.block(Some(gap));
            return Err(Unfolded::Lost(lost));
        }
        let log = self.broker.follow_log(seq.max(1)).await?;
        if let Some(state) = state {
            self.snapshots = Snapshots::new(seq);
            *self.shared.lock() = state;
            self.shared.folded(seq);
        }
        if lost == Lost::End {
            let from = end.min(seq) + 1;
            tracing::error!(from, to = known, "the log lost what was folded; folding what is left");
            execute::tell(&self.broker, &Notice::LogLost { from, to: known }).await;
        }
        Ok(log)
    }

    /// What is missing behind position `seq` of a log that ends at `end`, and what to do about it.
    async fn gap_after(&self, seq: u64, end: u64) -> Result<Option<String>, Unfolded> {
        if seq >= end {
            return Ok(None);
        }
        let mut log = self.broker.follow_log(seq + 1).await?;
        let first = match timeout(PATIENCE, log.next(1)).await {
            Ok(Err(BrokerError::Gone { to, .. })) => to + 1,
            Ok(entries) => entries?.first().map_or(end + 1, |entry| entry.seq),
            // Of a log that was emptied nothing comes.
            Err(_) => end + 1,
        };
        Ok((first > seq + 1).then(|| {
            let to = first - 1;
            format!(
                "the log lacks entries from seq={} to seq={to}, and neither a segment nor a snapshot has them: restore stream={LOG_STREAM}, \
                 or the segments and snapshots in the object store, from a backup; to give up all runs instead, delete the stream",
                seq + 1
            )
        }))
    }

    /// Tells everyone that this coordinator cannot lead, and why; or that it can again.
    fn block(&self, why: Option<String>) {
        if let Some(why) = &why
            && self.shared.blocked().is_none()
        {
            tracing::error!(why, "this coordinator does not lead");
        }
        self.health.set_trouble("log", why.clone());
        self.progress.set_unfit(why.clone());
        self.shared.block(why);
    }

    /// Takes back from the policy keys what the log does not know: that a run has ended, or that a step is void. It
    /// knew once, and lost it. Whoever else acts writes a key only after the log has its reason; so what the key
    /// said before the log was read to its end, and the log does not say, is lost.
    pub(super) async fn mend_keys(&mut self, log: &mut Log) -> Result<(), Unfolded> {
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
                self.broker.replace_policy(&run, &policy, (revision, self.term.epoch())).await?;
            }
        }
        Ok(())
    }
}

fn live_runs(state: &State) -> Vec<RunId> {
    state.runs.iter().filter(|(_, run)| !run.is_closed()).map(|(id, _)| id.clone()).collect()
}

/// What the key should say instead, if it says too much. The step that makes the version after the newest one is given
/// out anew with attempt 0 where the log does not know that version: a key that says more would void it.
fn mended(state: &State, run: &RunId, standing: &Policy) -> Option<Policy> {
    let run = state.runs.get(run).filter(|run| !run.is_closed())?;
    let attempt = match &run.policy {
        Some(known) if known.version == standing.version => known.attempt.min(standing.attempt),
        Some(known) if known.version > standing.version => standing.attempt,
        Some(_) | None => 0,
    };
    let mended = Policy { ended: false, attempt, ..standing.clone() };
    (mended != *standing).then_some(mended)
}

#[cfg(test)]
mod tests {
    use millrace_schemas::blob::Sha;
    use millrace_schemas::submit::from_toml;
    use millrace_schemas::{Event, PolicyVersion};

    use super::*;

    /// What the key says, where the log knows the version `known` and a step that began `attempt` times.
    fn says(known: Option<(u64, u32)>, standing: (u64, u32)) -> Option<u32> {
        let policy = |(version, attempt): (u64, u32)| Policy {
            version: PolicyVersion(version),
            manifest: Sha::of(b"manifest"),
            floor: PolicyVersion(0),
            attempt,
            partitions: 1,
            ended: false,
        };
        let file = "name = \"a\"\nsteps = 9\nmodel = { kind = \"scripted\" }\nenvironment = { name = \"counter\", turns = 1 }";
        let spec = from_toml(file).expect("a run file");
        let (mut state, run) = (State::default(), spec.name.clone());
        state.advance(1, run.as_str(), Event::Submitted(Box::new(spec)));
        state.runs.get_mut(&run).expect("just handed in").policy = known.map(policy);
        mended(&state, &run, &policy(standing)).map(|policy| policy.attempt)
    }

    #[test]
    fn a_key_voids_no_step_that_the_log_begins_anew() {
        assert_eq!(says(Some((3, 2)), (3, 2)), None);
        assert_eq!(says(Some((3, 1)), (3, 2)), Some(1), "the void of the second try is lost");
        assert_eq!(says(Some((3, 0)), (4, 2)), Some(0), "the version itself is lost");
        assert_eq!(says(None, (0, 1)), Some(0));
        assert_eq!(says(Some((4, 0)), (3, 2)), None, "the key is behind; the next write brings it on");
    }
}
