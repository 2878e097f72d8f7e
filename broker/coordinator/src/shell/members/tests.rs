use std::sync::Arc;

use async_trait::async_trait;
use millrace_queue::clock::SystemClock;
use millrace_queue::port::{KeyValue, KeyWatcher};
use millrace_queue::{KeyStore, MemoryQueue, Objects, QueueError};
use millrace_schemas::subjects::WORKERS_BUCKET;
use tokio::sync::watch;
use tokio::time::sleep;

use super::*;
use crate::fold::gang::Member;
use crate::fold::state::State;

fn heartbeat(instance: &str, beat: u64) -> Heartbeat {
    Heartbeat { instance: instance.to_owned(), beat, leaving: false }
}

fn name() -> WorkerId {
    "a".parse().unwrap()
}

fn members(instance: &str) -> Members {
    Members::from([(name(), Member { instance: instance.to_owned(), joined: 1 })])
}

fn kinds(watched: &Heartbeats, members: &Members, now: Instant) -> Vec<&'static str> {
    watched.changes(members, now).iter().map(Event::kind).collect()
}

fn at(start: Instant, ms: u64) -> Instant {
    start + Duration::from_millis(ms)
}

/// Heartbeats of the numbers `beats`, with checks in between.
fn beating(watched: &mut Heartbeats, start: Instant, instance: &str, beats: std::ops::Range<u64>) {
    for beat in beats {
        watched.hear(name(), heartbeat(instance, beat), at(start, beat * MEMBER_BEAT_MS));
        watched.look(at(start, beat * MEMBER_BEAT_MS));
        watched.look(at(start, beat * MEMBER_BEAT_MS + MEMBER_BEAT_MS / 2));
    }
}

#[test]
fn a_second_heartbeat_makes_a_member_and_a_leftover_does_not() {
    let (mut watched, start) = (Heartbeats::default(), Instant::now());
    watched.hear(name(), heartbeat("i", 7), start);
    assert!(kinds(&watched, &Members::new(), start).is_empty());
    watched.hear(name(), heartbeat("i", 8), at(start, 100));
    assert_eq!(kinds(&watched, &Members::new(), at(start, 100)), ["joined"]);
    assert!(kinds(&watched, &members("i"), at(start, 100)).is_empty(), "the log knows it");
}

#[test]
fn silence_ends_a_membership_and_a_heartbeat_restores_it() {
    let (mut watched, start) = (Heartbeats::default(), Instant::now());
    beating(&mut watched, start, "i", 0..3);
    let last = 2 * MEMBER_BEAT_MS;
    assert!(kinds(&watched, &members("i"), at(start, last + MEMBER_MS - 1)).is_empty());
    assert_eq!(kinds(&watched, &members("i"), at(start, last + MEMBER_MS)), ["left"]);
    watched.hear(name(), heartbeat("i", 3), at(start, 20_000));
    assert_eq!(kinds(&watched, &Members::new(), at(start, 20_000)), ["joined"]);
}

#[test]
fn another_process_of_the_same_name_is_another_member() {
    let (mut watched, start) = (Heartbeats::default(), Instant::now());
    beating(&mut watched, start, "i", 0..3);
    watched.hear(name(), heartbeat("j", 0), at(start, 3_000));
    assert_eq!(kinds(&watched, &members("i"), at(start, 3_000)), ["left"]);
    watched.hear(name(), heartbeat("j", 1), at(start, 3_100));
    assert_eq!(kinds(&watched, &members("i"), at(start, 3_100)), ["left", "joined"]);
}

#[test]
fn a_worker_that_reports_leaving_has_left() {
    let (mut watched, start) = (Heartbeats::default(), Instant::now());
    beating(&mut watched, start, "i", 0..3);
    watched.hear(name(), Heartbeat { leaving: true, ..heartbeat("i", 3) }, at(start, 3_000));
    assert_eq!(kinds(&watched, &members("i"), at(start, 3_000)), ["left"]);
    assert!(kinds(&watched, &Members::new(), at(start, 3_000)).is_empty());
}

