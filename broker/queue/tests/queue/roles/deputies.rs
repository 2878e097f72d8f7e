//! In a single account, as on a server without roles, a reply goes to any subject that the client
//! names. No message that a client makes the server store this way counts as anyone's message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use async_nats::{Client, HeaderMap};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use millrace_queue::port::Expect;
use millrace_queue::service::{ApiHandler, request, serve};
use millrace_queue::testing::TestServer;
use millrace_queue::{Broker, JetStream, JetStreamOptions, KeyStore, Objects, OpenError, TaskQueue};
use millrace_schemas::api::ApiError;
use millrace_schemas::blob::Sha;
use millrace_schemas::envelope::encode;
use millrace_schemas::policy::Policy;
use millrace_schemas::reward::{RewardRule, RewardTask, TurnResult};
use millrace_schemas::subjects::{COORDINATOR_BUCKET, GANG_BUCKET, LEASE_KEY, POLICY_BUCKET};
use millrace_schemas::{Event, PolicyVersion, Stage, Task, TaskBody, subjects};

use super::guarded::PATIENCE;

/// Counts how often it is asked to do anything.
struct Counting(AtomicU64);

#[async_trait]
impl ApiHandler for Counting {
    async fn call(&self, endpoint: &str, _body: Bytes) -> Result<Bytes, ApiError> {
        if endpoint != "list" {
            self.0.fetch_add(1, SeqCst);
        }
        Ok(Bytes::from_static(b"[]"))
    }
}

fn task() -> Task {
    let key = "g1r0a0-w0".parse().unwrap();
    let (run, pool) = ("lake".parse().unwrap(), "success".parse().unwrap());
    let turns = vec![TurnResult { reward: 1.0, valid: true, tokens: 1 }];
    let body = TaskBody::Reward(RewardTask::new(RewardRule::Success, turns, true));
    Task { run, key, pool, version: PolicyVersion(0), evaluate: false, body }
}

/// Asks the server to send a key's value to `reply`, as any role that may read the key can.
async fn send_key(client: &Client, key: &str, reply: &str) {
    let path = format!("$JS.API.DIRECT.GET.KV_MILLRACE_GANG.$KV.MILLRACE_GANG.{key}");
    client.publish_with_reply(path, reply.to_owned(), Bytes::new()).await.unwrap();
    client.flush().await.unwrap();
}

async fn write_key(client: &Client, key: &str, value: Bytes) {
    client.request(format!("$KV.MILLRACE_GANG.{key}"), value).await.unwrap();
}

/// A server without roles, a client that may say anything, and what a coordinator has.
async fn open() -> (TestServer, Client, Arc<JetStream>, Broker) {
    let server = TestServer::start().await;
    let queue = server.connect(JetStreamOptions::default()).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let broker = Broker::new(queue.clone(), Objects::memory());
    (server, client, queue, broker)
}

