//! Who listens to a command. What a listener has not taken is kept up to two bounds: its own, and one that
//! all listeners of a sandbox share. Beyond either it is told so and gets no more, and what waited for it
//! is dropped at once: a client that does not read may keep its connection open.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use millrace_sandbox::End;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// Bytes that wait for one listener at most.
const WAITING_BYTES: usize = 32 * 1024 * 1024;
/// Bytes that wait for all listeners of a sandbox at most.
const ALL_BYTES: usize = 64 * 1024 * 1024;
/// What one piece that waits costs besides its bytes.
const PIECE_COST: usize = 128;
/// Listeners of one command at once.
pub(super) const LISTENERS: usize = 16;

/// What a listener hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    Out(Bytes),
    Err(Bytes),
    /// The last word.
    Ended(End),
    /// The last word: the listener was too slow, and has not heard all.
    Lost,
}

impl Heard {
    fn cost(&self) -> usize {
        match self {
            Self::Out(bytes) | Self::Err(bytes) => bytes.len() + PIECE_COST,
            Self::Ended(_) | Self::Lost => 0,
        }
    }
}

/// The bytes that wait for all listeners of a sandbox.
#[derive(Debug, Clone, Default)]
pub(super) struct Budget(Arc<AtomicUsize>);

impl Budget {
    /// Returns whether there is room for them.
    fn take(&self, cost: usize) -> bool {
        let more = |taken: usize| taken.checked_add(cost).filter(|all| *all <= ALL_BYTES);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn give_back(&self, cost: usize) {
        self.0.fetch_sub(cost, Ordering::AcqRel);
    }
}

/// One who listens to a command from now on.
#[derive(Debug)]
pub(crate) struct Listener {
    line: Arc<Line>,
    /// Its place among the listeners of the command.
    _place: OwnedSemaphorePermit,
}

/// Where a listener is told.
#[derive(Debug)]
pub(super) struct Mouth(Arc<Line>);

/// What leads from a mouth to a listener.
#[derive(Debug)]
struct Line {
    queue: Mutex<Queue>,
    news: Notify,
    budget: Budget,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Heard>,
    bytes: usize,
    /// Nothing more comes: one of the two ends is gone, or the last word is said.
    is_over: bool,
}

pub(super) fn pair(budget: &Budget, place: OwnedSemaphorePermit) -> (Mouth, Listener) {
    let line = Arc::new(Line { queue: Mutex::default(), news: Notify::new(), budget: budget.clone() });
    (Mouth(Arc::clone(&line)), Listener { line, _place: place })
}

impl Line {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what waits.
    fn clear(&self, queue: &mut Queue) {
        queue.waiting = VecDeque::new();
        self.budget.give_back(std::mem::take(&mut queue.bytes));
    }
}

impl Mouth {
    /// Returns whether there is somebody to tell more.
    pub(super) fn say(&self, heard: Heard) -> bool {
        let Self(line) = self;
        let (cost, mut queue) = (heard.cost(), line.queue());
        if queue.is_over {
            return false;
        }
        let fits = queue.bytes + cost <= WAITING_BYTES && line.budget.take(cost);
        if fits {
            queue.bytes += cost;
            queue.waiting.push_back(heard);
        } else {
            line.clear(&mut queue);
            queue.waiting.push_back(Heard::Lost);
            queue.is_over = true;
        }
        line.news.notify_one();
        fits
    }
}

impl Drop for Mouth {
    fn drop(&mut self) {
        self.0.queue().is_over = true;
        self.0.news.notify_one();
    }
}

impl Listener {
    /// The next word; `Lost`, where nothing follows the last one.
    pub(crate) async fn next(&mut self) -> Heard {
        loop {
            if let Some(heard) = self.waiting() {
                return heard;
            }
            self.line.news.notified().await;
        }
    }

    fn waiting(&self) -> Option<Heard> {
        let mut queue = self.line.queue();
        let Some(heard) = queue.waiting.pop_front() else { return queue.is_over.then_some(Heard::Lost) };
        queue.bytes -= heard.cost();
        self.line.budget.give_back(heard.cost());
        Some(heard)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut queue = self.line.queue();
        queue.is_over = true;
        self.line.clear(&mut queue);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    fn listening(budget: &Budget) -> (Mouth, Listener) {
        pair(budget, Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap())
    }

    fn taken(budget: &Budget) -> usize {
        budget.0.load(Ordering::Acquire)
    }

    #[tokio::test]
    async fn a_slow_listener_is_told_what_it_misses_and_a_fast_one_misses_nothing() {
        let piece = Bytes::from(vec![0; 1024 * 1024]);
        let budget = Budget::default();
        let ((slow, mut slowly), (fast, mut quickly)) = (listening(&budget), listening(&budget));
        let mut told = None;
        for n in 0..100 {
            assert!(fast.say(Heard::Out(piece.clone())));
            assert_eq!(quickly.next().await, Heard::Out(piece.clone()));
            if told.is_none() && !slow.say(Heard::Out(piece.clone())) {
                told = Some(n);
                assert_eq!(taken(&budget), 0, "what waited is dropped before anybody asks for it");
            }
        }
        drop(slow);
        assert_eq!(told, Some(WAITING_BYTES / (piece.len() + PIECE_COST)));
        assert_eq!(slowly.next().await, Heard::Lost);
        drop(quickly);
        assert!(!fast.say(Heard::Out(piece)), "nobody listens");
    }

    #[tokio::test]
    async fn all_listeners_of_a_sandbox_share_one_bound() {
        let piece = Bytes::from(vec![0; 1024 * 1024]);
        let budget = Budget::default();
        let (mut mouths, listeners): (Vec<_>, Vec<_>) = (0..500).map(|_| listening(&budget)).unzip();
        // None of them has what one may have.
        for _ in 0..20 {
            mouths.retain(|mouth| mouth.say(Heard::Out(piece.clone())));
            assert!(taken(&budget) <= ALL_BYTES);
        }
        assert!(!mouths.is_empty() && taken(&budget) > 0, "some are lost, the others go on");
        // A client that goes gives its part back.
        drop(listeners);
        assert_eq!(taken(&budget), 0);
        let (mouth, mut listener) = listening(&budget);
        assert!(mouth.say(Heard::Out(piece.clone())) && mouth.say(Heard::Ended(End::Exit(0))));
        drop(mouth);
        assert_eq!(listener.next().await, Heard::Out(piece));
        assert_eq!((listener.next().await, taken(&budget)), (Heard::Ended(End::Exit(0)), 0));
        assert_eq!(listener.next().await, Heard::Lost);
    }
}
