//! Partitions: the puller of highest priority gets the task. Where it has no free slot, the next
//! puller gets the task at once.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::join;
use millrace_schemas::{PoolName, Stage, Task};
use tokio::time::Instant;

use super::{Fixture, is_quiet, pull_one, soon, task};
use crate::port::{Delivery, PoolPriority, Puller};

/// Partitions of the cases.
const PARTITIONS: u64 = 4;
/// Far less than a lease: a task that was lost on its way to one who has gone would come later.
const AT_ONCE: Duration = Duration::from_secs(5);

fn partition(index: u64) -> PoolName {
    format!("part-{index:02}").parse().expect("a pool name")
}

/// Task `group` of a partition.
fn of(index: u64, group: u64) -> Task {
    Task { pool: partition(index), ..task(group, 0, 4) }
}

impl Fixture {
    /// A puller with these pull priorities at the partitions in turn.
    async fn puller_of(&self, priorities: [u8; PARTITIONS as usize]) -> Box<dyn Puller> {
        let mut partitions = Vec::new();
        for (index, priority) in (0..).zip(priorities) {
            let pool = partition(index);
            self.queue.ensure_partition(Stage::Generate, &pool).await.expect("the partition is made");
            partitions.push(PoolPriority { pool, priority });
        }
        self.queue.priority_puller(Stage::Generate, partitions).await.expect("a puller")
    }
}

/// Waits for a task with both pullers. Returns whether the first one gets it.
async fn race(
    one: (&mut Box<dyn Puller>, usize),
    other: (&mut Box<dyn Puller>, usize),
) -> (bool, Vec<Delivery>) {
    soon("a task is delivered", async {
        tokio::select! {
            pulled = one.0.pull(one.1) => (true, pulled.expect("the queue delivers")),
            pulled = other.0.pull(other.1) => (false, pulled.expect("the queue delivers")),
        }
    })
    .await
}

/// All of a partition's tasks go to the one of highest priority there, for as long as it waits with
/// a free slot.
pub async fn the_first_in_priority_gets_the_task(fixture: Fixture) {
    let (mut one, mut other) = (fixture.puller_of([0, 6, 2, 9]).await, fixture.puller_of([3, 0, 5, 1]).await);
    let mut group = 0;
    for (index, ones) in [(0, true), (1, false), (2, true), (3, false), (0, true), (1, false)] {
        // A request is under way for a moment, so one task tells that both wait.
        let mut told = false;
        let mut before = 0;
        while before < 2 {
            group += 1;
            let tasks = [of(index, group)];
            let ((is_one, got), _) = join!(race((&mut one, 40), (&mut other, 40)), fixture.put(&tasks));
            assert_eq!(got.len(), 1);
            got[0].lease.done().await.expect("said");
            assert!(is_one == ones || !told, "partition {index}: it went to the one of lower priority");
            told = is_one == ones;
            before += u32::from(told);
            assert!(group < 1_000, "partition {index}: it never goes to the one of highest priority");
        }
    }
}

/// The next in priority gets the task at once, and the first again as soon as it has a slot.
pub async fn a_full_or_lost_first_in_priority_is_passed_over(fixture: Fixture) {
    let (mut first, mut next) = (fixture.puller_of([0; 4]).await, fixture.puller_of([4; 4]).await);
    let mut group = 0;
    let mut put = async |index| {
        group += 1;
        fixture.put(&[of(index, group)]).await;
    };
    for round in 0..3 {
        put(round).await;
        // Its only slot.
        let held = pull_one(&mut first).await;
        let since = Instant::now();
        put(round).await;
        let passed = pull_one(&mut next).await;
        assert!(since.elapsed() < AT_ONCE, "not at once: {:?}", since.elapsed());
        assert_eq!(passed.attempt, 1);
        for delivery in [held, passed] {
            delivery.lease.done().await.expect("said");
        }
    }
    // It waits, and is gone without a word.
    assert!(is_quiet(&mut first).await);
    drop(first);
    let since = Instant::now();
    for index in 0..PARTITIONS {
        put(index).await;
        pull_one(&mut next).await;
    }
    assert!(since.elapsed() < AT_ONCE, "not at once: {:?}", since.elapsed());
}