#[tokio::test]
async fn what_the_server_is_made_to_say_is_nobodys_word() {
    let (_server, client, queue, broker) = open().await;
    let mut cancels = client.subscribe("mr.api.cancel").await.unwrap();
    client.flush().await.unwrap();
    let pool = "success".parse().unwrap();
    for pool in [&pool, &"format".parse().unwrap()] {
        queue.ensure_pool(Stage::Reward, pool).await.unwrap();
    }
    let handler = Arc::new(Counting(AtomicU64::new(0)));
    let served = (queue.clone(), handler.clone());
    let service = tokio::spawn(async move { serve(&served.0, "0.1.0", served.1).await.is_ok() });
    let list = async || request(&queue, "list", Bytes::new(), PATIENCE).await;
    while list().await.is_err() {}

    // An event, a task and a request, word for word as the coordinator or a submitter would say them.
    let event = Event::Cancelled { reason: "because".into() };
    write_key(&client, "event", encode(&event)).await;
    send_key(&client, "event", &subjects::log("lake", &event)).await;
    let task = task();
    write_key(&client, "task", encode(&task)).await;
    send_key(&client, "task", &subjects::task(&task.pool, &task.run, task.version, task.key)).await;
    write_key(&client, "request", Bytes::from_static(b"{\"run\":\"lake\"}")).await;
    send_key(&client, "request", "mr.api.cancel").await;
    // A pull that finds nothing is answered with nothing: an empty request means the only run.
    let pull = "$JS.API.CONSUMER.MSG.NEXT.MILLRACE_TASK_REWARD.pool_format";
    for subject in [pull, "$JS.API.DIRECT.GET.KV_MILLRACE_POLICY.$KV.MILLRACE_POLICY.none"] {
        let asked =
            client.publish_with_reply(subject, "mr.api.cancel", Bytes::from_static(b"{\"no_wait\":true}"));
        asked.await.unwrap();
    }
    // And an answer that would be a word in the coordinator's name.
    for reply in ["mr.log.lake.cancelled", "$JS.API.STREAM.PURGE.MILLRACE_LOG"] {
        client.publish_with_reply("mr.api.cancel", reply, Bytes::new()).await.unwrap();
    }
    client.flush().await.unwrap();

    let mut log = broker.read_log(1).await.unwrap();
    let entries = tokio::time::timeout(PATIENCE, log.next(10)).await.expect("the server stored it").unwrap();
    assert!(entries[0].event.is_err(), "{entries:?}");
    let mut puller = queue.puller(Stage::Reward, &pool).await.unwrap();
    let pulled = tokio::time::timeout(PATIENCE, puller.pull(1)).await;
    let deliveries = pulled.expect("the server stored it").unwrap();
    let opened = broker.open_task(&deliveries[0]).await;
    assert!(matches!(&opened, Err(OpenError::Undecodable(_))), "{opened:?}");
    broker.bury(&deliveries[0], "a copy").await.unwrap();

    // All five came to the API's subject, and none was heard; one that is a request is.
    for _ in 0..5 {
        let seen = tokio::time::timeout(PATIENCE, cancels.next()).await.expect("the server sends it");
        seen.expect("the connection stands");
    }
    request(&queue, "cancel", Bytes::new(), PATIENCE).await.unwrap();
    assert_eq!(handler.0.load(SeqCst), 1);
    let entries =
        tokio::time::timeout(PATIENCE, log.next(10)).await.expect("the dead letter's event").unwrap();
    let dead = |event: &Event| matches!(event, Event::DeadLetter { .. });
    assert!(entries.iter().all(|entry| entry.event.as_ref().is_ok_and(dead)), "{entries:?}");
    service.abort();
}

fn policy(version: u64, ended: bool) -> Policy {
    let (version, manifest) = (PolicyVersion(version), Sha::of(&version.to_le_bytes()));
    Policy { version, manifest, floor: PolicyVersion(0), attempt: 0, partitions: 1, ended }
}

/// Waits until a key has another revision than `before`.
async fn changed(queue: &JetStream, bucket: &'static str, key: &str, before: u64) -> u64 {
    let changed = async {
        loop {
            let found = queue.get_latest(bucket, key).await.unwrap();
            if let Some(found) = found.filter(|found| found.revision != before) {
                return found.revision;
            }
        }
    };
    tokio::time::timeout(PATIENCE, changed).await.expect("the server stored it")
}

#[tokio::test]
async fn a_key_holds_no_copy_and_its_owner_writes_over_what_is_there() {
    let (_server, client, queue, broker) = open().await;
    let run = "lake".parse().unwrap();
    broker.set_policy(&run, &policy(3, false)).await.unwrap();
    let mut watched = broker.watch_policies().await.unwrap();
    let standing = tokio::time::timeout(PATIENCE, watched.next()).await.unwrap().unwrap();
    assert_eq!(standing, (run.clone(), policy(3, false)));
    let (_, mut revision) = broker.policy(&run).await.unwrap().unwrap();

    // A copy of a value that ends the run, with headers that give it a far revision; an acknowledgement; an answer.
    let forged = serde_json::to_vec(&policy(9, true)).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Sequence", "1");
    headers.insert("Nats-Subject", "$KV.MILLRACE_POLICY.lake");
    client.publish_with_headers("$KV.MILLRACE_GANG.forged", headers, forged.into()).await.unwrap();
    let key = "$KV.MILLRACE_POLICY.lake";
    queue.ensure_pool(Stage::Reward, &"success".parse().unwrap()).await.unwrap();
    for (subject, at_first) in [
        ("$JS.API.DIRECT.GET.KV_MILLRACE_GANG.$KV.MILLRACE_GANG.forged", policy(3, false)),
        ("mr.log.lake.outcome.reward", policy(4, false)),
        ("$JS.API.CONSUMER.INFO.MILLRACE_TASK_REWARD.pool_success", policy(5, false)),
    ] {
        client.publish_with_reply(subject, key, Bytes::new()).await.unwrap();
        revision = changed(&queue, POLICY_BUCKET, "lake", revision).await;
        assert_eq!(broker.policy(&run).await.unwrap(), None, "{subject}: it is no policy");
        let seen = queue.get(POLICY_BUCKET, "lake").await.unwrap().unwrap();
        assert_eq!(seen.revision, revision, "{subject}: the server's word counts");
        let next = Policy { version: at_first.version.next(), ..at_first };
        broker.set_policy(&run, &next).await.unwrap();
        let (found, at) = broker.policy(&run).await.unwrap().unwrap();
        assert_eq!(found, next, "{subject}");
        revision = at;
        let seen = tokio::time::timeout(PATIENCE, watched.next()).await.unwrap().unwrap();
        assert_eq!(seen, (run.clone(), next), "{subject}: who watches hears of no copy");
    }
}

