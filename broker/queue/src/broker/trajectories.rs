//! Trajectories: what tasks and batches name by reference is fetched from the log, kept while there is room, and put in
//! its place.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use millrace_schemas::limits::{CLAIMS_IN_FLIGHT, FETCHES_IN_FLIGHT};
use millrace_schemas::train_shard::BatchRollout;
use millrace_schemas::{EntryRef, Event, OutcomeBody, RunId, Task, TaskBody};

use super::{Broker, BrokerError, Logged};

pub(super) use cache::TrajectoryCache;
pub(super) use contexts::Contexts;

mod clock;
mod cache;
mod contexts;

/// Before an entry that was not found is asked for again: another replica may have it, or this one soon.
const LOOK_AGAIN: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_millis(500)];

/// Content by reference.
type Content = HashMap<EntryRef, Arc<OutcomeBody>>;

impl Broker {
    /// Puts what a task names by reference in its place. Fetches what this process did not keep; any replica of the log
    /// answers. The task's fingerprint must be taken before.
    ///
    /// # Errors
    /// The queue or the object store fails, or a reference gives nothing: the machines' failure. The task is not usable
    /// then, and must be given back.
    pub async fn resolve(&self, task: &mut Task) -> Result<(), BrokerError> {
        let Some(last) = task.prefix().last().copied() else { return Ok(()) };
        let is_turn = matches!(&task.body, TaskBody::Generate(turn) if turn.context.is_empty());
        let keys = if is_turn { self.contexts.keys(task.prefix()) } else { Vec::new() };
        if is_turn && let Some((outcomes, tokens)) = self.contexts.longest(&keys[..task.needs().len()]) {
            task.know(outcomes, &tokens);
        }
        let mut content = self.content(&task.run, task.needs(), task.needs_tokens_alone(), true).await?;
        if let Some(begun) = task.begun() {
            content.extend(self.content(&task.run, &[begun], false, true).await?);
        }
        if is_turn && !task.carried().is_empty() {
            self.trajectories.keep_tokens(last, task.carried());
        }
        task.resolve(|entry| content.get(entry).cloned()).map_err(|error| unresolved(error.to_string()))?;
        if let (Some(key), TaskBody::Generate(turn)) = (keys.last(), &task.body) {
            self.contexts.keep(*key, &turn.context);
        }
        Ok(())
    }

    /// Puts the tokens and log-probabilities of a run's rollouts in their place, several rollouts at a time. Nothing is
    /// fetched for the other rollouts of their batch.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub async fn resolve_rollouts(
        &self,
        run: &RunId,
        rollouts: impl Iterator<Item = &mut BatchRollout> + Send,
    ) -> Result<(), BrokerError> {
        let mut resolving: Vec<BoxFuture<'_, Result<(), BrokerError>>> = Vec::new();
        for rollout in rollouts {
            resolving.push(self.resolve_rollout(run, rollout).boxed());
        }
        futures::stream::iter(resolving).buffer_unordered(CLAIMS_IN_FLIGHT).try_collect().await
    }

    async fn resolve_rollout(&self, run: &RunId, rollout: &mut BatchRollout) -> Result<(), BrokerError> {
        let Some(stored) = &rollout.stored else { return Ok(()) };
        // A batch is read once.
        let content = self.content(run, &stored.entries, false, false).await?;
        let resolved = rollout.resolve(|entry| content.get(entry).cloned());
        resolved.map_err(|error| unresolved(format!("rollout={}: {error}", rollout.id)))
    }

    /// Remembers an outcome that this process appended.
    pub(super) fn keep_own(&self, seq: u64, event: &Event) {
        if let Event::Outcome(outcome) = event
            && let Some(entry) = EntryRef::of(seq, &outcome.body)
        {
            self.trajectories.keep(entry, Arc::new(outcome.body.clone()));
        }
    }

    async fn content(
        &self,
        run: &RunId,
        entries: &[EntryRef],
        tokens_alone: bool,
        keep: bool,
    ) -> Result<Content, BrokerError> {
        let (mut content, mut missing) = self.trajectories.get(entries, tokens_alone);
        let mut pauses = LOOK_AGAIN.into_iter();
        while !missing.is_empty() {
            let mut left = Vec::new();
            for chunk in missing.chunks(FETCHES_IN_FLIGHT) {
                let seqs: Vec<u64> = chunk.iter().map(|entry| entry.seq).collect();
                for (entry, found) in chunk.iter().zip(self.entries(&seqs).await?) {
                    let Some(logged) = found else {
                        left.push(*entry);
                        continue;
                    };
                    let body = Arc::new(proven(run, entry, logged).map_err(unresolved)?);
                    if keep {
                        self.trajectories.keep(*entry, body.clone());
                    }
                    content.insert(*entry, body);
                }
            }
            let (Some(first), pause) = (left.first(), pauses.next()) else { break };
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(unresolved(format!("log entry seq={} is not there", first.seq))),
            }
            missing = left;
        }
        Ok(content)
    }

    /// The entries of the log at these positions, in the same order, trimmed or not; `None` where nothing is.
    ///
    /// # Errors
    /// The queue or the object store fails.
    pub async fn entries(&self, seqs: &[u64]) -> Result<Vec<Option<Logged>>, BrokerError> {
        let mut found = self.queue.log_entries(seqs).await?;
        if found.iter().any(Option::is_none) {
            self.find_trimmed(seqs, &mut found).await?;
        }
        futures::stream::iter(found)
            .map(async |entry| match entry {
                Some(entry) => self.read_entry(&entry, true).await.map(Some),
                None => Ok(None),
            })
            .buffered(CLAIMS_IN_FLIGHT)
            .try_collect()
            .await
    }
}

/// The outcome that a reference means, if this entry holds it.
fn proven(run: &RunId, entry: &EntryRef, logged: Logged) -> Result<OutcomeBody, String> {
    let seq = entry.seq;
    if logged.run != run.as_str() {
        return Err(format!("log entry seq={seq} is of run={}, not of run={run}", logged.run));
    }
    let body = match logged.event {
        Ok(Event::Outcome(outcome)) => outcome.body,
        Ok(event) => return Err(format!("log entry seq={seq} is an event of kind={}", event.kind())),
        Err(error) => return Err(format!("log entry seq={seq}: {error}")),
    };
    match EntryRef::of(seq, &body) {
        Some(found) if found == *entry => Ok(body),
        _ => Err(format!("log entry seq={seq} holds other content than its reference means")),
    }
}

fn unresolved(reason: String) -> BrokerError {
    BrokerError::Invalid { action: "read a trajectory", reason }
}
