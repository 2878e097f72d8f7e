//! A trimmed log: the trimmed entries are in segments, and readers see no difference.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use millrace_schemas::blob::paths;
use millrace_schemas::limits::MAX_INLINE_EVENT_BYTES;
use millrace_schemas::{Event, subjects};

use super::log::outcome;
use super::{Fixture, run, soon};
use crate::broker::{Broker, BrokerError, Log, TrimRule};
use crate::port::Message;

const ENTRIES: u64 = 25;

fn yes() -> bool {
    true
}

/// Segments of ten entries, of all entries before `before`.
fn rule(before: u64, runs: &BTreeSet<millrace_schemas::RunId>) -> TrimRule<'_> {
    TrimRule { before, stored_before_ns: u64::MAX, runs, entries: 10, may_act: &yes }
}

/// Entries of two runs and of all, some of them large.
async fn fill(broker: &Broker) {
    for number in 0..ENTRIES {
        let appended = match number % 5 {
            0 => broker.append(subjects::ALL_RUNS, &Event::Tick { unix_ms: number }).await,
            1 => broker.append("other", &outcome(number, "w1")).await,
            2 => {
                let reason = "x".repeat(MAX_INLINE_EVENT_BYTES + 1 + number as usize);
                broker.append(run().as_str(), &Event::Cancelled { reason }).await
            }
            _ => broker.append(run().as_str(), &outcome(number, "w1")).await,
        };
        assert_eq!(appended.expect("appended").seq, number + 1);
    }
}

async fn read(log: &mut Log, count: usize) -> Vec<(u64, u64, String, Event)> {
    let mut read = Vec::new();
    while read.len() < count {
        for logged in soon("the log is read", log.next(7)).await.expect("read") {
            read.push((logged.seq, logged.stored_ns, logged.run, logged.event.expect("an event")));
        }
    }
    read
}

/// Where the log's segments begin.
async fn begin(broker: &Broker) -> Vec<u64> {
    let log = broker.queue().log_range().await.expect("known").id;
    broker.segments(log).await.expect("listed").firsts().collect()
}

/// The log holds what fills no segment; readers from before, and those that were in the midst of it, see all of it once.
pub async fn what_is_trimmed_is_read_from_segments(fixture: Fixture) {
    let (broker, runs) = (&fixture.broker, BTreeSet::from([run()]));
    fill(broker).await;
    let mut slow = broker.read_log(1).await.expect("read");
    let mut before = slow.next(3).await.expect("read");
    assert!(!before.is_empty());
    before.truncate(3);
    let whole = read(&mut broker.read_log(1).await.expect("read"), ENTRIES as usize).await;
    assert_eq!(broker.trim_log(rule(8, &runs)).await.expect("asked"), None, "nothing fills a segment");
    let first = broker.trim_log(rule(24, &runs)).await.expect("trimmed").expect("a segment");
    assert_eq!((first.first, first.last), (1, 10));
    assert_eq!(first.parts.iter().map(|part| part.run.as_str()).collect::<Vec<_>>(), ["all", "demo"]);
    let second = broker.trim_log(rule(24, &runs)).await.expect("trimmed").expect("a segment");
    assert_eq!((second.first, second.last), (11, 20));
    assert_eq!(broker.trim_log(rule(24, &runs)).await.expect("asked"), None, "three entries stay");
    let range = fixture.queue.log_range().await.expect("known");
    assert_eq!((range.first, range.last), (21, ENTRIES));
    assert_eq!(broker.log_start().await.expect("known"), 1);
    for from in [1, 5, 11, 20, 21, 24] {
        let mut log = broker.read_log(from).await.expect("read");
        let rest = read(&mut log, (ENTRIES + 1 - from) as usize).await;
        assert_eq!(rest, whole[from as usize - 1..], "from {from}");
    }
    let went_on = read(&mut slow, ENTRIES as usize - before.len()).await;
    assert_eq!(went_on, whole[before.len()..], "a reader that began before");
    let seqs = [22, 13, 2, 99, 14];
    let found = broker.entries(&seqs).await.expect("read");
    let stands: Vec<Option<u64>> =
        found.iter().map(|found| found.as_ref().map(|logged| logged.seq)).collect();
    assert_eq!(stands, [Some(22), Some(13), Some(2), None, Some(14)], "wherever they stand now");
    let index = broker.read_index(&second.parts[1]).await.expect("an index");
    let claimed = whole[10..20].iter().filter(|(.., event)| matches!(event, Event::Cancelled { .. })).count();
    assert_eq!((index.claims.len(), index.rollouts.len()), (claimed, 4));
    let found = index.rollouts.iter().find(|entries| entries.rollout.group == 13).expect("in the index");
    assert_eq!(found.seq, [14], "where its entry stands");
}

