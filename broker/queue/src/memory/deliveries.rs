//! Tasks handed out, and the holds on them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millrace_schemas::{PoolName, Stage, subjects};

use super::priorities::Place;
use super::tasks::{Handed, Tasks};
use super::waiters::{Look, Topic};
use super::{EXHAUSTED_POOL, MemoryCore, MemoryState};
use crate::port::{Delivery, Exhausted, ExhaustedTasks, Lease, Puller, QueueError};

pub(super) struct MemoryPuller {
    pub(super) shared: Arc<MemoryCore>,
    pub(super) stage: Stage,
    pub(super) pool: PoolName,
    /// Below it, others are served first.
    pub(super) priority: u8,
}

impl MemoryPuller {
    fn topic(&self) -> Topic {
        Topic::Tasks(self.stage, self.pool.to_string())
    }

    /// Whether a task may be handed out.
    fn is_ready(&self, state: &MemoryState) -> bool {
        state.tasks.get(&self.stage).is_some_and(|tasks| tasks.has_ready(self.pool.as_str()))
    }

    /// Takes up to `free` of the tasks that wait; `None` if there are none.
    pub(super) fn take_ready(&self, state: &mut MemoryState, free: usize) -> Option<Vec<Handed>> {
        let (shared, stage, pool) = (&self.shared, self.stage, self.pool.as_str());
        let until = shared.clock.now() + shared.settings.ack_wait;
        if !self.is_ready(state) {
            return None;
        }
        shared.before_change(state);
        let handed = state.tasks.entry(stage).or_default().take(pool, free, until);
        (!handed.is_empty()).then_some(handed)
    }

    /// What was taken, each with its hold.
    pub(super) fn give(&self, handed: Vec<Handed>) -> Vec<Delivery> {
        let delivery = |Handed { seq, attempt, stored_ns, message }| {
            let lease = MemoryLease { shared: self.shared.clone(), stage: Some(self.stage), seq, attempt };
            Delivery { message, attempt, seq, stored_ns, lease: Arc::new(lease) }
        };
        handed.into_iter().map(delivery).collect()
    }
}

#[async_trait]
impl Puller for MemoryPuller {
    async fn pull(&mut self, free: usize) -> Result<Vec<Delivery>, QueueError> {
        if free == 0 {
            return std::future::pending().await;
        }
        let place = Place::taken(&self.shared, (self.stage, self.pool.clone()), self.priority);
        // Who waited longer goes first if it looks at all: one that is paused keeps nobody waiting.
        let mut let_others_look = true;
        let handed = self.shared.wait_in_turn(self.topic(), |state| {
            if place.is_preceded(&state.waiting) {
                return Look::Nothing;
            }
            if self.is_ready(state) && let_others_look && !place.is_first(&state.waiting) {
                let_others_look = false;
                return Look::AfterOthers;
            }
            let_others_look = true;
            self.take_ready(state, free).into()
        });
        Ok(self.give(handed.await))
    }

    async fn close(&mut self) {}
}

/// The hold on a task of a stage, or on a notice of an exhausted one (no stage).
struct MemoryLease {
    shared: Arc<MemoryCore>,
    stage: Option<Stage>,
    seq: u64,
    attempt: u64,
}

impl MemoryLease {
    fn change(&self, f: impl FnOnce(&mut Tasks)) {
        self.shared.change(|state| {
            self.shared.expire(state);
            f(match self.stage {
                Some(stage) => state.tasks.entry(stage).or_default(),
                None => &mut state.exhausted,
            });
        });
    }

    fn hold(&self, wait: Duration) {
        let until = self.shared.clock.now() + wait;
        self.change(|tasks| tasks.hold(self.seq, self.attempt, until));
    }
}

#[async_trait]
impl Lease for MemoryLease {
    async fn heartbeat(&self) -> Result<(), QueueError> {
        self.hold(self.shared.settings.ack_wait);
        Ok(())
    }

    async fn done(&self) -> Result<(), QueueError> {
        self.change(|tasks| tasks.remove(self.seq));
        Ok(())
    }

    async fn retry_after(&self, delay: Duration) -> Result<(), QueueError> {
        self.hold(delay);
        Ok(())
    }

    async fn poison(&self, _reason: &str) -> Result<(), QueueError> {
        self.done().await
    }
}

pub(super) struct MemoryExhausted {
    pub(super) shared: Arc<MemoryCore>,
}

/// Removes an exhausted task, then the notice of it.
struct ExhaustedLease {
    stage: Stage,
    seq: u64,
    notice: MemoryLease,
}

#[async_trait]
impl Lease for ExhaustedLease {
    async fn heartbeat(&self) -> Result<(), QueueError> {
        self.notice.heartbeat().await
    }

    async fn done(&self) -> Result<(), QueueError> {
        let remove = |state: &mut MemoryState| state.tasks.entry(self.stage).or_default().remove(self.seq);
        self.notice.shared.change(remove);
        self.notice.done().await
    }

    async fn retry_after(&self, delay: Duration) -> Result<(), QueueError> {
        self.notice.retry_after(delay).await
    }

    async fn poison(&self, _reason: &str) -> Result<(), QueueError> {
        self.done().await
    }
}

/// Which task a notice speaks of.
fn exhausted_task(notice: &str) -> (Stage, u64) {
    let (stage, seq) = notice.split_once('.').expect("notices are <stage>.<seq>");
    (stage.parse().expect("notices name a stage"), seq.parse().expect("notices name a position"))
}

#[async_trait]
impl ExhaustedTasks for MemoryExhausted {
    async fn next(&mut self) -> Result<Exhausted, QueueError> {
        let shared = &self.shared;
        let found = shared.wait_for(Topic::Exhausted, |state| {
            let until = shared.clock.now() + shared.settings.ack_wait;
            loop {
                let handed = state.exhausted.take(EXHAUSTED_POOL, 1, until).pop()?;
                let (stage, seq) = exhausted_task(&handed.message.subject);
                match state.tasks.get(&stage).and_then(|tasks| tasks.message(seq)) {
                    Some(message) => return Some((stage, seq, handed, message.clone())),
                    // It was purged meanwhile.
                    None => state.exhausted.remove(handed.seq),
                }
            }
        });
        let (stage, seq, handed, mut message) = found.await;
        let reason = format!("delivered {} times without an outcome", shared.settings.max_deliver);
        message.headers.push((subjects::REASON_HEADER, reason));
        let notice =
            MemoryLease { shared: shared.clone(), stage: None, seq: handed.seq, attempt: handed.attempt };
        Ok(Exhausted { message, seq, lease: Arc::new(ExhaustedLease { stage, seq, notice }) })
    }
}
