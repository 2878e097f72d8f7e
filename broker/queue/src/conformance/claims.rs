//! Payloads over 256 KiB travel by claim.

use bytes::Bytes;
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::envelope::encode;
use millrace_schemas::generate::GenerateDone;
use millrace_schemas::limits::{MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES};
use millrace_schemas::{BlobRef, Event, Outcome, OutcomeBody, PolicyVersion, subjects};

use super::{Fixture, payload, pull_one, run, soon, task};
use crate::broker::{Broker, OpenError};
use crate::port::{Message, Put};

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

/// A turn that no message could hold.
fn large_outcome() -> Event {
    let tokens: Vec<u32> = (0..MANY as u32).collect();
    let done = GenerateDone::sampled(&tokens, &vec![-1.0; MANY], PolicyVersion(0));
    let worker = "w1".parse().expect("a worker name");
    let body = OutcomeBody::Generate(done);
    Event::Outcome(Outcome { key: task(1, 0, 1).key, worker, busy_us: 7, request_fingerprint: None, body })
}

/// The next entry, with its content or in brief.
async fn read_at(broker: &Broker, seq: u64, whole: bool) -> Result<Event, String> {
    let log = if whole { broker.read_log(seq).await } else { broker.follow_log(seq).await };
    let read = soon("the log is read", log.expect("opened").next(1)).await.expect("read").remove(0);
    assert_eq!(read.seq, seq);
    read.event.map_err(|error| error.to_string())
}

/// Every fold of the log has the same result, whatever happens to the object store. A reader of the
/// content gets the error.
pub async fn what_is_decided_on_stands_in_the_log_itself(fixture: Fixture) {
    let (large, broker, run) = (large_outcome(), &fixture.broker, run());
    let brief = large.brief().expect("a turn");
    broker.append(run.as_str(), &large).await.expect("appended");
    assert_eq!(read_at(broker, 1, false).await.expect("an event"), brief);
    assert!(read_at(broker, 1, true).await.expect("an event") == large);
    let blob = BlobRef::of(&encode(&large));
    let path = paths::blob(&run, &blob.sha256);
    for wrong in [Some(Bytes::from(vec![7; blob.bytes as usize])), None] {
        match wrong {
            Some(content) => broker.objects().put(&path, content).await.expect("written"),
            None => broker.objects().delete(&path).await.expect("deleted"),
        }
        assert_eq!(read_at(broker, 1, false).await.expect("an event"), brief);
        assert!(read_at(broker, 1, true).await.expect_err("its content is lost").contains("blobs/"));
    }
    // A wrong brief form is detected by readers of the content. An outcome that claims nothing is
    // detected by all readers.
    broker.objects().put_blob(&run, encode(&large)).await.expect("written");
    let Event::Outcome(mut lie) = brief.clone() else { unreachable!("an outcome") };
    let OutcomeBody::TurnBrief(turn) = &mut lie.body else { unreachable!("a turn") };
    turn.highest = 3;
    let lie = Event::Outcome(lie);
    let claim = vec![(subjects::CLAIM_HEADER, format!("{}/{}", blob.sha256, blob.bytes))];
    for headers in [claim, vec![]] {
        let message = Message { subject: subjects::log(run.as_str(), &lie), payload: encode(&lie), headers };
        fixture.queue.append(message, None).await.expect("appended");
    }
    assert_eq!(read_at(broker, 2, false).await.expect("an event"), lie);
    assert!(read_at(broker, 2, true).await.expect_err("a lie").contains("in brief"));
    for whole in [false, true] {
        assert!(read_at(broker, 3, whole).await.expect_err("it claims nothing").contains("in brief"));
    }
    // What a worker claims in the old way, and is not there, is passed over; it holds nobody up.
    let subject = subjects::log(run.as_str(), &lie);
    let headers = vec![(subjects::CLAIM_HEADER, format!("{}/9", Sha::of(b"nothing")))];
    fixture.queue.append(Message { subject, payload: Bytes::new(), headers }, None).await.expect("appended");
    assert!(read_at(broker, 4, false).await.is_err());
}

/// The same for the log, in its place.
pub async fn a_large_outcome_travels_by_claim(fixture: Fixture) {
    let large = large_outcome();
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
