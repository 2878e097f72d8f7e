//! For each role, what it may not do: each attempt is answered by a permissions violation.

use bytes::Bytes;
use millrace_queue::DeadLetterQueue;
use millrace_queue::EventLog;
use millrace_schemas::Stage;
use tokio::sync::mpsc::UnboundedReceiver;

use super::guarded::{Fleet, PATIENCE};

/// Forbidden to everyone but the coordinator.
const PUBLISH: [&str; 33] = [
    "mr.task.generate.policy.lake.v0.g1r0a0-s1",
    "mr.task.reward.env_return.lake.v0.g1r0a0-w0",
    "mr.log.lake.submitted",
    "mr.log.lake.cancelled",
    "mr.log.lake.requeued",
    "mr.log.all.tick",
    "mr.log.all.joined",
    "mr.log.all.left",
    // The subjects of old logs name no stage.
    "mr.log.lake.outcome",
    "mr.log.lake.dead_letter",
    "mr.notice.lake.step",
    "$KV.MILLRACE_POLICY.lake",
    "$KV.MILLRACE_COORDINATOR.lease",
    "$KV.MILLRACE_COORDINATOR.snapshot",
    "$JS.API.INFO",
    "$JS.API.STREAM.CREATE.ANOTHER",
    "$JS.API.STREAM.CREATE.MILLRACE_LOG",
    "$JS.API.STREAM.UPDATE.MILLRACE_LOG",
    "$JS.API.STREAM.INFO.MILLRACE_LOG",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.PURGE.MILLRACE_LOG",
    "$JS.API.STREAM.PURGE.MILLRACE_TASK_GENERATE",
    "$JS.API.STREAM.DELETE.MILLRACE_TASK_GENERATE",
    "$JS.API.STREAM.MSG.GET.MILLRACE_DEAD",
    "$JS.API.STREAM.MSG.DELETE.MILLRACE_DEAD",
    "$JS.API.DIRECT.GET.MILLRACE_DEAD",
    "$JS.API.DIRECT.GET.KV_MILLRACE_COORDINATOR.$KV.MILLRACE_COORDINATOR.lease",
    "$JS.API.CONSUMER.CREATE.MILLRACE_LOG",
    "$JS.API.CONSUMER.CREATE.MILLRACE_DEAD.mine",
    "$JS.API.CONSUMER.CREATE.KV_MILLRACE_POLICY",
    "$JS.API.CONSUMER.CREATE.MILLRACE_TASK_GENERATE.pool_policy-00.mr.task.generate.policy-00.>",
    "$JS.API.CONSUMER.DELETE.MILLRACE_TASK_GENERATE.pool_policy",
    "$JS.API.CONSUMER.MSG.NEXT.MILLRACE_ADVISORY.exhausted",
];

/// For those alone whose tasks name what was said before.
const LOG_ENTRY: &str = "$JS.API.DIRECT.GET.MILLRACE_LOG";

const SUBSCRIBE: [&str; 11] = [
    ">",
    "_INBOX.>",
    "_INBOX_coordinator.>",
    "mr.>",
    "mr.task.>",
    "mr.log.>",
    "mr.dead.>",
    "mr.api.submit",
    "$KV.>",
    "$JS.ACK.>",
    "mr.key.MILLRACE_COORDINATOR.>",
];

/// Forbidden to the coordinator too.
const NOBODY: [&str; 7] = [
    "$JS.API.STREAM.DELETE.MILLRACE_LOG",
    "$JS.API.STREAM.PURGE.MILLRACE_DEAD",
    "$JS.API.STREAM.MSG.DELETE.MILLRACE_LOG",
    "$JS.API.CONSUMER.DELETE.MILLRACE_TASK_REWARD.pool_success",
    "$JS.API.STREAM.CREATE.ANOTHER",
    "$JS.API.STREAM.SNAPSHOT.MILLRACE_LOG",
    "$SYS.REQ.SERVER.PING",
];

