//! Keys and policies.

use bytes::Bytes;
use millrace_schemas::PolicyVersion;
use millrace_schemas::blob::Sha;
use millrace_schemas::policy::Policy;
use millrace_schemas::subjects::{COORDINATOR_BUCKET, POLICY_BUCKET};

use super::{Fixture, run, soon};
use crate::port::{Expect, Written};

const BUCKET: &str = COORDINATOR_BUCKET;

fn policy(version: u64) -> Policy {
    let manifest = Sha::of(&version.to_le_bytes());
    Policy {
        version: PolicyVersion(version),
        manifest,
        floor: PolicyVersion(version.saturating_sub(1)),
        attempt: 0,
        partitions: 1,
        ended: false,
    }
}

/// Of those who write expecting the same, one wins.
pub async fn a_key_is_compared_and_set(fixture: Fixture) {
    let queue = &fixture.queue;
    let set =
        |value: &'static str, expect| queue.set(BUCKET, "k", Bytes::from_static(value.as_bytes()), expect);
    assert!(queue.get(BUCKET, "k").await.expect("read").is_none());
    assert!(queue.get_latest(BUCKET, "k").await.expect("read").is_none());
    assert_eq!(set("x", Expect::Revision(1)).await.expect("answered"), Written::Conflict);
    let Written::At(first) = set("a", Expect::Absent).await.expect("answered") else {
        panic!("it was absent")
    };
    assert_eq!(set("b", Expect::Absent).await.expect("answered"), Written::Conflict);
    for found in [queue.get(BUCKET, "k").await, queue.get_latest(BUCKET, "k").await] {
        let found = found.expect("read").expect("a value");
        assert_eq!((found.value.as_ref(), found.revision, found.key.as_str()), (&b"a"[..], first, "k"));
    }
    let Written::At(other) = set("y", Expect::Any).await.expect("answered") else { panic!("anything goes") };
    assert!(other > first);
    assert_eq!(set("c", Expect::Revision(first)).await.expect("answered"), Written::Conflict);
    let race = futures::future::join_all((0..16).map(|_| set("d", Expect::Revision(other)))).await;
    let won = race.into_iter().filter(|written| matches!(written, Ok(Written::At(_)))).count();
    assert_eq!(won, 1);
}

/// A watcher gets all stored values first, then the changes.
pub async fn a_watcher_sees_values_and_changes(fixture: Fixture) {
    let queue = &fixture.queue;
    for (key, value) in [("a", "1"), ("b", "1"), ("a", "2")] {
        queue.set(BUCKET, key, Bytes::from_static(value.as_bytes()), Expect::Any).await.expect("written");
    }
    let mut watcher = queue.watch(BUCKET).await.expect("watched");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let value = soon("a value is seen", watcher.next()).await.expect("watched");
        seen.push((value.key, value.value));
    }
    assert_eq!(
        seen,
        [("b".to_owned(), Bytes::from_static(b"1")), ("a".to_owned(), Bytes::from_static(b"2"))]
    );
    queue.set(BUCKET, "b", Bytes::from_static(b"3"), Expect::Any).await.expect("written");
    let value = soon("a change is seen", watcher.next()).await.expect("watched");
    assert_eq!((value.key.as_str(), value.value.as_ref()), ("b", &b"3"[..]));
}

/// However many write, in whatever order: the highest version, the highest floor, and ended for ever.
pub async fn a_policy_never_goes_back(fixture: Fixture) {
    let (run, broker) = (run(), &fixture.broker);
    assert!(broker.policy(&run).await.expect("read").is_none());
    let writes = [3, 7, 1, 5, 0].map(|version| {
        let (broker, run) = (broker.clone(), run.clone());
        async move { broker.set_policy(&run, &policy(version)).await.expect("written") }
    });
    futures::future::join_all(writes).await;
    let (found, revision) = broker.policy(&run).await.expect("read").expect("a policy");
    assert_eq!(found, policy(7));
    broker.set_policy(&run, &policy(6)).await.expect("ignored");
    assert_eq!(broker.policy(&run).await.expect("read"), Some((policy(7), revision)), "nothing was written");
    broker.set_policy(&run, &Policy { ended: true, ..policy(2) }).await.expect("written");
    broker.set_policy(&run, &policy(8)).await.expect("written");
    let (found, _) = broker.policy(&run).await.expect("read").expect("a policy");
    assert_eq!(found, Policy { ended: true, ..policy(8) });
}

/// The key's owner overwrites an unreadable value at its revision, whichever process wrote it, and
/// continues from there.
pub async fn an_unreadable_policy_is_overwritten(fixture: Fixture) {
    let (run, broker) = (run(), &fixture.broker);
    for garbage in ["", "{}", r#"{"stream":"MILLRACE_LOG","seq":7}"#] {
        let garbage = Bytes::from_static(garbage.as_bytes());
        fixture.queue.set(POLICY_BUCKET, run.as_str(), garbage, Expect::Any).await.expect("written");
        assert_eq!(broker.policy(&run).await.expect("read"), None);
        broker.set_policy(&run, &policy(3)).await.expect("written over");
        let (found, _) = broker.policy(&run).await.expect("read").expect("a policy");
        assert_eq!(found, policy(3));
    }
}

/// One that cannot be read is passed over.
pub async fn policies_are_watched(fixture: Fixture) {
    let (run, broker) = (run(), &fixture.broker);
    broker.set_policy(&run, &policy(1)).await.expect("written");
    let mut policies = broker.watch_policies().await.expect("watched");
    assert_eq!(soon("a policy is seen", policies.next()).await.expect("watched"), (run.clone(), policy(1)));
    let garbage = Bytes::from_static(b"{}");
    fixture.queue.set(POLICY_BUCKET, "other", garbage, Expect::Any).await.expect("written");
    broker.set_policy(&run, &policy(2)).await.expect("written");
    assert_eq!(soon("a policy is seen", policies.next()).await.expect("watched"), (run, policy(2)));
}
