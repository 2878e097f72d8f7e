//! Tasks that nobody could do.

use std::time::Duration;

use bytes::Bytes;
use millrace_schemas::envelope::decode;
use millrace_schemas::subjects::REASON_HEADER;
use millrace_schemas::{Event, Stage, Task, subjects};

use super::{Fixture, MAX_DELIVER, is_quiet, message, payload, pull_one, run, soon, task, until};
use crate::broker::{Log, OpenError};
use crate::port::{Exhausted, Message, Puller, Put};

/// The next event of the log.
async fn next_event(log: &mut Log) -> Event {
    let mut logged = soon("an event is logged", log.next(1)).await.expect("the log is read");
    logged.remove(0).event.expect("it can be read")
}

/// The next exhausted task, while a worker of the pool waits for more: the server gives a task up only when
/// it is asked for one.
async fn next_exhausted(fixture: &Fixture, puller: &mut Box<dyn Puller>) -> Exhausted {
    let mut exhausted = fixture.broker.exhausted().await.expect("listened to");
    tokio::select! {
        found = soon("it is exhausted", exhausted.next()) => found.expect("found"),
        pulled = puller.pull(1) => panic!("delivered too often: {:?}", pulled.map(|pulled| pulled.len())),
    }
}

/// Its workers die one after another: it is given out as exhausted, again and again until settled.
pub async fn a_silent_task_is_exhausted(fixture: Fixture) {
    let one = task(1, 0, 4);
    fixture.put(std::slice::from_ref(&one)).await;
    let mut puller = fixture.puller().await;
    for attempt in 1..=MAX_DELIVER.unsigned_abs() {
        assert_eq!(pull_one(&mut puller).await.attempt, attempt);
    }
    // Its pool has no worker for a while. Once one asks for more, the task is found, and not delivered.
    drop(puller);
    let mut puller = fixture.puller().await;
    let first = next_exhausted(&fixture, &mut puller).await;
    assert_eq!(first.message.payload, payload(&one));
    assert!(first.message.header(REASON_HEADER).expect("a reason").contains("delivered 3 times"));
    assert_eq!(fixture.put(std::slice::from_ref(&one)).await, [Put::AlreadyQueued], "it is not lost yet");
    // Its worker dies before the task is buried.
    drop(first.lease);
    let again = next_exhausted(&fixture, &mut puller).await;
    assert_eq!(again.seq, first.seq);
    fixture.broker.bury_exhausted(&again).await.expect("buried");
    drop(puller);
    let letters = fixture.broker.dead_letters().await.expect("listed");
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].payload, payload(&one));
    assert_eq!(letters[0].task, Some((run(), one.key)));
    assert_eq!(fixture.put(std::slice::from_ref(&one)).await, [Put::Queued], "its place is free");
    let mut log = fixture.broker.read_log(1).await.expect("read");
    assert!(matches!(next_event(&mut log).await, Event::DeadLetter { key, .. } if key == one.key));
}

/// Giving back counts too: a task cannot be passed round for ever.
pub async fn a_returned_task_is_exhausted(fixture: Fixture) {
    let one = task(1, 0, 4);
    fixture.put(std::slice::from_ref(&one)).await;
    let mut puller = fixture.puller().await;
    for _ in 0..MAX_DELIVER {
        let delivery = pull_one(&mut puller).await;
        delivery.lease.retry_after(Duration::from_millis(1)).await.expect("said");
    }
    let found = next_exhausted(&fixture, &mut puller).await;
    assert_eq!(found.message.payload, payload(&one));
    found.lease.done().await.expect("removed");
    assert_eq!(fixture.put(std::slice::from_ref(&one)).await, [Put::Queued]);
}

/// What is gone is not given out as exhausted; what comes after is.
pub async fn a_purged_task_is_not_exhausted(fixture: Fixture) {
    let (gone, stays) = (task(1, 3, 4), task(2, 4, 4));
    fixture.put(&[gone.clone(), stays.clone()]).await;
    let mut puller = fixture.puller().await;
    for _ in 0..2 * MAX_DELIVER {
        let delivery = pull_one(&mut puller).await;
        delivery.lease.retry_after(Duration::from_millis(1)).await.expect("said");
    }
    assert!(is_quiet(&mut puller).await);
    let filter = subjects::tasks_of_version(Stage::Generate, &run(), gone.version);
    assert_eq!(fixture.queue.purge(Stage::Generate, &filter).await.expect("purged"), 1);
    let mut exhausted = fixture.broker.exhausted().await.expect("listened to");
    let found = soon("one is exhausted", exhausted.next()).await.expect("found");
    assert_eq!(found.message.payload, payload(&stays));
}