/// A process may stop between two steps of a trim, and the next one continues from there: nothing
/// is lost, and nothing is stored twice.
pub async fn trimming_goes_on_from_wherever_it_stopped(fixture: Fixture) {
    let (broker, runs) = (&fixture.broker, BTreeSet::from([run()]));
    fill(broker).await;
    let whole = read(&mut broker.read_log(1).await.expect("read"), ENTRIES as usize).await;
    // It stopped after the manifest was made: the log holds what the segment does.
    let asked = AtomicUsize::new(0);
    let may_act = || asked.fetch_add(1, Ordering::Relaxed) > 0;
    let stopped = broker.trim_log(TrimRule { may_act: &may_act, ..rule(24, &runs) }).await;
    assert_eq!(stopped.expect("asked"), None);
    let range = fixture.queue.log_range().await.expect("known");
    assert_eq!((range.first, begin(broker).await), (1, vec![1]));
    assert_eq!(read(&mut broker.read_log(1).await.expect("read"), ENTRIES as usize).await, whole);
    // Another process continues with other bounds, and uses the stored segment.
    let other = TrimRule { entries: 4, may_act: &may_act, ..rule(24, &runs) };
    let taken = broker.trim_log(other).await.expect("trimmed").expect("a segment");
    assert_eq!((taken.first, taken.last), (1, 10));
    assert_eq!(begin(broker).await, [1]);
    // Two at once.
    let (one, two) = tokio::join!(broker.trim_log(rule(24, &runs)), broker.trim_log(other));
    for trimmed in [one, two] {
        let late = matches!(&trimmed, Err(BrokerError::Invalid { .. }));
        assert!(late || trimmed.is_ok(), "{trimmed:?}");
    }
    assert_eq!(read(&mut broker.read_log(1).await.expect("read"), ENTRIES as usize).await, whole);
}

/// A segment that cannot be read back stops the trimming; entries that nothing holds stop the reading.
pub async fn nothing_is_trimmed_that_no_segment_proves(fixture: Fixture) {
    let (broker, runs) = (&fixture.broker, BTreeSet::from([run()]));
    fill(broker).await;
    let never = || false;
    let rule = rule(24, &runs);
    broker.trim_log(TrimRule { may_act: &never, ..rule }).await.expect("asked");
    let log = fixture.queue.log_range().await.expect("known").id;
    let segment = broker.segment_at(log, 0, 1).await.expect("read").expect("a segment");
    let part = &segment.parts[1];
    let path = paths::blob(&part.run, &part.data.sha256);
    let sound = broker.objects().get(&path).await.expect("read").expect("there");
    broker.objects().put(&path, Bytes::from_static(b"x")).await.expect("damaged");
    assert!(broker.trim_log(rule).await.is_err());
    assert_eq!(fixture.queue.log_range().await.expect("known").first, 1);
    broker.objects().put(&path, sound).await.expect("mended");
    broker.trim_log(rule).await.expect("trimmed").expect("a segment");
    assert_eq!(fixture.queue.log_range().await.expect("known").first, 11);
    broker.objects().delete(&paths::segment(log, 0, 1)).await.expect("deleted");
    let read = broker.read_log(3).await.expect("opened").next(1).await;
    assert!(matches!(read, Err(BrokerError::Gone { from: 3, to: 10 })), "{read:?}");
}

/// A restored log gives positions out again whose former entries were trimmed into segments after the backup was made.
/// They stop no trimming, and nobody reads them.
pub async fn segments_of_a_lost_future_are_passed_by(fixture: Fixture) {
    let (broker, runs) = (&fixture.broker, BTreeSet::from([run()]));
    fill(broker).await;
    let whole = read(&mut broker.read_log(1).await.expect("read"), ENTRIES as usize).await;
    let log = fixture.queue.log_range().await.expect("known").id;
    let mut lost = Vec::new();
    let mut reader = fixture.queue.read_log(1).await.expect("read");
    while lost.len() < ENTRIES as usize {
        lost.extend(reader.next(7).await.expect("read"));
    }
    for entry in &mut lost {
        let event = Event::Tick { unix_ms: 1_000 + entry.seq };
        entry.message = Message {
            subject: subjects::log(subjects::ALL_RUNS, &event),
            payload: event.to_bytes(),
            headers: vec![],
        };
    }
    // Of the first trim, what was written before the backup stands.
    let never = || false;
    assert_eq!(broker.trim_log(rule(24, &runs)).await.expect("trimmed").expect("a segment").last, 10);
    broker.trim_log(TrimRule { may_act: &never, entries: 5, ..rule(24, &runs) }).await.expect("asked");
    for (first, last) in [(16, 18), (19, 22), (23, 25)] {
        let entries = &lost[first - 1..last];
        broker.write_segment(log, 0, entries, &runs).await.expect("written");
    }
    assert_eq!(begin(broker).await, [1, 11, 16, 19, 23]);
    broker.trim_log(TrimRule { may_act: &never, entries: 6, ..rule(24, &runs) }).await.expect("asked");
    assert_eq!(begin(broker).await, [1, 11, 16, 19, 23], "who may not act begins no branch");
    let trimmed = broker.trim_log(TrimRule { entries: 6, ..rule(24, &runs) }).await.expect("trimmed");
    assert_eq!(trimmed.map(|segment| (segment.first, segment.last)), Some((11, 16)));
    assert_eq!(begin(broker).await, [1, 11]);
    let trimmed = broker.trim_log(TrimRule { entries: 6, ..rule(24, &runs) }).await.expect("trimmed");
    assert_eq!(trimmed.map(|segment| (segment.first, segment.last)), Some((17, 22)));
    assert_eq!(begin(broker).await, [1, 11, 17]);
    assert_eq!(read(&mut broker.read_log(1).await.expect("read"), ENTRIES as usize).await, whole);
    let found = broker.entries(&[16, 19, 3]).await.expect("read");
    let found: Vec<_> =
        found.into_iter().map(|found| found.expect("found").event.expect("an event")).collect();
    assert_eq!(found, [15, 18, 2].map(|at| whole[at].3.clone()));
    // Restored once more, to where the newest segment is another one's.
    broker.write_segment(log, 1, &lost[22..25], &runs).await.expect("written");
    broker.trim_log(TrimRule { entries: 2, ..rule(26, &runs) }).await.expect("trimmed").expect("a segment");
    assert_eq!(begin(broker).await, [1, 11, 17, 23]);
    assert_eq!(read(&mut broker.read_log(1).await.expect("read"), ENTRIES as usize).await, whole);
}
