//! The log, and notices.

use std::time::Duration;

use bytes::Bytes;
use millrace_schemas::env_step::EnvStepDone;
use millrace_schemas::outcome::Returned;
use millrace_schemas::{Event, Outcome, OutcomeBody, WorkerId, subjects};

use super::{Fixture, pull_one, run, soon, task};
use crate::port::Message;

pub(super) fn outcome(group: u64, worker: &str) -> Event {
    let worker: WorkerId = worker.parse().expect("a worker name");
    let done = EnvStepDone {
        state: vec![],
        observation: vec![1],
        reward: 0.5,
        done: false,
        success: false,
        valid: true,
        ..EnvStepDone::default()
    };
    let body = OutcomeBody::EnvStep(done);
    Event::Outcome(Outcome {
        key: task(group, 0, 1).key,
        worker,
        busy_us: 7,
        request_fingerprint: None,
        body,
    })
}

/// Two workers did the same task: the first outcome wins.
pub async fn the_first_entry_with_an_id_wins(fixture: Fixture) {
    let (run, broker) = (run(), &fixture.broker);
    let first = broker.append(run.as_str(), &outcome(1, "w1")).await.expect("appended");
    let second = broker.append(run.as_str(), &outcome(1, "w2")).await.expect("appended");
    assert_eq!((first.seq, first.first), (1, true));
    assert_eq!((second.seq, second.first), (1, false));
    let tick = Event::Tick { unix_ms: 1 };
    for _ in 0..2 {
        let appended = broker.append(subjects::ALL_RUNS, &tick).await.expect("appended");
        assert!(appended.first, "an entry without an id is never dropped");
    }
    assert_eq!(broker.append("other", &outcome(1, "w1")).await.expect("appended").seq, 4, "of another run");
    assert_eq!(fixture.queue.log_end().await.expect("known"), 4);
    let mut log = broker.read_log(1).await.expect("read");
    let mut read = Vec::new();
    while read.len() < 4 {
        read.extend(soon("the log is read", log.next(10)).await.expect("read"));
    }
    assert_eq!(read[0].event.as_ref().expect("an event"), &outcome(1, "w1"));
    assert_eq!((read[1].run.as_str(), read[3].run.as_str()), (subjects::ALL_RUNS, "other"));
}

/// A worker may say an outcome twice, and a delivery may come twice: that is one entry. Who puts the task again asks
/// again.
pub async fn a_task_put_again_is_answered_again(fixture: Fixture) {
    let (run, asked) = (run(), task(1, 0, 1));
    let mut puller = fixture.puller().await;
    let mut answers = Vec::new();
    for put in 0..2 {
        fixture.put_until_queued(&asked).await;
        let first = pull_one(&mut puller).await;
        first.lease.retry_after(Duration::ZERO).await.expect("given back");
        let again = pull_one(&mut puller).await;
        assert_eq!((again.attempt, again.stored_ns), (2, first.stored_ns), "put {put}");
        for delivery in [&first, &first, &again] {
            let event = outcome(1, "w1");
            let answer = fixture.broker.append_outcome(&run, asked.key, delivery, &event).await;
            answers.push(answer.expect("appended").first);
        }
        again.lease.done().await.expect("settled");
    }
    assert_eq!(answers, [true, false, false, true, false, false]);
    // Returned by a worker whose ack was lost: who is given the same delivery later has an outcome of it all the same.
    fixture.put_until_queued(&asked).await;
    let delivery = pull_one(&mut puller).await;
    let mut answers = Vec::new();
    for body in [Some(OutcomeBody::Returned(Returned::default())), None, None] {
        let Event::Outcome(plain) = outcome(1, "w1") else { unreachable!() };
        let event = Event::Outcome(Outcome { body: body.unwrap_or_else(|| plain.body.clone()), ..plain });
        let answer = fixture.broker.append_outcome(&run, asked.key, &delivery, &event).await;
        answers.push(answer.expect("appended").first);
    }
    assert_eq!(answers, [true, true, false]);
}

