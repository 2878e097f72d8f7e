//! Every role, every kind of request that it may send, and every subject on which a reply could do
//! harm. The server sends a reply to any subject that the client names. No reply leaves the
//! client's own account.

use async_nats::Client;
use bytes::Bytes;
use futures::StreamExt;
use millrace_queue::DeadLetterQueue;
use millrace_queue::EventLog;
use millrace_queue::KeyStore;
use millrace_queue::TaskQueue;
use millrace_queue::port::{Expect, Message};
use millrace_schemas::Stage;
use millrace_schemas::role::{Rights, Role};
use millrace_schemas::subjects::{
    self, COORDINATOR_BUCKET, GANG_BUCKET, LEASE_KEY, POLICY_BUCKET, SNAPSHOT_KEY, WORKERS_BUCKET,
};

use super::guarded::{Fleet, PATIENCE};

/// Subjects on which an answer would be taken for somebody's word.
const TARGETS: [&str; 13] = [
    "$KV.MILLRACE_POLICY.lake",
    "$KV.MILLRACE_COORDINATOR.lease",
    "$KV.MILLRACE_COORDINATOR.snapshot",
    "$KV.MILLRACE_WORKERS.w",
    "$KV.MILLRACE_GANG.g",
    "mr.log.lake.cancelled",
    "mr.log.all.left",
    "mr.task.generate.policy.lake.v0.g1r0a0-s1",
    "mr.dead.generate.policy.lake.x",
    "mr.api.cancel",
    "mr.key.MILLRACE_POLICY.lake",
    "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.MILLRACE_TASK_REWARD.pool_success",
    "$JS.API.STREAM.PURGE.MILLRACE_LOG",
];

/// What is asked with each: some are no request of that kind, and are answered with an error.
const BODIES: [&str; 4] =
    ["", r#"{"batch":1,"no_wait":true}"#, r#"{"seq":1}"#, r#"{"seq":1,"batch":8,"next_by_subj":">"}"#];

/// A subject that a pattern allows.
fn example(pattern: &str, stage: Option<Stage>) -> String {
    let pool = stage.map_or("pool_x".to_owned(), |stage| format!("pool_{}", pool(stage)));
    let key = |bucket: &str, key: &str| format!("$KV.{bucket}.{key}");
    match pattern {
        "$KV.MILLRACE_GANG.>" => key(GANG_BUCKET, "g"),
        "$KV.MILLRACE_WORKERS.>" => key(WORKERS_BUCKET, "w"),
        p if p.contains("DIRECT.GET.KV_MILLRACE_POLICY.>") => p.replace('>', &key(POLICY_BUCKET, "lake")),
        p if p.contains("DIRECT.GET.KV_MILLRACE_GANG.>") => p.replace('>', &key(GANG_BUCKET, "g")),
        p if p.contains("DIRECT.GET.KV_MILLRACE_WORKERS.>") => p.replace('>', &key(WORKERS_BUCKET, "w")),
        p if p.starts_with("$JS.API.CONSUMER") => p.replace('*', &pool),
        p if p.starts_with("$JS.ACK.*.*") => {
            p.replace("*.*", "_.hash").replace('>', &format!("{pool}.1.1.1.1700000000000000000.0.token"))
        }
        p if p.starts_with("$JS.ACK.") => p.replace('>', &format!("{pool}.1.1.1.1700000000000000000.0")),
        p => p.replace('*', "lake").replace('>', "x"),
    }
}

fn pool(stage: Stage) -> &'static str {
    match stage {
        Stage::Generate => "policy",
        Stage::Reward => "success",
        Stage::TrainShard => "gang",
        Stage::PublishWeights => "commit",
        Stage::EnvStep | Stage::Submit => "counter",
    }
}

/// Asks everything that the role may ask, with answers to each target, and then once more with answers to the
/// asker: by then the server has answered all.
async fn ask_everything(client: &Client, user: &str, role: Role) {
    let stage = match role {
        Role::Worker(stage) => Some(stage),
        Role::Coordinator | Role::Operator | Role::Submitter => None,
    };
    let rights = Rights::of(user, &[role]);
    let own = format!("_INBOX_{user}.");
    let subjects: Vec<String> =
        rights.publish.iter().filter(|p| !p.starts_with(&own)).map(|p| example(p, stage)).collect();
    for target in TARGETS {
        for subject in &subjects {
            for body in BODIES {
                let sent =
                    client.publish_with_reply(subject.clone(), target, Bytes::from_static(body.as_bytes()));
                sent.await.unwrap();
            }
        }
    }
    client.flush().await.unwrap();
    let mut answers = client.subscribe(format!("{own}last")).await.unwrap();
    for subject in subjects.iter().filter(|s| s.contains(".outcome.") || s.contains("DIRECT.GET")) {
        let sent =
            client.publish_with_reply(subject.clone(), format!("{own}last"), Bytes::from_static(b"{}"));
        sent.await.unwrap();
        tokio::time::timeout(PATIENCE, answers.next())
            .await
            .unwrap_or_else(|_| panic!("{subject} is answered"));
    }
}

