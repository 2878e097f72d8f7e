//! Which workers that train are there: their signs of life become joined and left in the log, which alone
//! decides.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_queue::{Broker, BrokerError};
use millrace_schemas::limits::{MAX_MEMBERS, MAX_NAMES, MEMBER_BEAT_MS, MEMBER_MS};
use millrace_schemas::member::SignOfLife;
use millrace_schemas::subjects::ALL_RUNS;
use millrace_schemas::{Event, WorkerId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fold::gang::Members;
use crate::shell::leader::Term;
use crate::shell::shared::Shared;

/// Between two looks for silent members.
const LOOK: Duration = Duration::from_millis(MEMBER_BEAT_MS / 2);
/// Silence after which a worker is a member no more.
const SILENCE: Duration = Duration::from_millis(MEMBER_MS);
/// Before the signs are watched again after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// What is known of one worker.
#[derive(Debug, Clone)]
struct Seen {
    sign: SignOfLife,
    /// When the sign came.
    at: Instant,
    /// Another sign came before it from the same process: it is no leftover.
    alive: bool,
}

/// All that were heard of.
#[derive(Debug, Default)]
struct Watched {
    seen: BTreeMap<WorkerId, Seen>,
    since: Option<Instant>,
    looked: Option<Instant>,
}

/// Writes into the log who joined and who left, while this coordinator acts.
///
/// Consumes: signs of life. Produces: joined and left events. Waits for: the next sign, or the time to look
/// for silence. Unblocked by: `shutdown`. On failure: watches anew.
pub async fn watch(broker: Broker, shared: Shared, term: Term, shutdown: CancellationToken) {
    let mut watched = Watched::default();
    let forever = async {
        loop {
            if let Err(error) = follow(&broker, &shared, &term, &mut watched).await {
                tracing::warn!(%error, "failed to watch the train workers; trying again");
            }
            // What was missed meanwhile counts as silence of nobody's.
            watched.forgive(Instant::now());
            tokio::time::sleep(PAUSE).await;
        }
    };
    shutdown.run_until_cancelled(forever).await;
}

async fn follow(
    broker: &Broker,
    shared: &Shared,
    term: &Term,
    watched: &mut Watched,
) -> Result<(), BrokerError> {
    let mut signs = broker.watch_signs_of_life().await?;
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            sign = signs.next() => {
                let (worker, sign) = sign?;
                watched.hear(worker, sign, Instant::now());
            }
            _ = look.tick() => watched.look(Instant::now()),
        }
        // One that was stopped for long has not listened either.
        if !term.holds() {
            continue;
        }
        let changes = watched.changes(&shared.lock().members, Instant::now());
        let mut last = 0;
        for event in changes {
            last = broker.append_led(ALL_RUNS, &event, term.epoch()).await?.seq;
        }
        // The fold knows it before the next look, which would say it again.
        shared.wait_for(last, LOOK).await;
    }
}

impl Watched {
    /// Takes a sign in. The first from a process may have been written long ago.
    fn hear(&mut self, worker: WorkerId, sign: SignOfLife, now: Instant) {
        if !self.seen.contains_key(&worker) && self.seen.len() as i64 >= MAX_NAMES {
            self.seen.retain(|_, seen| now.duration_since(seen.at) < SILENCE);
            if self.seen.len() as i64 >= MAX_NAMES {
                return;
            }
        }
        let before = self.seen.get(&worker);
        let same = |seen: &&Seen| seen.sign.instance == sign.instance;
        let alive = before.filter(same).is_some_and(|seen| seen.alive || sign.beat > seen.sign.beat);
        self.seen.insert(worker, Seen { sign, at: now, alive });
    }

    /// Notes that time went by. A coordinator that was paused has not listened: nobody was silent.
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

    /// What the log does not know yet.
    fn changes(&self, members: &Members, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        let silent = |at: Instant| now.duration_since(at) >= SILENCE;
        for (worker, member) in members {
            let gone = match self.seen.get(worker) {
                Some(seen) if seen.sign.instance == member.instance => seen.sign.leaving || silent(seen.at),
                // Another process has its name. One sign is enough to know that this one is gone.
                Some(_) => true,
                None => self.since.is_some_and(silent),
            };
            if gone {
                events.push(Event::Left { worker: worker.clone(), instance: member.instance.clone() });
            }
        }
        let mut room = (MAX_MEMBERS + events.len()).saturating_sub(members.len());
        for (worker, seen) in &self.seen {
            let known = members.get(worker).is_some_and(|member| member.instance == seen.sign.instance);
            if !known && seen.alive && !seen.sign.leaving && !silent(seen.at) && room > 0 {
                room -= 1;
                let instance = seen.sign.instance.clone();
                events.push(Event::Joined { worker: worker.clone(), instance });
            }
        }
        events
    }
}

#[cfg(test)]
mod tests;
