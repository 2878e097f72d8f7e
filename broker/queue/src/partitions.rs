//! Several partitions as one puller. Each task of a partition goes to the waiting puller of highest
//! priority. So a puller waits at all partitions, with as many requests as it has free slots, most
//! of them where its priority is high.
//!
//! With fewer slots than partitions it still waits for one task at each. It withdraws its other
//! requests as soon as its slots are filled, and requeues tasks that came meanwhile at once. Where
//! tasks are queued already, that would happen each time. So it first takes queued tasks from one
//! partition after another.

use std::collections::VecDeque;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{join_all, select_all};
use millrace_schemas::limits::MAX_PULL_PRIORITY;

use crate::port::{Delivery, Puller, QueueError};

/// One of so many rounds through the partitions does not begin at the one of highest priority. Else
/// tasks of the last would wait for as long as the first has tasks.
const FAIR: usize = 4;

/// One partition as a part of a [`PartitionPuller`].
#[async_trait]
pub(crate) trait Part: Puller {
    /// Takes tasks that are queued now, at most `free`, and does not wait for more. Only while no
    /// request is open. Dropping the future loses nothing.
    async fn take(&mut self, free: usize) -> Result<Vec<Delivery>, QueueError>;

    /// Tasks that are requested, or delivered and not returned yet.
    fn asked(&self) -> usize;

    /// Withdraws the open requests. [`Self::arrived`] then has the tasks that were delivered all
    /// the same.
    async fn retract(&mut self);

    /// Tasks that were delivered and not returned yet.
    fn arrived(&mut self) -> Vec<Delivery>;
}

pub(crate) struct PartitionPuller {
    /// The highest priority first.
    parts: Vec<Box<dyn Part>>,
    /// How much of the free slots each part gets, against the others.
    weights: Vec<usize>,
    /// Delivered and not returned yet.
    ready: VecDeque<Delivery>,
    /// Rounds so far.
    rounds: usize,
}

impl PartitionPuller {
    /// A puller of `parts`, each with its priority.
    pub(crate) fn new(mut parts: Vec<(u8, Box<dyn Part>)>) -> Self {
        parts.sort_by_key(|(priority, _)| *priority);
        let weight =
            |priority: u8| usize::from(MAX_PULL_PRIORITY + 1 - priority.min(MAX_PULL_PRIORITY)).pow(2);
        let (weights, parts) = parts.into_iter().map(|(priority, part)| (weight(priority), part)).unzip();
        Self { parts, weights, ready: VecDeque::new(), rounds: 0 }
    }

    fn asked(&self) -> usize {
        self.parts.iter().map(|part| part.asked()).sum()
    }

