//! Payloads over 256 KiB travel by claim.

use bytes::Bytes;
use millrace_schemas::blob::paths;
use millrace_schemas::limits::{MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES};
use millrace_schemas::{BlobRef, Event, Outcome, OutcomeBody, generate, subjects};

use super::{Fixture, payload, pull_one, run, soon, task};
use crate::broker::OpenError;
use crate::port::Put;

/// Tokens of a task that no message could hold.
const MANY: usize = 1_000_000;

/// What arrives is what was put, whatever its size.
pub async fn a_large_task_travels_by_claim(fixture: Fixture) {
    let large = task(1, 0, MANY);
    assert!(payload(&large).len() > MAX_PAYLOAD_BYTES);
    let put = fixture.put(&[task(0, 0, 4), large.clone(), task(2, 0, 4)]).await;
    assert_eq!(put, [Put::Queued; 3]);
    let mut puller = fixture.puller().await;
    let mut read = Vec::new();
    for _ in 0..3 {
        let delivery = pull_one(&mut puller).await;
        assert!(delivery.message.payload.len() <= MAX_INLINE_BYTES);
        read.push(fixture.broker.open_task(&delivery).await.expect("it can be read"));
        delivery.lease.done().await.expect("said");
    }
    assert_eq!(read, [task(0, 0, 4), large, task(2, 0, 4)]);
}

/// The same for the log, in its place.
pub async fn a_large_outcome_travels_by_claim(fixture: Fixture) {
    let count = MANY as u32;
    let done = generate::GenerateDone {
        tokens: (0..count).collect(),
        logprobs: vec![-1.0; MANY],
        uncut_logprobs: Vec::new(),
        segments: vec![generate::Segment { version: millrace_schemas::PolicyVersion(0), tokens: count }],
        finish: generate::Finish::Length,
        prefill_tokens: 0,
        cached_tokens: 0,
    };
    let worker = "w1".parse().expect("a worker name");
    let body = OutcomeBody::Generate(done);
    let large = Event::Outcome(Outcome { key: task(1, 0, 1).key, worker, busy_us: 7, answers: None, body });
    let (run, broker) = (run(), &fixture.broker);
    let small = Event::Tick { unix_ms: 1 };
    let mut expected = Vec::new();
    for event in [&small, &large, &small] {
        broker.append(run.as_str(), event).await.expect("appended");
        expected.push(event.clone());
    }
    let mut log = broker.read_log(1).await.expect("read");
    let mut read = Vec::new();
    while read.len() < 3 {
        for logged in soon("the log is read", log.next(10)).await.expect("read") {
            assert_eq!(logged.seq, read.len() as u64 + 1);
            read.push(logged.event.expect("an event"));
        }
    }
    assert!(read == expected, "the events are those appended");
}

/// A payload that is gone, cut short or changed is never taken for the task.
pub async fn a_lost_payload_is_poison(fixture: Fixture) {
    let large = task(1, 0, MANY);
    let blob = BlobRef::of(&payload(&large));
    let path = paths::blob(&run(), &blob.sha256);
    fixture.put(std::slice::from_ref(&large)).await;
    let mut puller = fixture.puller().await;
    let delivery = pull_one(&mut puller).await;
    assert!(delivery.message.header(subjects::CLAIM_HEADER).is_some());
    let (objects, broker) = (fixture.broker.objects(), &fixture.broker);
    let mut changed = payload(&large).to_vec();
    changed[MANY] ^= 1;
    let cut = changed[..MANY].to_vec();
    for wrong in [Some(changed), Some(cut), None] {
        match wrong {
            Some(content) => objects.put(&path, Bytes::from(content)).await.expect("written"),
            None => objects.delete(&path).await.expect("deleted"),
        }
        let opened = broker.open_task(&delivery).await;
        assert!(
            matches!(&opened, Err(OpenError::Undecodable(reason)) if reason.contains("blobs/")),
            "{opened:?}"
        );
    }
    // Doing it again mends it.
    objects.put_blob(&run(), payload(&large)).await.expect("written");
    assert_eq!(broker.open_task(&delivery).await.expect("it can be read"), large);
}
