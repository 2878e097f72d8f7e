//! Places at pools: a task goes to the waiting puller of highest priority, and among those to the one that waits for
//! longest.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use millrace_schemas::{PoolName, Stage};

use super::MemoryCore;
use super::deliveries::MemoryPuller;
use super::waiters::Topic;
use crate::partitions::Part;
use crate::port::{Delivery, QueueError};

/// The pullers that wait at each pool, in the order in which they are served.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    next: u64,
    places: BTreeMap<(Stage, PoolName), BTreeSet<(u8, u64)>>,
}

impl Waiting {
    /// The first one that waits: its priority and its ticket.
    fn first(&self, pool: &(Stage, PoolName)) -> Option<(u8, u64)> {
        self.places.get(pool).and_then(BTreeSet::first).copied()
    }

    /// Whether a puller of higher priority waits.
    fn precedes(&self, pool: &(Stage, PoolName), priority: u8) -> bool {
        self.first(pool).is_some_and(|(first, _)| first < priority)
    }
}

/// A place of one that waits; dropping it frees the place and wakes the others.
pub(super) struct Place<'a> {
    shared: &'a MemoryCore,
    pool: (Stage, PoolName),
    /// Priority and ticket.
    order: (u8, u64),
}

impl<'a> Place<'a> {
    pub(super) fn taken(shared: &'a MemoryCore, pool: (Stage, PoolName), priority: u8) -> Self {
        let waiting = &mut shared.state().waiting;
        waiting.next += 1;
        let order = (priority, waiting.next);
        waiting.places.entry(pool.clone()).or_default().insert(order);
        Self { shared, pool, order }
    }

    /// Whether a puller of higher priority waits.
    pub(super) fn is_preceded(&self, waiting: &Waiting) -> bool {
        waiting.precedes(&self.pool, self.order.0)
    }

    /// Whether nobody of this priority waits for longer.
    pub(super) fn is_first(&self, waiting: &Waiting) -> bool {
        waiting.first(&self.pool).is_none_or(|first| first >= self.order)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(places) = self.shared.state().waiting.places.get_mut(&self.pool) {
            places.remove(&self.order);
        }
        let (stage, pool) = &self.pool;
        self.shared.waiters.wake(&Topic::Tasks(*stage, pool.to_string()));
    }
}

#[async_trait]
impl Part for MemoryPuller {
    async fn take(&mut self, free: usize) -> Result<Vec<Delivery>, QueueError> {
        let (shared, pool) = (&self.shared, (self.stage, self.pool.clone()));
        let handed = {
            let mut state = shared.state();
            shared.expire(&mut state);
            let preceded = state.waiting.precedes(&pool, self.priority);
            let handed = if preceded { None } else { self.take_ready(&mut state, free) };
            shared.tell(state);
            handed
        };
        Ok(self.give(handed.unwrap_or_default()))
    }

    fn asked(&self) -> usize {
        0
    }

    async fn retract(&mut self) {}

    fn arrived(&mut self) -> Vec<Delivery> {
        Vec::new()
    }
}
