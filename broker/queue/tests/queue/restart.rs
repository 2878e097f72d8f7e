//! The nats-server is killed and comes back: nothing acknowledged is lost, and everyone goes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_queue::port::{Expect, Message, Put, Written};
use millrace_queue::testing::TestServer;
use millrace_queue::{EventLog, JetStream, JetStreamOptions, KeyStore, TaskQueue};
use millrace_schemas::subjects::{COORDINATOR_BUCKET, LOG_STREAM};
use millrace_schemas::{PoolName, Stage};
use tokio::sync::mpsc;

/// How often the server is killed.
const KILLS: usize = 4;
/// Work resumes within this time after a restart. It is less than the timeout of a request: a
/// caller must not wait out that timeout for a reply that the connection lost.
const GOES_ON: Duration = Duration::from_secs(8);

fn pool() -> PoolName {
    "default".parse().expect("a pool name")
}

fn task(number: u64) -> Message {
    let subject = format!("mr.task.generate.default.demo.v0.g{number}r0a0-s1");
    Message { subject, payload: Bytes::from(number.to_string()), headers: vec![] }
}

fn number(message: &Message) -> u64 {
    std::str::from_utf8(&message.payload).expect("digits").parse().expect("a number")
}

/// Puts tasks until stopped, each until it is acknowledged. Returns their number.
async fn put(queue: Arc<JetStream>, mut stop: mpsc::Receiver<()>) -> u64 {
    let mut next = 0;
    while stop.try_recv().is_err() {
        let mut batch: Vec<u64> = (next..next + 10).collect();
        next += 10;
        while !batch.is_empty() {
            let put = queue.put(batch.iter().map(|number| task(*number)).collect()).await;
            let failed = batch.into_iter().zip(&put).filter(|(_, put)| put.is_err());
            batch = failed.map(|(number, _)| number).collect();
        }
    }
    next
}

/// A worker: each task's outcome is in the log before the task is acknowledged. Ends only by being dropped.
async fn work(queue: Arc<JetStream>) {
    let mut puller = queue.puller(Stage::Generate, &pool()).await.expect("a puller");
    loop {
        for delivery in puller.pull(16).await.expect("pulling outlives the server") {
            let outcome = Message { subject: "mr.log.demo.outcome".into(), ..delivery.message.clone() };
            let id = number(&delivery.message).to_string();
            while queue.append(outcome.clone(), Some(&id)).await.is_err() {}
            // A word that is lost costs a redelivery.
            let _ = delivery.lease.done().await;
        }
    }
}

/// Reads the log until it has the outcomes of all of the first `count` tasks. Returns them and the
/// last position.
async fn follow(queue: Arc<JetStream>, mut count: mpsc::Receiver<u64>) -> (BTreeSet<u64>, u64) {
    let mut log = queue.read_log(1).await.expect("a reader");
    let (mut seen, mut last, mut wanted) = (BTreeSet::new(), 0, None);
    while wanted.is_none_or(|wanted| seen.len() < wanted) {
        tokio::select! {
            biased;
            Some(count) = count.recv() => wanted = usize::try_from(count).ok(),
            entries = log.next(100) => for entry in entries.unwrap_or_default() {
                assert_eq!(entry.seq, last + 1, "the log has no gap and nothing comes twice");
                last = entry.seq;
                seen.insert(number(&entry.message));
            },
        }
    }
    (seen, last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    killed_under_load(TestServer::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_when_it_syncs_every_write() {
    killed_under_load(TestServer::start_as(|options| options.sync_always = true).await).await;
}

async fn killed_under_load(mut server: TestServer) {
    let settings = millrace_queue::QueueSettings {
        ack_wait: Duration::from_secs(2),
        max_deliver: 100,
        ..Default::default()
    };
    let options = JetStreamOptions { settings, ..JetStreamOptions::default() };
    let queue = server.connect(options.clone()).await;
    queue.ensure_pool(Stage::Generate, &pool()).await.expect("the pool is made");
    let (stop, stopped) = mpsc::channel(1);
    let (count, counted) = mpsc::channel(1);
    let putting = tokio::spawn(put(queue.clone(), stopped));
    let following = tokio::spawn(follow(server.connect(options.clone()).await, counted));
    let working = [
        tokio::spawn(work(server.connect(options.clone()).await)),
        tokio::spawn(work(server.connect(options).await)),
    ];
    let mut watcher = queue.watch(COORDINATOR_BUCKET).await.expect("watched");
    let mut revision = 0;
    for kill in 0..KILLS {
        let before = queue.log_end().await.expect("known");
        while queue.log_end().await.expect("known") < before + 200 {}
        let value = Bytes::from(kill.to_string());
        let expect = if kill == 0 { Expect::Absent } else { Expect::Revision(revision) };
        let written = queue.set(COORDINATOR_BUCKET, "k", value.clone(), expect).await.expect("written");
        let Written::At(at) = written else { panic!("what was written before stands") };
        revision = at;
        server.kill().await;
        server.restart().await.expect("it starts again");
        let seen = tokio::time::timeout(Duration::from_secs(20), watcher.next()).await;
        assert_eq!(seen.expect("the watcher goes on").expect("watched").value, value);
        let goes_on = async {
            // A request sent at once may hit the old connection.
            let before = loop {
                if let Ok(end) = queue.log_end().await {
                    break end;
                }
            };
            while queue.log_end().await.unwrap_or(0) < before + 50 {}
        };
        tokio::time::timeout(GOES_ON, goes_on).await.expect("everyone notices at once");
    }
    stop.send(()).await.expect("it puts");
    let put = putting.await.expect("it does not panic");
    count.send(put).await.expect("it reads");
    let (seen, last) = tokio::time::timeout(Duration::from_secs(60), following)
        .await
        .expect("every task that was put is done")
        .expect("it does not panic");
    assert_eq!(seen.len() as u64, put);
    assert!(last >= put);
    for worker in working {
        worker.abort();
    }
    // Acknowledged tasks leave their places, in the end.
    let again = tokio::time::timeout(Duration::from_secs(20), async {
        while queue.put(vec![task(0)]).await.pop().expect("an answer").expect("stored") != Put::Queued {}
    });
    again.await.expect("the first task's place is free");
}

/// As a cluster restores a backup: the stream is made at that moment, with its old settings. What was trimmed goes by the
/// log's id.
#[tokio::test]
async fn a_restored_log_keeps_its_id() {
    let server = TestServer::start().await;
    let queue = server.connect(JetStreamOptions::default()).await;
    let id = queue.log_range().await.expect("known").id;
    let client = async_nats::connect(server.url()).await.expect("connected");
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream(LOG_STREAM).await.expect("the log");
    let mut config = stream.cached_info().config.clone();
    context.delete_stream(LOG_STREAM).await.expect("deleted");
    context.create_stream(config.clone()).await.expect("restored");
    let restored = server.connect(JetStreamOptions::default()).await;
    assert_eq!(restored.log_range().await.expect("known").id, id);
    // A log of earlier versions has no name yet. It gets the one by which its segments go.
    config.metadata.clear();
    context.delete_stream(LOG_STREAM).await.expect("deleted");
    context.create_stream(config).await.expect("made");
    let unnamed = restored.log_range().await.expect("known").id;
    assert_ne!(unnamed, id, "another log, as far as anybody knows");
    let named = server.connect(JetStreamOptions::default()).await;
    assert_eq!(named.log_range().await.expect("known").id, unnamed);
    let stream = context.get_stream(LOG_STREAM).await.expect("the log");
    assert_eq!(stream.cached_info().config.metadata["millrace_log"], format!("{unnamed:016x}"));
}
