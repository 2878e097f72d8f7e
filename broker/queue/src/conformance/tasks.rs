//! Putting and pulling.

use std::collections::BTreeSet;
use std::time::Duration;

use millrace_schemas::{PolicyVersion, Stage, subjects};

use super::{Fixture, is_quiet, pool, pull, pull_one, run, soon, task, tasks};
use crate::port::{Delivery, Put};

fn subjects_of(delivered: &[Delivery]) -> BTreeSet<String> {
    delivered.iter().map(|delivery| delivery.message.subject.clone()).collect()
}

/// A put of a task that is queued or in flight is refused. Once settled, the task can be requeued.
pub async fn a_task_is_put_once(fixture: Fixture) {
    let one = task(1, 0, 4);
    let put = fixture.put(&[one.clone(), task(2, 0, 4), one.clone()]).await;
    assert_eq!(put, [Put::Queued, Put::Queued, Put::AlreadyQueued]);
    let mut puller = fixture.puller().await;
    let delivered = pull(&mut puller, 2).await;
    assert_eq!(fixture.put(std::slice::from_ref(&one)).await, [Put::AlreadyQueued], "it is in flight");
    assert_eq!(fixture.broker.open_task(&delivered[0]).await.expect("it can be read"), one);
    delivered[0].lease.done().await.expect("said");
    fixture.put_until_queued(&one).await;
    let again = pull_one(&mut puller).await;
    assert_eq!(again.attempt, 1, "it is a new task of the same name");
    assert!(again.seq > delivered[0].seq);
}

/// Every task goes to one of them.
pub async fn two_workers_share_a_pool(fixture: Fixture) {
    fixture.put(&tasks(40)).await;
    let (mut one, mut other) = (fixture.puller().await, fixture.puller().await);
    let mut delivered = Vec::new();
    for _ in 0..10 {
        delivered.extend(pull(&mut one, 2).await);
        delivered.extend(pull(&mut other, 2).await);
    }
    assert_eq!(subjects_of(&delivered).len(), 40);
    assert!(is_quiet(&mut one).await && is_quiet(&mut other).await);
}

/// What one worker has no slot for, another gets.
pub async fn a_pull_takes_no_more_than_the_free_slots(fixture: Fixture) {
    let (mut one, mut other) = (fixture.puller().await, fixture.puller().await);
    // Asked before there is anything, so that the server remembers the number.
    assert!(tokio::time::timeout(Duration::from_millis(50), one.pull(4)).await.is_err());
    fixture.put(&tasks(10)).await;
    let first = pull(&mut one, 4).await;
    let rest = pull(&mut other, 6).await;
    let mut all = subjects_of(&first);
    all.extend(subjects_of(&rest));
    assert_eq!(all.len(), 10);
    first[0].lease.done().await.expect("said");
    fixture.put(&[task(100, 0, 4), task(101, 0, 4)]).await;
    assert_eq!(pull(&mut one, 1).await.len(), 1, "one slot is free again");
    assert_eq!(pull(&mut other, 1).await.len(), 1);
}

/// A worker may stop waiting at any moment.
pub async fn a_dropped_pull_loses_nothing(fixture: Fixture) {
    let mut puller = fixture.puller().await;
    let mut delivered = Vec::new();
    for group in 0..50 {
        let put = async {
            tokio::time::sleep(Duration::from_micros(group * 20)).await;
            fixture.put(&[task(group, 0, 4)]).await;
        };
        tokio::select! {
            biased;
            pulled = puller.pull(64) => delivered.extend(pulled.expect("the queue delivers")),
            () = put => {}
        }
        // The put may have been dropped before it was sent.
        fixture.put(&[task(group, 0, 4)]).await;
    }
    while subjects_of(&delivered).len() < 50 {
        delivered.extend(soon("every task comes", puller.pull(64)).await.expect("the queue delivers"));
    }
    assert_eq!(delivered.len(), 50, "none came twice");
}

/// Nothing that is delivered while a worker leaves waits for its lease to end.
pub async fn closing_gives_back(fixture: Fixture) {
    let mut stays = fixture.puller().await;
    for round in 0..20 {
        let mut leaves = fixture.puller().await;
        assert!(tokio::time::timeout(Duration::from_millis(10), leaves.pull(8)).await.is_err());
        let put: Vec<_> = (0..8).map(|i| task(round * 100 + i, 0, 4)).collect();
        // Delivered before, while and after the worker closes.
        let (_, ()) = tokio::join!(fixture.put(&put), leaves.close());
        let delivered = pull(&mut stays, 8).await;
        assert_eq!(subjects_of(&delivered).len(), 8);
        for delivery in delivered {
            delivery.lease.done().await.expect("said");
        }
    }
}

/// A worker may start before its pool exists.
pub async fn a_puller_waits_for_its_pool(fixture: Fixture) {
    let mut early = fixture.queue.puller(Stage::Generate, &pool()).await.expect("a puller");
    assert!(tokio::time::timeout(Duration::from_millis(100), early.pull(1)).await.is_err());
    fixture.put(&tasks(1)).await;
    fixture.queue.ensure_pool(Stage::Generate, &pool()).await.expect("the pool is made");
    fixture.queue.ensure_pool(Stage::Generate, &pool()).await.expect("making it again is harmless");
    pull_one(&mut early).await;
}

/// A purge drops the queued tasks of a version and keeps those of others. Settling a purged task in
/// flight is harmless.
pub async fn a_purge_drops_one_version(fixture: Fixture) {
    let old: Vec<_> = (0..3).map(|group| task(group, 3, 4)).collect();
    fixture.put(&old).await;
    let mut puller = fixture.puller().await;
    let in_hand = pull_one(&mut puller).await;
    // Version 30 begins with the same digit.
    let others = [task(10, 4, 4), task(11, 30, 4)];
    fixture.put(&others).await;
    let filter = subjects::tasks_of_version(Stage::Generate, &run(), PolicyVersion(3));
    let purged = fixture.queue.purge(Stage::Generate, &filter).await.expect("purged");
    assert_eq!(purged, 3, "the one in flight leaves the queue too");
    let delivered = pull(&mut puller, 2).await;
    let versions: Vec<_> = delivered
        .iter()
        .map(|d| subjects::parse_task(&d.message.subject).expect("a task").version.0)
        .collect();
    assert_eq!(versions, [4, 30]);
    assert!(is_quiet(&mut puller).await);
    in_hand.lease.done().await.expect("settling a purged task is harmless");
    fixture.put_until_queued(&old[0]).await;
    assert_eq!(pull_one(&mut puller).await.attempt, 1, "it may be requeued, and counts as new");
    fixture.put(&[task(20, 5, 4), task(21, 6, 4)]).await;
    let filter = subjects::tasks_of_run(Stage::Generate, &run());
    let purged = fixture.queue.purge(Stage::Generate, &filter).await.expect("purged");
    assert_eq!(purged, 5, "two queued and three in flight");
    assert!(is_quiet(&mut puller).await);
}
