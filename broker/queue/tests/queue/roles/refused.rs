//! Who is not let in at all, and what is said of a right that is missing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use millrace_queue::port::{Expect, Message, PoolPriority};
use millrace_queue::{
    Credentials, EventLog, JetStream, JetStreamOptions, KeyStore, QueueError, TaskQueue, Tls,
};
use millrace_schemas::limits::ACK_WAIT_MS;
use millrace_schemas::subjects::{COORDINATOR_BUCKET, LEASE_KEY, POLICY_BUCKET};
use millrace_schemas::{PolicyVersion, RolloutId, Stage, TaskKey, partition, subjects};

use super::guarded::{Fleet, PATIENCE, keys};

async fn refusal(url: &str, options: JetStreamOptions) -> String {
    let options = JetStreamOptions { connect_timeout: Duration::from_millis(500), ..options };
    match JetStream::connect(url, "stranger", options).await {
        Ok(_) => panic!("it is let in"),
        Err(e) => e.to_string(),
    }
}

#[tokio::test]
async fn strangers_are_not_let_in() {
    let fleet = Fleet::start().await;
    let url = fleet.server.url().to_owned();
    let good = fleet.options("generate");

    let anonymous = JetStreamOptions { credentials: Credentials::Anonymous, ..good.clone() };
    let words = refusal(&url, anonymous).await;
    assert!(words.contains("authorization violation"), "{words}");

    let others = keys();
    let key = std::fs::read_to_string(others.path().join("keys/generate.nk")).unwrap();
    let seed = key.lines().last().unwrap().to_owned();
    let words =
        refusal(&url, JetStreamOptions { credentials: Credentials::NKey(seed.clone()), ..good.clone() });
    let words = words.await;
    assert!(words.contains("authorization violation") && !words.contains(&seed), "{words}");

    let authority = Some(others.path().join("tls/ca.pem"));
    let words = refusal(&url, JetStreamOptions { tls: Some(Tls { authority, certificate: None }), ..good });
    let words = words.await;
    assert!(words.contains("certificate"), "{words}");
}

#[tokio::test]
async fn plain_text_is_not_spoken() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let fleet = Fleet::start().await;
    let address = fleet.server.url().rsplit("//").next().unwrap().to_owned();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n").await.unwrap();
    let mut heard = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut heard)).await.expect("it hangs up");
    let heard = String::from_utf8_lossy(&heard);
    assert!(heard.contains("\"tls_required\":true") && !heard.contains("PONG"), "{read:?} {heard}");
}

#[tokio::test]
async fn a_missing_right_is_told_at_once_with_subject_and_user() {
    let fleet = Fleet::start().await;
    let coordinator = fleet.coordinator().await;
    let began = Instant::now();
    let queue = fleet.queue("generate").await;
    let refused = |what: &str, subject: &str, error: QueueError| {
        assert!(!error.is_transient(), "{what}: {error}");
        let words = error.to_string();
        assert!(words.contains(subject) && words.contains("user=generate"), "{what}: {words}");
    };
    let entry =
        || Message { subject: "mr.log.lake.cancelled".into(), payload: Bytes::new(), headers: vec![] };
    refused("append", "mr.log.lake.cancelled", queue.append(entry(), None).await.unwrap_err());
    refused("get", "KV_MILLRACE_COORDINATOR", queue.get(COORDINATOR_BUCKET, LEASE_KEY).await.unwrap_err());
    let set = queue.set(POLICY_BUCKET, "lake", "{}".into(), Expect::Any).await;
    refused("set", "$KV.MILLRACE_POLICY.lake", set.unwrap_err());
    refused("log_end", "STREAM.INFO.MILLRACE_LOG", queue.log_end().await.unwrap_err());
    let filter = subjects::tasks_of_run(Stage::Generate, &"lake".parse().unwrap());
    let purge = queue.purge(Stage::Generate, &filter);
    refused("purge", "STREAM.PURGE.MILLRACE_TASK_GENERATE", purge.await.unwrap_err());
    let pool = "env_return".parse().unwrap();
    let mut puller = queue.puller(Stage::Reward, &pool).await.unwrap();
    let pulled = tokio::time::timeout(PATIENCE, puller.pull(1)).await.expect("it is told");
    let Err(error) = pulled else { panic!("it pulls another stage's tasks") };
    refused("pull", "CONSUMER.MSG.NEXT.MILLRACE_TASK_REWARD", error);
    let pools = vec![PoolPriority { pool, priority: 0 }];
    let mut puller = queue.priority_puller(Stage::Reward, pools).await.unwrap();
    let pulled = tokio::time::timeout(PATIENCE, puller.pull(2)).await.expect("it is told");
    let Err(error) = pulled else { panic!("it pulls another stage's tasks") };
    refused("pull by priority", "CONSUMER.MSG.NEXT.MILLRACE_TASK_REWARD", error);
    // Nobody waited until the time for a request was up.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert_eq!(coordinator.log_end().await.unwrap(), 0);
}

#[tokio::test]
async fn a_generate_worker_pulls_from_all_partitions() {
    let fleet = Fleet::start().await;
    let coordinator = fleet.coordinator().await;
    let run = "lake".parse().unwrap();
    for pool in partition::pools(4) {
        coordinator.ensure_partition(Stage::Generate, &pool).await.unwrap();
    }
    let task = |group| {
        let rollout = RolloutId { group, index: 0, attempt: 0 };
        let key = TaskKey::Generate { rollout, turn: 1 };
        let subject = subjects::task(&partition::of_group(&run, group, 4), &run, PolicyVersion(0), key);
        Message { subject, payload: Bytes::new(), headers: vec![] }
    };
    for put in coordinator.put((0..20).map(task).collect()).await {
        put.unwrap();
    }
    let worker = fleet.queue("generate").await;
    // How long it may be silent is asked from its own account too.
    let lease = worker.ack_wait(Stage::Generate, &partition::pools(4)[0]).await.unwrap();
    assert_eq!(lease, Some(Duration::from_millis(ACK_WAIT_MS)));
    let pools = partition::pull_priorities(&"w".parse().unwrap(), 4).into_iter();
    let pools = pools.map(|(pool, priority)| PoolPriority { pool, priority }).collect();
    let mut puller = worker.priority_puller(Stage::Generate, pools).await.unwrap();
    let mut got = BTreeSet::new();
    // With one slot it takes back what it asked for, each time.
    while got.len() < 20 {
        let pulled = tokio::time::timeout(PATIENCE, puller.pull(1)).await.expect("tasks come");
        for delivery in pulled.unwrap() {
            delivery.lease.done().await.unwrap();
            assert!(got.insert(delivery.message.subject), "a task came twice");
        }
    }
    puller.close().await;
}