#[tokio::test]
async fn no_answer_lands_where_it_is_somebodys_word() {
    let fleet = Fleet::start().await;
    let coordinator = fleet.coordinator().await;
    for stage in Stage::QUEUED {
        coordinator.ensure_pool(stage, &pool(stage).parse().unwrap()).await.unwrap();
    }
    let keys = [(POLICY_BUCKET, "lake"), (COORDINATOR_BUCKET, LEASE_KEY), (COORDINATOR_BUCKET, SNAPSHOT_KEY)];
    for (bucket, key) in keys {
        coordinator.set(bucket, key, Bytes::from_static(b"mine"), Expect::Any).await.unwrap();
    }
    let (admin, _) = fleet.raw("coordinator").await;
    let mut requests = admin.subscribe("mr.api.cancel").await.unwrap();
    admin.flush().await.unwrap();

    for role in Role::ALL.into_iter().filter(|role| !role.is_at_home()) {
        let (client, _) = fleet.raw(role.name()).await;
        ask_everything(&client, role.name(), role).await;
        for (bucket, key) in keys {
            let found = coordinator.get_latest(bucket, key).await.unwrap().unwrap();
            assert_eq!(found.value.as_ref(), b"mine", "user={} {bucket} {key}", role.name());
        }
    }
    // What each wrote by its own right is there, and nothing else.
    let end = coordinator.log_end().await.unwrap();
    let mut log = coordinator.read_log(1).await.unwrap();
    let mut seen = 0;
    while seen < end {
        for entry in tokio::time::timeout(PATIENCE, log.next(1_000)).await.unwrap().unwrap() {
            seen = entry.seq;
            let subject = entry.message.subject;
            assert!(subject.contains(".outcome.") || subject.contains(".dead_letter."), "{subject}");
        }
    }
    for letter in coordinator.dead_letters(1, 10_000).await.unwrap() {
        assert!(letter.message.header(subjects::COPY_HEADER).is_none(), "{letter:?}");
        let stage = letter.message.subject.split('.').nth(2).unwrap().to_owned();
        assert!(letter.message.subject == format!("mr.dead.{stage}.x"), "{}", letter.message.subject);
    }
    assert_eq!(coordinator.tasks_left().await.unwrap(), 0);
    assert_eq!(stored(&admin, subjects::ADVISORY_STREAM).await, 0);
    for (bucket, key, user) in [(WORKERS_BUCKET, "w", "train_shard"), (GANG_BUCKET, "g", "train_shard")] {
        let found = coordinator.get_latest(bucket, key).await.unwrap().unwrap();
        let word = BODIES.iter().any(|body| body.as_bytes() == found.value.as_ref());
        assert!(word, "{user}'s own words stand: {bucket} {key} {found:?}");
    }
    // Nor was the API asked anything but by the submitter, who may.
    let mine =
        Message { subject: "mr.api.cancel".into(), payload: Bytes::from_static(b"last"), headers: vec![] };
    admin.publish(mine.subject, mine.payload).await.unwrap();
    let mut asked = 0;
    while let Ok(Some(request)) = tokio::time::timeout(PATIENCE, requests.next()).await {
        if request.payload.as_ref() == b"last" {
            break;
        }
        assert!(request.headers.is_none_or(|headers| headers.get(subjects::COPY_HEADER).is_none()));
        asked += 1;
    }
    assert_eq!(asked, 0, "the submitter's patterns have no endpoint of that name");
}

/// Messages that a stream holds.
async fn stored(admin: &Client, stream: &str) -> u64 {
    let answer = admin.request(format!("$JS.API.STREAM.INFO.{stream}"), Bytes::new()).await.unwrap();
    let info: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
    info["state"]["messages"].as_u64().unwrap()
}