    /// Takes what is queued in the first partition in which there is anything.
    async fn round(&mut self, free: usize) -> Result<(), QueueError> {
        self.rounds += 1;
        let (parts, fair) = (self.parts.len(), self.rounds.is_multiple_of(FAIR));
        let first = if fair { self.rounds / FAIR % parts } else { 0 };
        for part in (first..first + parts).map(|part| part % parts) {
            self.ready.extend(self.parts[part].take(free).await?);
            if !self.ready.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Waits at all partitions until there is a task at one.
    async fn wait(&mut self, free: usize) -> Result<(), QueueError> {
        let shares = shares(&self.weights, free);
        let asked: Vec<usize> = self.parts.iter().map(|part| part.asked()).collect();
        let wanted = match top_up(&shares, &asked, free) {
            Some(wanted) => wanted,
            None => {
                self.retract().await;
                shares
            }
        };
        if self.ready.is_empty() {
            let pulls = self.parts.iter_mut().zip(wanted).map(|(part, wanted)| part.pull(wanted));
            let (pulled, ..) = select_all(pulls).await;
            self.ready.extend(pulled?);
        }
        Ok(())
    }

    async fn retract(&mut self) {
        join_all(self.parts.iter_mut().filter(|part| part.asked() > 0).map(|part| part.retract())).await;
        self.ready.extend(self.parts.iter_mut().flat_map(|part| part.arrived()));
    }

    /// Gives back what is beyond `free`.
    async fn hand_back(&mut self, free: usize) {
        while self.ready.len() > free {
            if let Some(delivery) = self.ready.back() {
                // Were the word lost, the lease would end by itself.
                let _ = delivery.lease.retry_after(Duration::ZERO).await;
            }
            self.ready.pop_back();
        }
    }
}

/// How many of `free` tasks to ask of each partition: by weight, and at least one.
fn shares(weights: &[usize], free: usize) -> Vec<usize> {
    let (spare, all) = (free.saturating_sub(weights.len()), weights.iter().sum::<usize>().max(1));
    let mut shares: Vec<usize> = weights.iter().map(|weight| 1 + spare * weight / all).collect();
    let rounded_off = free.saturating_sub(shares.iter().sum());
    shares.iter_mut().take(rounded_off).for_each(|share| *share += 1);
    shares
}

/// The additional request for each partition, where `asked` are requested already, so that all
/// together are at most `free` (or one each). `None` where a partition would have less than half of
/// its share.
fn top_up(shares: &[usize], asked: &[usize], free: usize) -> Option<Vec<usize>> {
    let most = free.max(shares.len());
    let mut left = most.checked_sub(asked.iter().sum())?;
    let mut wanted = Vec::with_capacity(shares.len());
    for (share, asked) in shares.iter().zip(asked) {
        let more = share.saturating_sub(*asked).min(left);
        left -= more;
        wanted.push(asked + more);
    }
    let starved = wanted.iter().zip(shares).any(|(wanted, share)| wanted * 2 < *share);
    (!starved).then_some(wanted)
}

#[async_trait]
impl Puller for PartitionPuller {
    async fn pull(&mut self, free: usize) -> Result<Vec<Delivery>, QueueError> {
        if free == 0 {
            return std::future::pending().await;
        }
        while self.ready.is_empty() {
            if free < self.parts.len() && self.asked() == 0 {
                self.round(free).await?;
            }
            if self.ready.is_empty() {
                self.wait(free).await?;
            }
        }
        if self.asked() > free.saturating_sub(self.ready.len()) {
            self.retract().await;
        }
        self.hand_back(free).await;
        Ok(self.ready.drain(..).collect())
    }

    async fn close(&mut self) {
        join_all(self.parts.iter_mut().map(|part| part.close())).await;
        self.hand_back(0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_shared_by_priority_and_each_partition_gets_one() {
        assert_eq!(shares(&[100, 25, 1], 2), [1, 1, 1], "one each, and what is too much is handed back");
        assert_eq!(shares(&[100, 25, 1], 3), [1, 1, 1]);
        assert_eq!(shares(&[100, 25, 1], 63), [49, 13, 1]);
        for free in 3..200 {
            assert_eq!(shares(&[100, 25, 1], free).iter().sum::<usize>(), free);
        }
    }

    #[test]
    fn a_top_up_asks_for_no_more_than_the_free_slots() {
        assert_eq!(top_up(&[8, 4, 4], &[0, 0, 0], 16), Some(vec![8, 4, 4]));
        assert_eq!(top_up(&[8, 4, 4], &[6, 4, 4], 16), Some(vec![8, 4, 4]));
        assert_eq!(top_up(&[6, 3, 3], &[4, 4, 4], 12), Some(vec![4, 4, 4]), "all is asked for");
        assert_eq!(top_up(&[6, 3, 3], &[2, 5, 5], 12), None, "the first has too little of it");
        assert_eq!(top_up(&[1, 1, 1], &[1, 0, 1], 1), Some(vec![1, 1, 1]), "one each");
        assert_eq!(top_up(&[1, 1, 1], &[9, 0, 0], 4), None, "there are fewer slots than asked for");
    }
}
