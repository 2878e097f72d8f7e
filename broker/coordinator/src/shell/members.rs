//! Membership of train workers: their heartbeats become joined and left events in the log. Only the
//! log decides.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use millrace_queue::broker::SignsOfLife;
use millrace_queue::{Broker, BrokerError};
use millrace_schemas::limits::{MAX_MEMBERS, MAX_NAMES, MEMBER_BEAT_MS, MEMBER_MS};
use millrace_schemas::member::Heartbeat;
use millrace_schemas::subjects::ALL_RUNS;
use millrace_schemas::{Event, WorkerId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fold::gang::Members;
use crate::shell::leader::Term;
use crate::shell::shared::SharedState;

/// Interval between two checks for silent members.
const LOOK: Duration = Duration::from_millis(MEMBER_BEAT_MS / 2);
/// Silence after which a worker is no longer a member.
const SILENCE: Duration = Duration::from_millis(MEMBER_MS);
/// Pause before the heartbeats are watched again after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// The last heartbeat of a worker.
#[derive(Debug, Clone)]
struct LastHeartbeat {
    heartbeat: Heartbeat,
    /// When the heartbeat arrived.
    at: Instant,
    /// An earlier heartbeat came from the same process, so this is not a value that was stored long
    /// ago.
    alive: bool,
}

/// The last heartbeats of all workers.
#[derive(Debug, Default)]
struct Heartbeats {
    seen: BTreeMap<WorkerId, LastHeartbeat>,
    since: Option<Instant>,
    looked: Option<Instant>,
}

/// Appends to the log which workers joined and left, while this coordinator leads.
///
/// Consumes: heartbeats. Produces: joined and left events. Waits for: the next heartbeat, or the
/// next check for silence. Unblocked by: `shutdown`. On failure: watches again.
pub async fn watch(broker: Broker, shared: SharedState, term: Term, shutdown: CancellationToken) {
    let mut watched = Heartbeats::default();
    let forever = async {
        loop {
            let followed = async {
                let heartbeats = broker.watch_signs_of_life().await?;
                follow(heartbeats, &broker, &shared, &term, &mut watched).await
            };
            if let Err(error) = followed.await {
                tracing::warn!(%error, "failed to watch the train workers; retrying");
            }
            // Heartbeats that were missed meanwhile do not count as silence.
            watched.forgive(Instant::now());
            tokio::time::sleep(PAUSE).await;
        }
    };
    shutdown.run_until_cancelled(forever).await;
}

async fn follow(
    heartbeats: SignsOfLife,
    broker: &Broker,
    shared: &SharedState,
    term: &Term,
    watched: &mut Heartbeats,
) -> Result<(), BrokerError> {
    let current = heartbeats.current();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // One call lasts across checks: the first read of all heartbeats may take longer than from one
    // check to the next.
    let mut next = pin!(next_of(heartbeats));
    loop {
        tokio::select! {
            biased;
            (heartbeat, heartbeats) = &mut next => {
                let (worker, heartbeat) = heartbeat?;
                watched.hear(worker, heartbeat, Instant::now());
                next.set(next_of(heartbeats));
            }
            _ = look.tick() => {
                watched.look(Instant::now());
                // Heartbeats that are not read yet do not count as silence.
                if !*current.borrow() {
                    watched.forgive(Instant::now());
                }
            }
        }
        // After a long stop the term is over, and missed heartbeats prove nothing.
        if !term.holds() {
            continue;
        }
        let changes = watched.changes(&shared.lock().members, Instant::now());
        let mut last = 0;
        for event in changes {
            last = broker.append_led(ALL_RUNS, &event, term.epoch()).await?.seq;
        }
        // The fold should have it before the next check, which would append it a second time.
        shared.wait_for(last, LOOK).await;
    }
}

/// The next heartbeat, and what the one after it is read from.
async fn next_of(mut heartbeats: SignsOfLife) -> (Result<(WorkerId, Heartbeat), BrokerError>, SignsOfLife) {
    let next = heartbeats.next().await;
    (next, heartbeats)
}

impl Heartbeats {
    /// Records a heartbeat. The first of a process may have been stored long ago.
    fn hear(&mut self, worker: WorkerId, heartbeat: Heartbeat, now: Instant) {
        if !self.seen.contains_key(&worker) && self.seen.len() as i64 >= MAX_NAMES {
            self.seen.retain(|_, seen| now.duration_since(seen.at) < SILENCE);
            if self.seen.len() as i64 >= MAX_NAMES {
                return;
            }
        }
        let before = self.seen.get(&worker);
        let same = |seen: &&LastHeartbeat| seen.heartbeat.instance == heartbeat.instance;
        let alive =
            before.filter(same).is_some_and(|seen| seen.alive || heartbeat.beat > seen.heartbeat.beat);
        self.seen.insert(worker, LastHeartbeat { heartbeat, at: now, alive });
    }

    /// Records the time of a check. If this process was suspended since the last one, missed
    /// heartbeats do not count as silence.
    fn look(&mut self, now: Instant) {
        self.since.get_or_insert(now);
        if self.looked.is_some_and(|looked| now.duration_since(looked) > 3 * LOOK) {
            self.forgive(now);
        }
        self.looked = Some(now);
    }

    fn forgive(&mut self, now: Instant) {
        self.since = Some(now);
        self.seen.values_mut().for_each(|seen| seen.at = now);
    }

    /// Membership changes that are not in the log yet.
    fn changes(&self, members: &Members, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        let silent = |at: Instant| now.duration_since(at) >= SILENCE;
        for (worker, member) in members {
            let gone = match self.seen.get(worker) {
                Some(seen) if seen.heartbeat.instance == member.instance => {
                    seen.heartbeat.leaving || silent(seen.at)
                }
                // Another process uses the name. One heartbeat of it is enough to know that this
                // one is gone.
                Some(_) => true,
                None => self.since.is_some_and(silent),
            };
            if gone {
                events.push(Event::Left { worker: worker.clone(), instance: member.instance.clone() });
            }
        }
        let mut room = (MAX_MEMBERS + events.len()).saturating_sub(members.len());
        for (worker, seen) in &self.seen {
            let known = members.get(worker).is_some_and(|member| member.instance == seen.heartbeat.instance);
            if !known && seen.alive && !seen.heartbeat.leaving && !silent(seen.at) && room > 0 {
                room -= 1;
                let instance = seen.heartbeat.instance.clone();
                events.push(Event::Joined { worker: worker.clone(), instance });
            }
        }
        events
    }
}

#[cfg(test)]
mod tests;