/// Appended by many at once, read by several from different places: the same order for all, no gaps.
pub async fn the_log_is_read_in_order_from_anywhere(fixture: Fixture) {
    let (count, run) = (2_000, run());
    assert_eq!(fixture.queue.log_end().await.expect("known"), 0);
    let mut early = fixture.broker.read_log(1).await.expect("read");
    let append = async {
        let appends = (0..count).map(|group| {
            let (broker, run) = (&fixture.broker, &run);
            async move { broker.append(run.as_str(), &outcome(group, "w1")).await.expect("appended").first }
        });
        assert!(futures::future::join_all(appends).await.into_iter().all(|first| first));
    };
    let read = async {
        let mut events = Vec::new();
        while events.len() < count as usize {
            for logged in soon("the log is read", early.next(300)).await.expect("read") {
                assert_eq!(logged.seq, events.len() as u64 + 1);
                events.push(logged.event.expect("an event"));
            }
        }
        events
    };
    let ((), events) = tokio::join!(append, read);
    let from = 1_500;
    let mut late = fixture.broker.read_log(from).await.expect("read");
    let mut expected = from;
    while expected <= count {
        let logged = soon("the log is read", late.next(7)).await.expect("read");
        assert!(logged.len() <= 7);
        for logged in logged {
            assert_eq!(logged.seq, expected);
            assert_eq!(logged.event.expect("an event"), events[expected as usize - 1]);
            expected += 1;
        }
    }
    let next = tokio::time::timeout(Duration::from_millis(100), late.next(1)).await;
    assert!(next.is_err(), "there is no more");
    fixture.broker.append(run.as_str(), &outcome(count, "w1")).await.expect("appended");
    assert_eq!(soon("what comes later is read", late.next(9)).await.expect("read")[0].seq, count + 1);
    // A reader that starts at the end sees what comes, and nothing from before.
    let mut end = fixture.broker.read_log(count + 2).await.expect("read");
    assert!(tokio::time::timeout(Duration::from_millis(100), end.next(1)).await.is_err());
    fixture.broker.append(run.as_str(), &outcome(count + 1, "w1")).await.expect("appended");
    assert_eq!(soon("what comes later is read", end.next(9)).await.expect("read")[0].seq, count + 2);
    // Nor does one that starts beyond it.
    let mut beyond = fixture.broker.read_log(count + 5).await.expect("read");
    assert!(tokio::time::timeout(Duration::from_millis(100), beyond.next(1)).await.is_err());
    for group in 2..5 {
        fixture.broker.append(run.as_str(), &outcome(count + group, "w1")).await.expect("appended");
    }
    assert_eq!(soon("what comes later is read", beyond.next(9)).await.expect("read")[0].seq, count + 5);
}

/// It is given with the reason, and reading goes on.
pub async fn an_unreadable_entry_does_not_stop_the_log(fixture: Fixture) {
    let garbage = Message {
        subject: "mr.log.demo.outcome".into(),
        payload: Bytes::from_static(b"\xff\xff"),
        headers: vec![],
    };
    fixture.queue.append(garbage, None).await.expect("appended");
    let run = run();
    fixture.broker.append(run.as_str(), &outcome(1, "w1")).await.expect("appended");
    let mut log = fixture.broker.read_log(1).await.expect("read");
    let mut read = Vec::new();
    while read.len() < 2 {
        read.extend(soon("the log is read", log.next(10)).await.expect("read"));
    }
    let wrong = read[0].event.as_ref().expect_err("no event");
    assert_eq!(wrong.bytes, 2);
    assert_eq!(read[0].run, "demo");
    assert!(read[1].event.is_ok());
}

/// A reader may stop waiting at any moment.
pub async fn a_dropped_read_loses_nothing(fixture: Fixture) {
    let mut log = fixture.broker.read_log(1).await.expect("read");
    let run = run();
    let mut read = Vec::new();
    for group in 0..50 {
        let event = outcome(group, "w1");
        let append = async {
            fixture.broker.append(run.as_str(), &event).await.expect("appended");
        };
        tokio::select! {
            biased;
            logged = log.next(10) => read.extend(logged.expect("read")),
            () = append => {}
        }
        fixture.broker.append(run.as_str(), &event).await.expect("appended");
    }
    while read.len() < 50 {
        read.extend(soon("the log is read", log.next(10)).await.expect("read"));
    }
    assert!(read.iter().zip(1..).all(|(logged, seq)| logged.seq == seq));
}

/// A listener gets the notices that match its filter, in order.
pub async fn notices_reach_who_listens(fixture: Fixture) {
    let mut listener = fixture.queue.listen("mr.notice.*.step").await.expect("listening");
    let numbers = async {
        let mut numbers = Vec::new();
        while numbers.last() != Some(&3) {
            let notice = soon("a notice comes", listener.next()).await.expect("the connection is open");
            assert_eq!(notice.subject, "mr.notice.demo.step");
            numbers.push(serde_json::from_slice::<u64>(&notice.payload).expect("JSON"));
        }
        numbers
    };
    let send = async {
        for number in 1..=3_u64 {
            fixture.broker.notice("mr.notice.demo.ended".into(), &number).await;
            fixture.broker.notice("mr.notice.demo.step".into(), &number).await;
        }
    };
    let (numbers, ()) = tokio::join!(numbers, send);
    assert_eq!(numbers, [1, 2, 3]);
}
