//! A connection that is cut while a puller takes its requests back, and one that is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use millrace_queue::port::{Message, PoolPriority, Put};
use millrace_queue::testing::TestServer;
use millrace_queue::{DeadLetterQueue, JetStream, JetStreamOptions, QueueError, QueueSettings, TaskQueue};
use millrace_schemas::{Stage, partition, subjects};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// In the subject that the server sends a dead letter with.
const LETTER: &[u8] = b"$JS.ACK.MILLRACE_DEAD";

/// Between a client and a server.
struct Proxy {
    url: String,
    state: Arc<ProxyState>,
    /// Counts cuts.
    cuts: watch::Sender<u64>,
}

#[derive(Default)]
struct ProxyState {
    /// What the client sends is dropped.
    mute: AtomicBool,
    /// The client has withdrawn from a subscription meanwhile.
    withdrawn: Notify,
    /// Dead letters, and what the server sends after them, wait for a permit.
    holds_letters: AtomicBool,
    go_on: Notify,
}

impl Proxy {
    async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let server = server.trim_start_matches("nats://").to_owned();
        let (state, cuts) = (Arc::<ProxyState>::default(), watch::Sender::new(0));
        let (shared, cut) = (state.clone(), cuts.subscribe());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let (state, mut cut) = (shared.clone(), cut.clone());
                cut.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = cut.changed() => {}
                        () = pass(client, server, &state) => {}
                    }
                });
            }
        });
        Self { url, state, cuts }
    }
}

async fn pass(client: TcpStream, server: TcpStream, state: &ProxyState) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let count = from_client.read(&mut bytes).await.unwrap_or(0);
            let sent = &bytes[..count];
            if count == 0 {
                break;
            }
            if !state.mute.load(Ordering::SeqCst) {
                to_server.write_all(sent).await.unwrap();
            } else if sent.windows(5).any(|word| word == b"UNSUB") {
                state.withdrawn.notify_one();
            }
        }
    };
    let back = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let count = from_server.read(&mut bytes).await.unwrap_or(0);
            let sent = &bytes[..count];
            let is_letter = sent.windows(LETTER.len()).any(|word| word == LETTER);
            if is_letter && state.holds_letters.load(Ordering::SeqCst) {
                state.go_on.notified().await;
            }
            if count == 0 || to_client.write_all(sent).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

fn task(group: u64, partitions: u32) -> Message {
    let run = "lake".parse().unwrap();
    let pool = partition::of_group(&run, group, partitions);
    let subject = format!("mr.task.generate.{pool}.lake.v0.g{group}r0a0-s1");
    Message { subject, payload: Bytes::new(), headers: vec![] }
}

/// Waits until a request of a puller waits at each partition.
async fn wait_for_requests(server: &TestServer, partitions: u32) {
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    for pool in partition::pools(partitions) {
        let stream = context.get_stream(subjects::task_stream(Stage::Generate)).await.unwrap();
        while stream.consumer_info(subjects::consumer(&pool)).await.unwrap().num_waiting == 0 {}
    }
}

/// The messages that tell it where its last task was are lost with the connection, and the client
/// library waits for them on the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_puller_of_partitions_pulls_on_when_it_is_cut_off_while_it_withdraws() {
    const PARTITIONS: u32 = 2;
    let server = TestServer::start().await;
    // What the cut takes away is delivered again soon.
    let settings =
        QueueSettings { ack_wait: Duration::from_secs(2), max_deliver: 100, ..QueueSettings::default() };
    let coordinator = server.connect(JetStreamOptions { settings, ..JetStreamOptions::default() }).await;
    for pool in partition::pools(PARTITIONS) {
        coordinator.ensure_partition(Stage::Generate, &pool).await.unwrap();
    }
    let proxy = Proxy::start(server.url()).await;
    let worker = JetStream::connect(&proxy.url, "worker", JetStreamOptions::default()).await.unwrap();
    let pools = partition::pools(PARTITIONS).into_iter().map(|pool| PoolPriority { pool, priority: 0 });
    let mut puller = worker.priority_puller(Stage::Generate, pools.collect()).await.unwrap();
    // With one slot it takes the other request back when the first task comes.
    let pulling = tokio::spawn(async move { (puller.pull(1).await.map(|pulled| pulled.len()), puller) });
    wait_for_requests(&server, PARTITIONS).await;
    proxy.state.mute.store(true, Ordering::SeqCst);
    coordinator.put(vec![task(1, PARTITIONS)]).await.pop().unwrap().unwrap();
    timeout(PATIENCE, proxy.state.withdrawn.notified()).await.expect("it withdraws its requests");
    proxy.state.mute.store(false, Ordering::SeqCst);
    proxy.cuts.send_modify(|cuts| *cuts += 1);
    let (pulled, mut puller) = timeout(PATIENCE, pulling).await.expect("it pulls on").unwrap();
    assert_eq!(pulled.unwrap(), 1);
    // Both partitions, whichever it was.
    for group in 2..12 {
        let put = coordinator.put(vec![task(group, PARTITIONS)]).await.pop().unwrap().unwrap();
        assert_eq!(put, Put::Queued);
        let pulled = timeout(PATIENCE, puller.pull(1)).await.expect("tasks come").unwrap();
        for delivery in pulled {
            delivery.lease.done().await.unwrap();
        }
    }
    puller.close().await;
}

/// Garbage collection would remove what the letters claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_queue_that_is_slow_is_not_taken_for_empty() {
    let server = TestServer::start().await;
    let coordinator = server.connect(JetStreamOptions::default()).await;
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let bury = async |number: u64| {
        let sent = context.publish(format!("mr.dead.lake.{number}"), "a task".into()).await.unwrap();
        sent.await.unwrap();
    };
    assert!(coordinator.dead_letters(1, 10).await.unwrap().is_empty());
    for number in 1..=3 {
        bury(number).await;
    }
    let proxy = Proxy::start(server.url()).await;
    let collector = JetStream::connect(&proxy.url, "collector", JetStreamOptions::default()).await.unwrap();
    proxy.state.holds_letters.store(true, Ordering::SeqCst);
    let letters = timeout(PATIENCE, collector.dead_letters(1, 10)).await.expect("it answers");
    assert!(matches!(letters, Err(QueueError::Unavailable { .. })), "{letters:?}");
    proxy.state.holds_letters.store(false, Ordering::SeqCst);
    proxy.state.go_on.notify_one();
    let letters = timeout(PATIENCE, collector.dead_letters(1, 10)).await.expect("it answers");
    assert_eq!(letters.unwrap().len(), 3);
    // The end is where the server has no more, wherever its last position is.
    coordinator.unbury(3).await.unwrap();
    let letters = timeout(PATIENCE, collector.dead_letters(1, 10)).await.expect("it answers");
    assert_eq!(letters.unwrap().iter().map(|letter| letter.seq).collect::<Vec<_>>(), [1, 2]);
    let letters = timeout(Duration::from_secs(5), collector.dead_letters(3, 10)).await;
    assert!(letters.expect("nothing is waited for").unwrap().is_empty());
}
