//! Refusals of the server and how the client handles them: pools beyond its bound, ids in process,
//! and no room.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, stream};
use bytes::Bytes;
use millrace_queue::port::{Expect, Message, Written};
use millrace_queue::testing::{TestCluster, TestServer};
use millrace_queue::{EventLog, JetStream, JetStreamOptions, KeyStore, Queue, QueueError, TaskQueue};
use millrace_schemas::limits::MAX_NAMES;
use millrace_schemas::subjects::{POLICY_BUCKET, WORKERS_BUCKET};
use millrace_schemas::{Stage, subjects};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

fn member(number: usize) -> millrace_schemas::PoolName {
    subjects::member_pool(&format!("w{number}").parse().unwrap())
}

async fn consumers(url: &str, stream: &str) -> usize {
    let context = jetstream::new(async_nats::connect(url).await.unwrap());
    context.get_stream(stream).await.unwrap().cached_info().state.consumer_count
}

#[tokio::test]
async fn members_that_come_and_go_leave_no_consumers() {
    let server = TestServer::start().await;
    let queue = server.connect(JetStreamOptions::default()).await;
    // More than the server has consumers by its own default.
    for number in 0..1_500 {
        queue.ensure_pool(Stage::TrainShard, &member(number)).await.unwrap();
        queue.remove_pool(Stage::TrainShard, &member(number)).await.unwrap();
    }
    assert_eq!(consumers(server.url(), &subjects::task_stream(Stage::TrainShard)).await, 0);
    queue.remove_pool(Stage::TrainShard, &member(0)).await.unwrap();
    // So many at once are no trouble either.
    let made = futures::future::join_all((0..1_500).map(|n| {
        let (queue, pool) = (queue.clone(), member(n));
        async move { queue.ensure_pool(Stage::TrainShard, &pool).await }
    }));
    made.await.into_iter().for_each(|made| made.unwrap());
}