/// Fewer slots than partitions: all tasks come in the end, each once, those of the lowest priority
/// as well.
pub async fn one_slot_serves_all_partitions(fixture: Fixture) {
    let mut puller = fixture.puller_of([0, 1, 2, 9]).await;
    let queued: Vec<_> = (0..40).map(|group| of(group % PARTITIONS, group)).collect();
    fixture.put(&queued).await;
    let mut order = Vec::new();
    for _ in 0..queued.len() {
        let delivery = pull_one(&mut puller).await;
        assert_eq!(delivery.attempt, 1, "what is queued is taken one by one");
        order.push(fixture.broker.open_task(&delivery).await.expect("it can be read").pool);
        delivery.lease.done().await.expect("said");
    }
    let last = partition(PARTITIONS - 1);
    let first = order.iter().position(|pool| *pool == last).expect("its tasks come");
    assert!(first < 20, "the last in priority waits for all others: {order:?}");
    assert!(is_quiet(&mut puller).await);
}

/// Many tasks at once, at all partitions, for pullers with few slots: none gets more than it has slots for, and what
/// one could not take another gets at once.
pub async fn slots_are_never_overrun(fixture: Fixture) {
    let mut pullers = Vec::new();
    for first in 0..3 {
        pullers.push(fixture.puller_of([first, 3 - first, first + 1, 9]).await);
    }
    for puller in &mut pullers {
        assert!(is_quiet(puller).await, "it waits");
    }
    let queued: Vec<_> = (0..30).map(|group| of(group % PARTITIONS, group)).collect();
    fixture.put(&queued).await;
    let since = Instant::now();
    let (mut subjects, mut most) = (BTreeSet::new(), 0);
    while subjects.len() < queued.len() {
        for (puller, free) in pullers.iter_mut().zip([1, 3, 6]) {
            let pulled = tokio::time::timeout(Duration::from_millis(200), puller.pull(free)).await;
            let Ok(pulled) = pulled else { continue };
            let pulled = pulled.expect("the queue delivers");
            assert!(pulled.len() <= free, "{} for {free} slots", pulled.len());
            for delivery in pulled {
                most = most.max(delivery.attempt);
                assert!(subjects.insert(delivery.message.subject.clone()), "a task came twice");
                delivery.lease.done().await.expect("said");
            }
        }
        assert!(since.elapsed() < 3 * AT_ONCE, "tasks wait for leases to end; {} came", subjects.len());
    }
    assert!(most <= 4, "a task was handed back {} times", most - 1);
}

/// Nothing that is on its way from any partition waits for a lease.
pub async fn closing_gives_back_of_all_partitions(fixture: Fixture) {
    let mut stays = fixture.puller_of([5; 4]).await;
    for round in 0..10 {
        let mut leaves = fixture.puller_of([0; 4]).await;
        assert!(tokio::time::timeout(Duration::from_millis(10), leaves.pull(8)).await.is_err());
        let queued: Vec<_> = (0..8).map(|i| of(i % PARTITIONS, round * 100 + i)).collect();
        let (_, ()) = tokio::join!(fixture.put(&queued), leaves.close());
        let mut subjects = BTreeSet::new();
        while subjects.len() < queued.len() {
            let pulled = soon("what was given back comes", stays.pull(8)).await;
            for delivery in pulled.expect("the queue delivers") {
                subjects.insert(delivery.message.subject.clone());
                delivery.lease.done().await.expect("said");
            }
        }
    }
}

/// A worker may stop waiting at any moment, with many slots or few.
pub async fn a_dropped_priority_pull_loses_nothing(fixture: Fixture) {
    let mut puller = fixture.puller_of([0, 3, 6, 9]).await;
    let mut subjects = BTreeSet::new();
    let mut take = |pulled: Vec<Delivery>| {
        for delivery in pulled {
            assert!(subjects.insert(delivery.message.subject.clone()), "a task came twice");
        }
        subjects.len()
    };
    for group in 0..40 {
        fixture.put(&[of(group % PARTITIONS, group)]).await;
        let pull = puller.pull(if group % 2 == 0 { 2 } else { 16 });
        if let Ok(pulled) = tokio::time::timeout(Duration::from_micros(group * 20), pull).await {
            take(pulled.expect("the queue delivers"));
        }
    }
    while take(Vec::new()) < 40 {
        take(soon("every task comes", puller.pull(16)).await.expect("the queue delivers"));
    }
}
