//! The server sends an answer wherever the asker says, and asks nobody whether the asker may publish there.
//! None of what a worker can make it send is taken for anyone's word.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use async_nats::{Client, jetstream};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use millrace_queue::service::{ApiHandler, request, serve};
use millrace_queue::{Broker, Objects, OpenError, Queue};
use millrace_schemas::api::ApiError;
use millrace_schemas::env_step::Settings;
use millrace_schemas::envelope::encode;
use millrace_schemas::reward::{RewardRule, RewardTask, TurnResult};
use millrace_schemas::{Event, PolicyVersion, Stage, Task, TaskBody, subjects};

use super::guarded::{Fleet, PATIENCE};

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
    let body = TaskBody::Reward(RewardTask {
        rule: RewardRule::Success,
        turns,
        success: true,
        settings: Settings::new(),
        conversation: Vec::new(),
        row: [].into(),
    });
    Task { run, key, pool, version: PolicyVersion(0), evaluate: false, body }
}

/// Asks the server to send what a key holds to `reply`, as whoever may read the key can.
async fn send_key(client: &Client, key: &str, reply: &str) {
    let path = format!("$JS.API.DIRECT.GET.KV_MILLRACE_GANG.$KV.MILLRACE_GANG.{key}");
    client.publish_with_reply(path, reply.to_owned(), Bytes::new()).await.unwrap();
    client.flush().await.unwrap();
}

async fn write_key(client: &Client, key: &str, value: Bytes) {
    client.request(format!("$KV.MILLRACE_GANG.{key}"), value).await.unwrap();
}

#[tokio::test]
async fn what_the_server_is_made_to_say_is_nobodys_word() {
    let fleet = Fleet::start().await;
    let queue = fleet.coordinator().await;
    let broker = Broker::new(queue.clone(), Objects::memory());
    let (admin, _) = fleet.raw("coordinator").await;
    let bucket = jetstream::kv::Config { bucket: subjects::GANG_BUCKET.into(), ..Default::default() };
    // It may be there already, with settings of its own.
    let _ = jetstream::new(admin.clone()).create_key_value(bucket).await;
    let mut cancels = admin.subscribe("mr.api.cancel").await.unwrap();
    admin.flush().await.unwrap();
    let pool = "success".parse().unwrap();
    for pool in [&pool, &"format".parse().unwrap()] {
        queue.ensure_pool(Stage::Reward, pool).await.unwrap();
    }
    let handler = Arc::new(Counting(AtomicU64::new(0)));
    let served = (queue.clone(), handler.clone());
    let service = tokio::spawn(async move { serve(&served.0, "0.1.0", served.1).await.is_ok() });
    let submitter = fleet.queue("submitter").await;
    let list = async || request(&submitter, "list", Bytes::new(), PATIENCE).await;
    while list().await.is_err() {}

    let (trainer, _) = fleet.raw("train_shard").await;
    // An event, a task and a request, word for word as the coordinator or a submitter would say them.
    let event = Event::Cancelled { reason: "because".into() };
    write_key(&trainer, "event", encode(&event)).await;
    send_key(&trainer, "event", &subjects::log("lake", &event)).await;
    let task = task();
    write_key(&trainer, "task", encode(&task)).await;
    send_key(&trainer, "task", &subjects::task(&task.pool, &task.run, task.version, task.key)).await;
    write_key(&trainer, "request", Bytes::from_static(b"{\"run\":\"lake\"}")).await;
    send_key(&trainer, "request", "mr.api.cancel").await;
    // A pull that finds nothing is answered with nothing: an empty request means the only run.
    let (rewarder, _) = fleet.raw("reward").await;
    let pull = "$JS.API.CONSUMER.MSG.NEXT.MILLRACE_TASK_REWARD.pool_format";
    for subject in [pull, "$JS.API.DIRECT.GET.KV_MILLRACE_POLICY.$KV.MILLRACE_POLICY.none"] {
        let asked =
            rewarder.publish_with_reply(subject, "mr.api.cancel", Bytes::from_static(b"{\"no_wait\":true}"));
        asked.await.unwrap();
    }
    rewarder.flush().await.unwrap();
    // And an answer that would be a word in the coordinator's name.
    let (asker, _) = fleet.raw("submitter").await;
    for reply in ["mr.log.lake.cancelled", "$JS.API.STREAM.PURGE.MILLRACE_LOG"] {
        asker.publish_with_reply("mr.api.cancel", reply, Bytes::new()).await.unwrap();
    }
    asker.flush().await.unwrap();

    let mut log = broker.read_log(1).await.unwrap();
    let entries = tokio::time::timeout(PATIENCE, log.next(10)).await.expect("the server stored it").unwrap();
    assert!(entries[0].event.is_err(), "{entries:?}");
    let rewards = fleet.broker("reward").await;
    let mut puller = rewards.queue().puller(Stage::Reward, &pool).await.unwrap();
    let pulled = tokio::time::timeout(PATIENCE, puller.pull(1)).await;
    let deliveries = pulled.expect("the server stored it").unwrap();
    let opened = rewards.open_task(&deliveries[0]).await;
    assert!(matches!(&opened, Err(OpenError::Undecodable(_))), "{opened:?}");
    rewards.bury(&deliveries[0], "a copy").await.unwrap();

    // All five came to the API's subject, and none was heard; one that is a request is.
    for _ in 0..5 {
        let seen = tokio::time::timeout(PATIENCE, cancels.next()).await.expect("the server sends it");
        println!("{:?}", seen.expect("the connection stands"));
    }
    request(&submitter, "cancel", Bytes::new(), PATIENCE).await.unwrap();
    assert_eq!(handler.0.load(SeqCst), 1);
    let entries =
        tokio::time::timeout(PATIENCE, log.next(10)).await.expect("the dead letter's event").unwrap();
    let dead = |event: &Event| matches!(event, Event::DeadLetter { .. });
    assert!(entries.iter().all(|entry| entry.event.as_ref().is_ok_and(dead)), "{entries:?}");
    service.abort();
}
