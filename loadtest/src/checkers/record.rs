//! Records a [`History`] from any queue and object store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use millrace_coordinator::shell::audit::{StoredVersion, read_version};
use millrace_queue::{Broker, Objects};
use millrace_schemas::blob::paths;
use millrace_schemas::{EntryRef, Event, PolicyVersion, RunId, Stage};

use super::history::{Entry, History, PolicySeen, folded};

/// Entries of the log read at once.
const READ_AT_ONCE: usize = 1_024;
/// Pause before a broken watch of the keys is restarted.
const REWATCH: Duration = Duration::from_millis(200);

/// Reads everything that the checkers look at, once the system is at rest. It removes the remaining
/// tasks from the queue, because they are counted by a purge. The caller adds the values of policy
/// keys, which it watched.
///
/// # Errors
/// The queue or the object store cannot be reached, or the log has a gap.
pub async fn record(broker: &Broker) -> anyhow::Result<History> {
    let log = read_log(broker).await?;
    let state = folded(&log);
    let mut history = History { log, state, ..History::default() };
    for run in history.state.runs.keys().cloned().collect::<Vec<_>>() {
        let mut versions = read_versions(broker.objects(), &run).await?;
        for stored in versions.iter_mut().flatten() {
            resolve(stored, &history.log);
        }
        history.strays.extend(strays(broker.objects(), &run, versions.len()).await?);
        history.committed.insert(run, versions);
    }
    for stage in Stage::QUEUED {
        let all = millrace_schemas::subjects::task_stream_subjects(stage);
        history.queued.insert(stage, broker.queue().purge(stage, &all).await?);
    }
    history.dead = broker.dead_letters().await?;
    Ok(history)
}

pub(super) async fn read_log(broker: &Broker) -> anyhow::Result<Vec<Entry>> {
    let end = broker.queue().log_end().await.context("failed to look at the log")?;
    let mut log = Vec::new();
    if end == 0 {
        return Ok(log);
    }
    let mut reader = broker.read_log(1).await.context("failed to read the log")?;
    while (log.len() as u64) < end {
        for logged in reader.next(READ_AT_ONCE).await.context("failed to read the log")? {
            if logged.seq != log.len() as u64 + 1 {
                bail!("the log has seq={} after seq={}", logged.seq, log.len());
            }
            log.push(Entry {
                seq: logged.seq,
                run: logged.run,
                epoch: logged.epoch,
                event: logged.event.ok(),
            });
        }
    }
    Ok(log)
}

async fn read_versions(objects: &Objects, run: &RunId) -> anyhow::Result<Vec<Result<StoredVersion, String>>> {
    let mut versions = Vec::new();
    while let Some(stored) = read_version(objects, run, PolicyVersion(versions.len() as u64)).await? {
        versions.push(stored);
    }
    Ok(versions)
}

/// Puts the tokens of a version's batch in their place. Those whose entries the log lost stay where they are said to be.
fn resolve(stored: &mut StoredVersion, log: &[Entry]) {
    let find = |entry: &EntryRef| {
        let Some(Event::Outcome(outcome)) = &log.get((entry.seq as usize).checked_sub(1)?)?.event else {
            return None;
        };
        let found = EntryRef::of(entry.seq, &outcome.body)?;
        (found == *entry).then(|| Arc::new(outcome.body.clone()))
    };
    for rollout in
        stored.batch.iter_mut().flat_map(|batch| &mut batch.groups).flat_map(|group| &mut group.rollouts)
    {
        let mut resolved = rollout.clone();
        if resolved.resolve(find).is_ok() {
            *rollout = resolved;
        }
    }
}

/// Manifests beyond the first gap.
async fn strays(objects: &Objects, run: &RunId, known: usize) -> anyhow::Result<Vec<String>> {
    let known: Vec<String> = (0..known as u64).map(|v| paths::manifest(run, PolicyVersion(v))).collect();
    let found = objects.list(&paths::weights(run)).await?;
    Ok(found.into_iter().filter(|path| !known.contains(path)).collect())
}

/// Notes every value of the policy keys while it is watched.
#[derive(Debug, Clone, Default)]
pub struct PolicyWatch {
    seen: Arc<Mutex<Vec<PolicySeen>>>,
}

impl PolicyWatch {
    /// Consumes the policy keys, produces notes. Waits for the next value; restarts a watch that
    /// breaks. Never ends.
    pub async fn run(self, broker: Broker) {
        for epoch in 0.. {
            if let Err(error) = self.follow(&broker, epoch).await {
                tracing::debug!(%error, "watch of policies broke");
            }
            tokio::time::sleep(REWATCH).await;
        }
    }

    async fn follow(&self, broker: &Broker, epoch: u64) -> anyhow::Result<()> {
        let mut watch = broker.watch_policies().await?;
        loop {
            let (run, policy) = watch.next().await?;
            let seen = PolicySeen { run, policy, epoch };
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
        }
    }

    /// What was seen so far.
    #[must_use]
    pub fn seen(&self) -> Vec<PolicySeen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
