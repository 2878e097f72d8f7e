//! Recovery from a queue that lost data: catch up, fold from a snapshot, repair policy keys, repeat
//! outstanding commands.

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

/// How long to wait for entries that the log should hold.
const PATIENCE: Duration = Duration::from_millis(REQUEST_TIMEOUT_MS / 2);

/// Why folding cannot continue at its position.
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
    /// The log differs from what was folded.
    Lost(Lost),
    /// The log could not be read.
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
    /// The entries that are not folded yet. A reader of the log begins with the last folded entry:
    /// if it is unchanged, the log is the one that the state was folded from. A gap in the
    /// positions is an error.
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

    /// Folds all that the log holds by now. If entries that it should hold do not arrive, they are
    /// lost.
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

    /// If folding cannot continue, restarts it from the newest snapshot. If the log lost its newest
    /// part, the rest is folded, and the work of the lost part is redone. If the log was trimmed
    /// beyond the folded position, folding continues after the snapshot. If no snapshot covers a
    /// gap, this coordinator reports that and does not lead.
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
                tracing::error!(%error, "failed to fold the rest of the log; retrying");
            }
        }
        tokio::time::sleep(PAUSE).await;
        None
    }

    async fn restored(&mut self, lost: Lost) -> Result<Log, Unfolded> {
        let restored = journal::restore(&self.broker).await?;
        let known = self.shared.lock().seq;
        // If a gap follows the folded position, the folded state stays valid.
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
            tracing::error!(from, to = known, "the log lost entries that were folded; folding the rest");
            execute::publish_notice(&self.broker, &Notice::LogLost { from, to: known }).await;
        }
        Ok(log)
    }

    /// The message for a gap behind position `seq` of a log that ends at `end`, with the remedy;
    /// `None` without a gap.
    async fn gap_after(&self, seq: u64, end: u64) -> Result<Option<String>, Unfolded> {
        if seq >= end {
            return Ok(None);
        }
        let mut log = self.broker.follow_log(seq + 1).await?;
        let first = match timeout(PATIENCE, log.next(1)).await {
            Ok(Err(BrokerError::Gone { to, .. })) => to + 1,
            Ok(entries) => entries?.first().map_or(end + 1, |entry| entry.seq),
            // An emptied log delivers nothing.
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

    /// Reports to health, election and API why this coordinator cannot lead; `None` clears it.
    fn block(&self, why: Option<String>) {
        if let Some(why) = &why
            && self.shared.blocked().is_none()
        {
            tracing::error!(why, "this coordinator cannot lead");
        }
        self.health.set_trouble("log", why.clone());
        self.progress.set_unfit(why.clone());
        self.shared.block(why);
    }

    /// Reverts in the policy keys what the log lost: that a run has ended, or that an attempt of a
    /// step is void. A leader writes a key only after its reason is in the log. So if a key was
    /// read before the end of the log, and the log does not have the reason, the log lost it.
    pub(super) async fn repair_policy_keys(&mut self, log: &mut Log) -> Result<(), Unfolded> {
        let live: Vec<RunId> = live_runs(&self.shared.lock());
        let mut keys = Vec::new();
        for run in live {
            if let Some((policy, revision)) = self.broker.policy(&run).await? {
                keys.push((run, policy, revision));
            }
        }
        self.catch_up(log).await?;
        for (run, stored, revision) in keys {
            let repaired = repaired(&self.shared.lock(), &run, &stored);
            if let Some(policy) = repaired {
                tracing::warn!(%run, "the policy key has what the log lost; reverting it");
                self.broker.replace_policy(&run, &policy, (revision, self.term.epoch())).await?;
            }
        }
        Ok(())
    }
}

fn live_runs(state: &State) -> Vec<RunId> {
    state.runs.iter().filter(|(_, run)| !run.is_closed()).map(|(id, _)| id.clone()).collect()
}

/// The value that the key should have, if it is ahead of the log. If the log does not know the
/// key's version, the step that makes it restarts with attempt 0, and a key with a higher attempt
/// would void it.
fn repaired(state: &State, run: &RunId, stored: &Policy) -> Option<Policy> {
    let run = state.runs.get(run).filter(|run| !run.is_closed())?;
    let attempt = match &run.policy {
        Some(known) if known.version == stored.version => known.attempt.min(stored.attempt),
        Some(known) if known.version > stored.version => stored.attempt,
        Some(_) | None => 0,
    };
    let repaired = Policy { ended: false, attempt, ..stored.clone() };
    (repaired != *stored).then_some(repaired)
}

#[cfg(test)]
mod tests {
    use millrace_schemas::blob::Sha;
    use millrace_schemas::submit::from_toml;
    use millrace_schemas::{Event, PolicyVersion};

    use super::*;

    /// The repaired attempt, if any. `known` and `stored` are (version, attempt) in the log and in
    /// the key.
    fn repaired_attempt(known: Option<(u64, u32)>, stored: (u64, u32)) -> Option<u32> {
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
        state.runs.get_mut(&run).expect("just submitted").policy = known.map(policy);
        repaired(&state, &run, &policy(stored)).map(|policy| policy.attempt)
    }

    #[test]
    fn a_repaired_key_voids_no_step_that_the_log_restarts() {
        assert_eq!(repaired_attempt(Some((3, 2)), (3, 2)), None);
        assert_eq!(repaired_attempt(Some((3, 1)), (3, 2)), Some(1), "the void of the second try is lost");
        assert_eq!(repaired_attempt(Some((3, 0)), (4, 2)), Some(0), "the version itself is lost");
        assert_eq!(repaired_attempt(None, (0, 1)), Some(0));
        assert_eq!(
            repaired_attempt(Some((4, 0)), (3, 2)),
            None,
            "the key is behind; the next write updates it"
        );
    }
}