#[tokio::test]
async fn a_pool_beyond_the_bound_is_refused_for_good() {
    let server = TestServer::start().await;
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let stream = stream::Config {
        name: subjects::task_stream(Stage::TrainShard),
        subjects: vec![subjects::task_stream_subjects(Stage::TrainShard)],
        max_consumers: 2,
        ..Default::default()
    };
    // An operator's: it is left as it is.
    context.create_stream(stream).await.unwrap();
    let queue = server.connect(JetStreamOptions::default()).await;
    for number in 0..2 {
        queue.ensure_pool(Stage::TrainShard, &member(number)).await.unwrap();
    }
    let error = queue.ensure_pool(Stage::TrainShard, &member(2)).await.unwrap_err();
    assert!(matches!(error, QueueError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("maximum consumers limit"), "{error}");
    queue.ensure_pool(Stage::TrainShard, &member(1)).await.unwrap();
    queue.ensure_pool(Stage::Reward, &"success".parse().unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_flood_of_names_silences_no_worker() {
    let server = TestServer::start().await;
    let queue = server.connect(JetStreamOptions::default()).await;
    let beat = async |name: &str, value: &'static [u8]| {
        queue.set(WORKERS_BUCKET, name, Bytes::from_static(value), Expect::Any).await
    };
    beat("honest", b"1").await.unwrap();
    let flood: Vec<String> = (0..MAX_NAMES + 100).map(|number| format!("flood-{number}")).collect();
    let beats = futures::future::join_all(flood.iter().map(|name| beat(name, &[b' '; 1_000]))).await;
    assert_eq!(beats.iter().filter(|beat| beat.is_err()).count(), 101);
    for _ in 0..10 {
        beat("honest", b"some heartbeat that is longer than the one before").await.unwrap();
    }
    let large = queue.set(WORKERS_BUCKET, "honest", Bytes::from(vec![0; 1 << 18]), Expect::Any).await;
    assert!(large.is_err_and(|e| !e.is_transient()));
}

#[tokio::test]
async fn a_full_log_is_told_and_what_is_done_waits_for_room() {
    let server = TestServer::start().await;
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let log = stream::Config {
        name: subjects::LOG_STREAM.into(),
        subjects: vec![subjects::LOG_ALL.into()],
        max_bytes: 1_000,
        discard: stream::DiscardPolicy::New,
        ..Default::default()
    };
    context.create_stream(log).await.unwrap();
    let queue = server.connect(JetStreamOptions::default()).await;
    let entry = || Message {
        subject: "mr.log.lake.cancelled".into(),
        payload: Bytes::from(vec![0; 600]),
        headers: vec![],
    };
    queue.append(entry(), None).await.unwrap();
    let error = queue.append(entry(), None).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("max_bytes"), "{error}");
    assert!(error.is_full(), "{error}");
    let range = queue.log_range().await.unwrap();
    assert!(range.bytes > 600 && range.max_bytes == Some(1_000), "{range:?}");
    // Room is freed, and no stored entry was lost.
    context.get_stream(subjects::LOG_STREAM).await.unwrap().purge().await.unwrap();
    assert_eq!(queue.append(entry(), None).await.unwrap().seq, 2);
}

/// The server that leads the log, which is made if need be.
async fn leader_of_the_log(cluster: &TestCluster) -> usize {
    let context = jetstream::new(async_nats::connect(cluster[0].url()).await.unwrap());
    let log = || stream::Config {
        name: subjects::LOG_STREAM.into(),
        subjects: vec![subjects::LOG_ALL.into()],
        num_replicas: 3,
        ..Default::default()
    };
    while context.get_or_create_stream(log()).await.is_err() {}
    let queue = cluster.connect(0, JetStreamOptions::default()).await;
    cluster.leader_of(&queue, subjects::LOG_STREAM).await
}

fn done() -> Message {
    let payload = Bytes::from_static(b"done");
    Message { subject: "mr.log.lake.outcome.reward".into(), payload, headers: vec![] }
}

/// Stops the followers and sends an outcome, for which the leader then waits. Appends the outcome
/// again, as a client does after a timeout. Resumes the followers and returns the error of the
/// second append.
async fn append_while_in_process(
    cluster: &TestCluster,
    id: &str,
) -> (std::sync::Arc<JetStream>, Option<QueueError>) {
    let leader = leader_of_the_log(cluster).await;
    let queue = cluster.connect(leader, JetStreamOptions::default()).await;
    let client = async_nats::connect(cluster[leader].url()).await.unwrap();
    let followers = || cluster.iter().enumerate().filter(|(number, _)| *number != leader);
    followers().for_each(|(_, server)| server.suspend().unwrap());
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", id);
    client.publish_with_headers("mr.log.lake.outcome.reward", headers, "done".into()).await.unwrap();
    client.flush().await.unwrap();
    let told = queue.append(done(), Some(id)).await;
    followers().for_each(|(_, server)| server.resume().unwrap());
    (queue, told.err())
}

#[tokio::test]
async fn an_id_in_process_is_asked_again_and_is_then_the_first_one() {
    let cluster = TestCluster::start().await;
    let in_process = async {
        for number in 0.. {
            let id = format!("lake/{number}");
            let (queue, error) = append_while_in_process(&cluster, &id).await;
            // On a busy machine another may have become the leader just before it was stopped: then nobody answers, or the
            // first one is stored already.
            let Some(error) = error else { continue };
            assert!(error.is_transient(), "what is done must not be given up: {error}");
            if error.to_string().contains("10158") {
                return (queue, id);
            }
        }
        unreachable!("it goes on until the server says so")
    };
    let (queue, id) =
        timeout(2 * PATIENCE, in_process).await.expect("the server says that the id is in process");
    let stored = async {
        loop {
            if let Ok(stored) = queue.append(done(), Some(&id)).await {
                return stored;
            }
        }
    };
    let stored = timeout(PATIENCE, stored).await.expect("the followers go on");
    assert!(!stored.first, "it is the one that was sent first: {stored:?}");
}

/// While the first write is on its way to the replicas, the server says neither yes nor no to the others. Asked again,
/// it tells them.
#[tokio::test(flavor = "multi_thread")]
async fn of_those_who_write_a_key_at_once_in_a_cluster_one_wins_and_the_others_are_told() {
    let cluster = TestCluster::start().await;
    let options = JetStreamOptions { replicas: 3, ..JetStreamOptions::default() };
    let queue = cluster.connect(0, options.clone()).await;
    queue.ensure_topology().await.expect("made");
    let mut writers = Vec::new();
    for number in 0..12 {
        writers.push(cluster.connect(number % cluster.len(), options.clone()).await);
    }
    let (mut expected, mut in_process) = (Expect::Absent, 0);
    for round in 0..20 {
        let writes = writers.iter().map(|writer| write(writer, format!("round {round}"), expected));
        let answers = futures::future::join_all(writes).await;
        let won: Vec<u64> = answers.iter().filter_map(|(revision, _)| *revision).collect();
        assert_eq!(won.len(), 1, "round {round}: {answers:?}");
        in_process += answers.iter().map(|(_, in_process)| in_process).sum::<usize>();
        expected = Expect::Revision(won[0]);
    }
    assert!(in_process > 0, "no two writes met, so this shows nothing");
}

/// Writes the key until it is told whether it did; the revision, and how often it was told neither.
async fn write(queue: &JetStream, value: String, expect: Expect) -> (Option<u64>, usize) {
    let mut in_process = 0;
    loop {
        match queue.set(POLICY_BUCKET, "contended", value.clone().into(), expect).await {
            Ok(Written::At(revision)) => return (Some(revision), in_process),
            Ok(Written::Conflict) => return (None, in_process),
            Err(QueueError::Unavailable { .. }) => in_process += 1,
            Err(error) => panic!("refused for good: {error}"),
        }
    }
}
