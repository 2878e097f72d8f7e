//! Partitions: a task goes to the waiting puller of highest priority.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use millrace_schemas::{PoolName, Stage};

use super::MemoryCore;
use super::deliveries::MemoryPuller;
use super::waiters::Topic;
use crate::partitions::Part;
use crate::port::{Delivery, Puller, QueueError};

/// The pullers that wait at each partition, by priority.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    next: u64,
    places: BTreeMap<(Stage, PoolName), BTreeSet<Place>>,
}

/// Priority and id of a puller.
type Place = (u8, u64);

impl Waiting {
    /// Whether a puller of higher priority waits.
    fn precedes(&self, partition: &(Stage, PoolName), priority: u8) -> bool {
        self.places.get(partition).and_then(BTreeSet::first).is_some_and(|(first, _)| *first < priority)
    }
}

/// A puller of one partition.
pub(super) struct MemoryPart {
    puller: MemoryPuller,
    place: Place,
}

/// A waiting place; dropping it frees the place and wakes the waiting pullers.
struct Taken<'a> {
    shared: &'a MemoryCore,
    partition: (Stage, PoolName),
    place: Place,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(places) = self.shared.state().waiting.places.get_mut(&self.partition) {
            places.remove(&self.place);
        }
        let (stage, pool) = &self.partition;
        self.shared.waiters.wake(&Topic::Tasks(*stage, pool.to_string()));
    }
}

impl MemoryPart {
    pub(super) fn new(puller: MemoryPuller, priority: u8) -> Self {
        let id = {
            let waiting = &mut puller.shared.state().waiting;
            waiting.next += 1;
            waiting.next
        };
        Self { puller, place: (priority, id) }
    }

    fn partition(&self) -> (Stage, PoolName) {
        (self.puller.stage, self.puller.pool.clone())
    }

    fn take_place(&self) -> Taken<'_> {
        let (shared, partition, place) = (&self.puller.shared, self.partition(), self.place);
        shared.state().waiting.places.entry(partition.clone()).or_default().insert(place);
        Taken { shared, partition, place }
    }
}

#[async_trait]
impl Puller for MemoryPart {
    async fn pull(&mut self, free: usize) -> Result<Vec<Delivery>, QueueError> {
        if free == 0 {
            return std::future::pending().await;
        }
        let place = self.take_place();
        let handed = self.puller.shared.wait_for(self.puller.topic(), |state| {
            let preceded = state.waiting.precedes(&place.partition, place.place.0);
            if preceded { None } else { self.puller.take(state, free) }
        });
        Ok(self.puller.give(handed.await))
    }

    async fn close(&mut self) {}
}

#[async_trait]
impl Part for MemoryPart {
    async fn take(&mut self, free: usize) -> Result<Vec<Delivery>, QueueError> {
        let (shared, partition) = (&self.puller.shared, self.partition());
        let handed = {
            let mut state = shared.state();
            shared.expire(&mut state);
            let preceded = state.waiting.precedes(&partition, self.place.0);
            let handed = if preceded { None } else { self.puller.take(&mut state, free) };
            shared.tell(state);
            handed
        };
        Ok(self.puller.give(handed.unwrap_or_default()))
    }

    fn asked(&self) -> usize {
        0
    }

    async fn retract(&mut self) {}

    fn arrived(&mut self) -> Vec<Delivery> {
        Vec::new()
    }
}
