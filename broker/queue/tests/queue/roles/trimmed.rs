//! A worker may not ask which log it is, and reads what was trimmed from it all the same.

use std::collections::BTreeSet;

use millrace_queue::{Broker, EventLog, Objects, TrimRule};
use millrace_schemas::Event;

use super::guarded::Fleet;

#[tokio::test]
async fn a_worker_of_a_guarded_server_reads_trimmed_entries() {
    let fleet = Fleet::start().await;
    let objects = Objects::memory();
    let coordinator = Broker::new(fleet.coordinator().await, objects.clone());
    for number in 0..7 {
        let reason = format!("entry {number}");
        coordinator.append("lake", &Event::Cancelled { reason }).await.unwrap();
    }
    let (runs, may_act) = (BTreeSet::new(), || true);
    let rule = TrimRule { before: 6, stored_before_ns: u64::MAX, runs: &runs, entries: 5, may_act: &may_act };
    coordinator.trim_log(rule).await.unwrap().expect("a segment");
    let queue = fleet.queue("generate").await;
    assert!(queue.log_range().await.is_err_and(|error| !error.is_transient()), "it has no right to");
    let worker = Broker::new(queue, objects);
    // One of them is missing because it is not there yet.
    for _ in 0..2 {
        let found = worker.entries(&[7, 2, 9, 5]).await.unwrap();
        let found: Vec<_> = found.into_iter().map(|entry| Some(entry?.event.unwrap())).collect();
        let entry = |number| Some(Event::Cancelled { reason: format!("entry {number}") });
        assert_eq!(found, [entry(6), entry(1), None, entry(4)]);
    }
}