#[test]
fn a_coordinator_that_was_paused_counts_no_silence_during_the_pause() {
    let (mut watched, start) = (Heartbeats::default(), Instant::now());
    beating(&mut watched, start, "i", 0..3);
    let woken = at(start, 100_000);
    watched.look(woken);
    assert!(kinds(&watched, &members("i"), woken).is_empty());
}

#[test]
fn a_member_without_a_heartbeat_is_removed_after_the_silence() {
    let (mut watched, start) = (Heartbeats::default(), Instant::now());
    watched.look(start);
    assert!(kinds(&watched, &members("i"), at(start, MEMBER_MS - 1)).is_empty());
    assert_eq!(kinds(&watched, &members("i"), at(start, MEMBER_MS)), ["left"]);
}

#[test]
fn a_flood_of_names_is_bounded_and_members_stay() {
    let (mut watched, start) = (Heartbeats::default(), Instant::now());
    beating(&mut watched, start, "i", 0..3);
    for beat in 0..2 {
        for number in 0..2 * MAX_NAMES {
            let flood = format!("flood-{number}").parse().unwrap();
            watched.hear(flood, heartbeat("x", beat), at(start, 2_000 + beat));
        }
    }
    assert_eq!(watched.seen.len() as i64, MAX_NAMES);
    let events = watched.changes(&members("i"), at(start, 2_100));
    assert_eq!(events.len(), MAX_MEMBERS - 1, "as many join as have room, and members stay");
    assert!(events.iter().all(|event| event.kind() == "joined"));
    // Once the flood is silent, other workers are recorded.
    watched.hear("late".parse().unwrap(), heartbeat("l", 0), at(start, 2_000 + MEMBER_MS + 100));
    assert!(watched.seen.contains_key(&"late".parse::<WorkerId>().unwrap()));
}

/// A watcher whose first read of all heartbeats takes long.
struct SlowWatcher {
    inner: Box<dyn KeyWatcher>,
    first: Duration,
    current: watch::Sender<bool>,
}

#[async_trait]
impl KeyWatcher for SlowWatcher {
    async fn next(&mut self) -> Result<KeyValue, QueueError> {
        if !*self.current.borrow() {
            sleep(self.first).await;
            self.current.send_replace(true);
        }
        self.inner.next().await
    }

    fn current(&self) -> watch::Receiver<bool> {
        self.current.subscribe()
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_first_read_of_heartbeats_is_no_silence() {
    for first_ms in [LOOK.as_millis() as u64 + 200, MEMBER_MS + 2_000] {
        let queue = MemoryQueue::new(Arc::new(SystemClock::new()));
        let broker = Broker::new(Arc::new(queue.clone()), Objects::memory());
        let inner = queue.watch(WORKERS_BUCKET).await.unwrap();
        let first = Duration::from_millis(first_ms);
        let slow = SlowWatcher { inner, first, current: watch::Sender::new(false) };
        let shared = SharedState::new(State { members: members("i"), ..State::default() });
        let term = Term::default();
        term.extend(term.now() + Duration::from_secs(3_600), 1);
        let beats = async {
            for beat in 0..20 {
                broker.sign_of_life(&name(), &heartbeat("i", beat)).await.unwrap();
                let newcomer = "newcomer".parse().unwrap();
                broker.sign_of_life(&newcomer, &heartbeat("j", beat)).await.unwrap();
                sleep(Duration::from_millis(MEMBER_BEAT_MS)).await;
            }
        };
        let mut watched = Heartbeats::default();
        let slow = SignsOfLife::new(Box::new(slow));
        tokio::select! {
            followed = follow(slow, &broker, &shared, &term, &mut watched) => panic!("{followed:?}"),
            () = beats => {}
        }
        let mut log = broker.read_log(1).await.unwrap();
        let kinds: Vec<_> =
            log.next(64).await.unwrap().into_iter().map(|entry| entry.event.unwrap()).collect();
        assert!(!kinds.is_empty() && kinds.iter().all(|event| event.kind() == "joined"), "{kinds:?}");
    }
}