/// Bytes that are no task end among the dead letters, and the loop goes on.
pub async fn an_unreadable_task_is_buried_with_its_bytes(fixture: Fixture) {
    let (named, garbage) = (task(1, 0, 4), Bytes::from_static(b"\xc1 no message"));
    let other = payload(&task(7, 0, 4));
    let bad = [message(&named, garbage.clone()), message(&task(2, 0, 4), other.clone())];
    let put = fixture.queue.put(bad.to_vec()).await;
    assert!(put.iter().all(|put| matches!(put, Ok(Put::Queued))));
    fixture.put(&[task(3, 0, 4)]).await;
    let mut puller = fixture.puller().await;
    let mut read = Vec::new();
    for _ in 0..3 {
        let delivery = pull_one(&mut puller).await;
        match fixture.broker.open_task(&delivery).await {
            Ok(task) => read.push(task),
            Err(OpenError::Undecodable(reason)) => {
                fixture.broker.bury(&delivery, &reason).await.expect("buried");
            }
            Err(e @ OpenError::Unavailable(_)) => panic!("{e}"),
        }
    }
    assert_eq!(read, [task(3, 0, 4)]);
    let letters = fixture.broker.dead_letters().await.expect("listed");
    assert_eq!([&letters[0].payload, &letters[1].payload], [&garbage, &other]);
    assert!(letters[1].reason.contains("g7r0a0-s1"), "its content names another task: {}", letters[1].reason);
    let mut log = fixture.broker.read_log(1).await.expect("read");
    assert!(matches!(next_event(&mut log).await, Event::DeadLetter { key, .. } if key == named.key));
    fixture.put_until_queued(&named).await;
}

/// A worker that dies between burying and settling buries it again: there is one letter.
pub async fn a_letter_is_buried_once(fixture: Fixture) {
    fixture.put(&[task(1, 0, 4)]).await;
    let mut puller = fixture.puller().await;
    let delivery = pull_one(&mut puller).await;
    fixture.broker.bury(&delivery, "no good\r\nand two lines").await.expect("buried");
    fixture.broker.bury(&delivery, "no good").await.expect("buried");
    let letters = fixture.broker.dead_letters().await.expect("listed");
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].reason, "no good  and two lines");
}

/// The log has the requeue first; then the task is put on its old subject with its old bytes.
pub async fn a_dead_letter_is_tried_again(fixture: Fixture) {
    let one = task(1, 5, 4);
    fixture.put(std::slice::from_ref(&one)).await;
    let mut puller = fixture.puller().await;
    let delivery = pull_one(&mut puller).await;
    fixture.broker.bury(&delivery, "no good").await.expect("buried");
    let seq = fixture.broker.dead_letters().await.expect("listed")[0].seq;
    assert!(fixture.broker.requeue_dead(seq + 1).await.is_err(), "there is no such letter");
    until("its place is free", async || fixture.broker.requeue_dead(seq).await.is_ok()).await;
    assert!(fixture.broker.dead_letters().await.expect("listed").is_empty());
    let again = pull_one(&mut puller).await;
    assert_eq!(decode::<Task>("task", &again.message.payload).expect("a task"), one);
    assert_eq!(again.message.headers, delivery.message.headers);
    let mut log = fixture.broker.read_log(1).await.expect("read");
    assert!(matches!(next_event(&mut log).await, Event::DeadLetter { .. }));
    assert!(matches!(next_event(&mut log).await, Event::Requeued { key } if key == one.key));
    // It dies once more, soon after.
    fixture.broker.bury(&again, "no good").await.expect("buried");
    assert_eq!(fixture.broker.dead_letters().await.expect("listed").len(), 1);
}

/// A role that may write dead letters of one stage cannot requeue a task of another stage with
/// them.
pub async fn a_letter_of_another_stage_is_not_tried_again(fixture: Fixture) {
    let one = task(1, 5, 4);
    let subject = message(&one, payload(&one)).subject;
    let headers =
        vec![(subjects::SUBJECT_HEADER, subject.clone()), (subjects::REASON_HEADER, "no good".into())];
    for (at, right) in [
        ("mr.dead.train_shard.default.demo.g1r0a0-s1", false),
        ("mr.dead.generate.other.demo.g1r0a0-s1", false),
        ("mr.dead.generate.default.other.g1r0a0-s1", false),
        ("mr.dead.generate.default.demo.g2r0a0-s1", false),
        ("mr.dead.generate.default.demo.g1r0a0-s1", true),
    ] {
        let letter = Message { subject: at.into(), payload: payload(&one), headers: headers.clone() };
        fixture.queue.bury(letter, at).await.expect("stored");
        let letters = fixture.broker.dead_letters().await.expect("listed");
        let letter = letters.last().expect("it was stored");
        assert_eq!(letter.refusal.is_none(), right, "{at}");
        let tried = fixture.broker.requeue_dead(letter.seq).await.map_err(|e| e.to_string());
        assert!(right || tried.as_ref().is_err_and(|e| e.contains(at) && e.contains(&subject)), "{tried:?}");
        assert_eq!(tried.is_ok(), right, "{tried:?}");
    }
    let mut puller = fixture.puller().await;
    assert_eq!(pull_one(&mut puller).await.message.subject, subject);
    assert!(is_quiet(&mut puller).await, "one task was put");
}