/// What belongs to a stage alone.
fn of_stage(stage: Stage) -> Vec<String> {
    let (name, stream) = (stage.name(), format!("MILLRACE_TASK_{}", stage.name().to_ascii_uppercase()));
    vec![
        format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.pool_policy"),
        format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.pool_policy-00"),
        format!("$JS.ACK.{stream}.pool_policy.1.1.1.1700000000.0"),
        format!("$JS.ACK._.hash.{stream}.pool_policy.1.1.1.1700000000.0.token"),
        format!("mr.log.lake.outcome.{name}"),
        format!("mr.log.lake.dead_letter.{name}"),
        format!("mr.dead.{name}.policy.lake.x"),
    ]
}

/// Hears complaints until one names `subject`.
async fn forbids(complaints: &mut UnboundedReceiver<String>, what: &str, subject: &str, user: &str) {
    let wanted = format!("Permissions Violation for {what} to \"{subject}\"");
    let heard = async {
        while let Some(words) = complaints.recv().await {
            if words.contains(&wanted) {
                return;
            }
        }
    };
    let told = tokio::time::timeout(PATIENCE, heard).await;
    told.unwrap_or_else(|_| panic!("user={user} may {what} subject={subject}"));
}

/// Tries each; all must be forbidden.
async fn try_all(fleet: &Fleet, user: &str, publish: &[String], subscribe: &[&str]) {
    let (client, mut complaints) = fleet.raw(user).await;
    for subject in publish {
        client.publish(subject.clone(), Bytes::from_static(b"{}")).await.unwrap();
    }
    client.flush().await.unwrap();
    for subject in publish {
        forbids(&mut complaints, "Publish", subject, user).await;
    }
    let mut kept = Vec::new();
    for subject in subscribe {
        kept.push(client.subscribe((*subject).to_owned()).await.unwrap());
    }
    for subject in subscribe {
        forbids(&mut complaints, "Subscription", subject, user).await;
    }
}

#[tokio::test]
async fn no_role_does_what_is_not_its_own() {
    let fleet = Fleet::start().await;
    let coordinator = fleet.coordinator().await;
    let common: Vec<String> = PUBLISH.map(str::to_owned).to_vec();
    let buckets = ["$KV.MILLRACE_GANG.x", "$KV.MILLRACE_WORKERS.x"].map(str::to_owned);

    for stage in Stage::QUEUED {
        let user = stage.name();
        let mut publish = common.clone();
        let others = Stage::QUEUED.into_iter().filter(|other| *other != stage);
        publish.extend(others.flat_map(of_stage));
        publish.extend(["mr.api.submit", "mr.api.cancel", "$SRV.PING"].map(str::to_owned));
        let mut subscribe = SUBSCRIBE.to_vec();
        subscribe.extend(["mr.notice.>", "_INBOX_submitter.>"]);
        if stage == Stage::PublishWeights {
            publish.push(LOG_ENTRY.to_owned());
        }
        if stage != Stage::TrainShard {
            publish.extend(buckets.clone());
            subscribe.push("mr.key.MILLRACE_WORKERS.>");
        }
        try_all(&fleet, user, &publish, &subscribe).await;
    }

    let mut publish = common;
    publish.extend(Stage::QUEUED.into_iter().flat_map(of_stage));
    publish.extend(buckets);
    publish.extend(["mr.notice.worker.w", LOG_ENTRY].map(str::to_owned));
    try_all(&fleet, "submitter", &publish, &SUBSCRIBE).await;

    let mut publish = NOBODY.map(str::to_owned).to_vec();
    publish.extend(Stage::QUEUED.into_iter().flat_map(|stage| of_stage(stage)[..4].to_vec()));
    try_all(&fleet, "coordinator", &publish, &["_INBOX_submitter.>", "_INBOX_generate.>", ">"]).await;

    // Nothing of it was stored.
    assert_eq!(coordinator.log_end().await.unwrap(), 0);
    assert!(coordinator.dead_letters(1, 10).await.unwrap().is_empty());
}