#[tokio::test]
async fn a_copy_in_the_lease_is_no_lease() {
    let (_server, client, queue, _broker) = open().await;
    let lease = Bytes::from_static(br#"{"holder":"evil","instance":"evil","epoch":99}"#);
    queue.set(GANG_BUCKET, "lease", lease, Expect::Any).await.unwrap();
    let mine =
        queue.set(COORDINATOR_BUCKET, LEASE_KEY, Bytes::from_static(b"{}"), Expect::Absent).await.unwrap();
    let millrace_queue::port::Written::At(mine) = mine else { panic!("it was absent") };
    send_key(&client, "lease", "$KV.MILLRACE_COORDINATOR.lease").await;
    let revision = changed(&queue, COORDINATOR_BUCKET, LEASE_KEY, mine).await;
    for found in [
        queue.get(COORDINATOR_BUCKET, LEASE_KEY).await,
        queue.get_latest(COORDINATOR_BUCKET, LEASE_KEY).await,
    ] {
        let found = found.unwrap().unwrap();
        assert_eq!((found.value.as_ref(), found.revision), (&b""[..], revision));
    }
}

#[tokio::test]
async fn a_forged_notice_buries_no_task() {
    let (_server, client, queue, broker) = open().await;
    let task = task();
    queue.ensure_pool(Stage::Reward, &task.pool).await.unwrap();
    broker.put_tasks(std::slice::from_ref(&task)).await.remove(0).unwrap();
    let notice = |stream: &str, consumer: &str| {
        format!(r#"{{"stream":"{stream}","consumer":"{consumer}","stream_seq":1,"deliveries":5}}"#)
    };
    let subject =
        |stream: &str, consumer: &str| format!("{}.{stream}.{consumer}", subjects::ADVISORY_OF_DELIVERIES);
    let stream = subjects::task_stream(Stage::Reward);
    let own = subjects::consumer(&task.pool);
    // A copy of a notice as the server would word it; and notices that speak of another's task.
    write_key(&client, "notice", notice(&stream, &own).into()).await;
    send_key(&client, "notice", &subject(&stream, &own)).await;
    for (at, said) in [
        (subject("MILLRACE_TASK_TRAIN_SHARD", "pool_gang"), notice(&stream, &own)),
        (subject(&stream, "pool_format"), notice(&stream, "pool_format")),
    ] {
        client.publish(at, said.into()).await.unwrap();
    }
    client.flush().await.unwrap();
    let exhausted = queue.exhausted().await.unwrap();
    let reader = tokio::spawn(async move {
        let mut exhausted = exhausted;
        exhausted.next().await.map(|found| found.message.subject)
    });
    let read = async {
        loop {
            let path = format!("$JS.API.CONSUMER.INFO.{}.exhausted", subjects::ADVISORY_STREAM);
            let answer = client.request(path, Bytes::new()).await.unwrap();
            let info: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
            if info["ack_floor"]["stream_seq"] == 3 || reader.is_finished() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("all three are read and settled");
    assert!(!reader.is_finished(), "a task was taken out: {:?}", reader.await);
    assert_eq!(queue.tasks_left().await.unwrap(), 1);
    reader.abort();
}
