//! The nats-server child: it starts or reports why not, keeps its streams, and ends with its
//! parent.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use millrace_queue::port::{Expect, Message};
use millrace_queue::testing::{TestCluster, TestServer};
use millrace_queue::{DeadLetterQueue, EventLog, JetStream, JetStreamOptions, KeyStore, Queue, TaskQueue};
use millrace_schemas::subjects::{self, POLICY_BUCKET};
use millrace_schemas::{Stage, limits};
use millrace_server::{Server, ServerError, ServerOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

async fn until_gone(pid: u32) {
    let gone = async {
        while Path::new(&format!("/proc/{pid}")).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("the process goes");
}

/// Not a test: what the test below starts, and kills.
#[tokio::test]
#[ignore = "started by another test"]
async fn a_process_that_starts_a_server() {
    let folder = std::env::temp_dir().join(format!("millrace-orphan-{}", std::process::id()));
    let server = Server::start(&ServerOptions::in_folder(&folder)).await.expect("started");
    println!("\nstarted {} {}", server.pid(), folder.display());
    tokio::time::sleep(3 * PATIENCE).await;
}

#[tokio::test]
async fn the_server_goes_when_we_are_killed() {
    let mut parent = spawn_parent();
    let (pid, folder) = started(&mut parent);
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    // A hang-up of the server's process group must not cut the server loose from us.
    let group = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a process id"));
    let group = nix::unistd::getpgid(Some(group)).expect("its group");
    nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGHUP).expect("sent");
    parent.kill().expect("killed");
    parent.wait().expect("gone");
    until_gone(pid).await;
    std::fs::remove_dir_all(folder).expect("cleaned up");
}

fn spawn_parent() -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "server::a_process_that_starts_a_server", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("started")
}

/// The server's process id and folder, as the parent prints them.
fn started(parent: &mut Child) -> (u32, String) {
    let mut lines = BufReader::new(parent.stdout.take().expect("its output")).lines();
    let line =
        lines.find_map(|line| Some(line.ok()?.strip_prefix("started ")?.to_owned())).expect("a server");
    let (pid, folder) = line.split_once(' ').expect("two words");
    (pid.parse().expect("a process id"), folder.to_owned())
}

#[tokio::test]
async fn a_stopped_server_keeps_its_streams() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = ServerOptions::in_folder(folder.path().join("made if need be"));
    for start in 0..2 {
        // Another setting for the same streams.
        options.sync_always = start == 1;
        let server = Server::start(&options).await.expect("started");
        let queue =
            JetStream::connect(server.url(), "test", JetStreamOptions::default()).await.expect("connected");
        queue.ensure_topology().await.expect("made");
        assert_eq!(queue.log_end().await.expect("known"), start);
        let event = millrace_schemas::Event::Tick { unix_ms: 1 };
        let broker = millrace_queue::Broker::new(queue, millrace_queue::Objects::memory());
        broker.append(millrace_schemas::subjects::ALL_RUNS, &event).await.expect("appended");
        let pid = server.pid();
        if start == 0 {
            server.stop().await;
        } else {
            drop(server);
        }
        until_gone(pid).await;
    }
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = Server::start(&ServerOptions::in_folder(folder.path().join("first"))).await.expect("started");
    let port = first.url().rsplit(':').next().and_then(|port| port.parse().ok());
    let second = ServerOptions { port, ..ServerOptions::in_folder(folder.path().join("second")) };
    let Err(ServerError::Start { reason, .. }) = Server::start(&second).await else {
        panic!("the port is taken")
    };
    assert!(reason.contains("address already in use"), "{reason}");
    let missing = ServerOptions { binary: Some(PathBuf::from("/nowhere/nats-server")), ..second.clone() };
    assert!(matches!(Server::start(&missing).await, Err(ServerError::NotFound)));
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("written");
    assert!(matches!(Server::start(&ServerOptions::in_folder(file)).await, Err(ServerError::Folder { .. })));
}

#[tokio::test]
async fn connecting_to_nobody_fails_in_time() {
    let options =
        JetStreamOptions { connect_timeout: Duration::from_millis(300), ..JetStreamOptions::default() };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let url = format!("nats://127.0.0.1:{port}");
    let Err(error) = JetStream::connect(&url, "test", options.clone()).await else {
        panic!("nobody is there")
    };
    assert!(error.is_transient(), "{error}");
    let Err(error) = JetStream::connect("not a url", "test", options).await else { panic!("it is no URL") };
    assert!(!error.is_transient(), "{error}");
}

/// Every wait of a client has a deadline. One client gets no reply after it connects; the server of
/// another falls silent while the connection is open.
#[tokio::test]
async fn silent_server_times_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    let held = tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            connections.push(connection);
        }
    });
    let options =
        JetStreamOptions { connect_timeout: Duration::from_millis(700), ..JetStreamOptions::default() };
    let began = std::time::Instant::now();
    let Err(error) = JetStream::connect(&url, "test", options).await else { panic!("it said nothing") };
    assert!(error.is_transient() && error.to_string().contains("says nothing"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    held.abort();

    let server = TestServer::start().await;
    let queue = server.connect(JetStreamOptions::default()).await;
    let (run, pool) = ("lake".parse().expect("a name"), "policy".parse().expect("a name"));
    queue.ensure_pool(Stage::Generate, &pool).await.expect("made");
    let message = |subject: &str| Message { subject: subject.into(), payload: "x".into(), headers: vec![] };
    let mut log = queue.read_log(1).await.expect("opened");
    let mut watcher = queue.watch(POLICY_BUCKET).await.expect("opened");
    let pid = Pid::from_raw(i32::try_from(server.pid()).expect("a process id"));
    kill(pid, Signal::SIGSTOP).expect("it runs");
    let patience = Duration::from_millis(limits::REQUEST_TIMEOUT_MS) + Duration::from_secs(30);
    let filter = subjects::tasks_of_run(Stage::Generate, &run);
    let all = async {
        tokio::join!(
            async { assert!(queue.append(message("mr.log.lake.tick"), None).await.is_err()) },
            async { assert!(queue.put(vec![message("mr.task.generate.x")]).await[0].is_err()) },
            async { assert!(queue.get(POLICY_BUCKET, "lake").await.is_err()) },
            async { assert!(queue.set(POLICY_BUCKET, "lake", "x".into(), Expect::Any).await.is_err()) },
            async { assert!(queue.log_end().await.is_err()) },
            async { assert!(queue.purge(Stage::Generate, &filter).await.is_err()) },
            async { assert!(queue.ensure_pool(Stage::Reward, &pool).await.is_err()) },
            async { assert!(queue.dead_letters(1, 1).await.is_err()) },
        );
    };
    let waited = tokio::time::timeout(patience, all).await;
    kill(pid, Signal::SIGCONT).expect("it is stopped");
    waited.expect("each wait has an end");
    // It speaks again, and all goes on, those who only listened included.
    let again = async {
        while queue.log_end().await.is_err() {}
        while queue.append(message("mr.log.lake.tick"), None).await.is_err() {}
        while log.next(1).await.is_err() {}
        while queue.set(POLICY_BUCKET, "lake", "y".into(), Expect::Any).await.is_err() {}
        while watcher.next().await.is_err() {}
    };
    tokio::time::timeout(patience, again).await.expect("the client reconnects");
}

/// Two of three servers elect no leader. What a coordinator makes waits for the third.
#[tokio::test]
async fn a_cluster_that_is_not_complete_yet_gets_its_streams_when_it_is() {
    let mut cluster = TestCluster::start_partly(2).await;
    let options = JetStreamOptions { replicas: 3, ..JetStreamOptions::default() };
    let queue = cluster.connect(0, options.clone()).await;
    let refused = async {
        // The server says nothing for seconds, and then that it is unavailable.
        while !queue.log_end().await.is_err_and(|error| error.to_string().contains("10008")) {}
    };
    timeout(2 * PATIENCE, refused).await.expect("a server without a leader refuses");
    let (first, second) = (cluster.connect(0, options.clone()).await, cluster.connect(1, options).await);
    let making = tokio::spawn(async move { tokio::join!(first.ensure_topology(), second.ensure_topology()) });
    cluster.start_rest().await;
    let (first, second) = timeout(3 * PATIENCE, making).await.expect("it is made in time").expect("no panic");
    first.expect("made");
    second.expect("made");
    for stream in subjects::streams() {
        let report = queue.stream_report(&stream).await.expect("it is there");
        assert_eq!(report.copies, 3, "{stream}");
    }
}

/// A third of all questions goes to the server that hangs. Readers ask again; nobody waits for it.
#[tokio::test]
async fn a_replica_that_hangs_keeps_no_reader_waiting() {
    const ENTRIES: u64 = 128;
    const KEYS: usize = 16;
    let cluster = TestCluster::start().await;
    let options = JetStreamOptions { replicas: 3, ..JetStreamOptions::default() };
    let queue = cluster.connect(0, options.clone()).await;
    queue.ensure_topology().await.expect("made");
    let bucket = subjects::bucket_stream(POLICY_BUCKET);
    let asked = cluster.leader_of(&queue, subjects::LOG_STREAM).await;
    let leads = cluster.leader_of(&queue, &bucket).await;
    let hung = (0..cluster.len()).find(|number| ![asked, leads].contains(number)).expect("three servers");
    let queue = cluster.connect(asked, options).await;
    for at in 1..=ENTRIES {
        let entry = Message {
            subject: "mr.log.run.test".into(),
            payload: at.to_string().into(),
            headers: Vec::new(),
        };
        queue.append(entry, None).await.expect("stored");
    }
    for key in 0..KEYS {
        let set = queue.set(POLICY_BUCKET, &format!("run-{key}"), "1".into(), Expect::Any).await;
        set.expect("written");
    }
    cluster.suspend_replica(asked, hung, &bucket).await;
    cluster.suspend_replica(asked, hung, subjects::LOG_STREAM).await;
    let read = async {
        let seqs: Vec<u64> = (1..=ENTRIES).collect();
        let entries = queue.log_entries(&seqs).await.expect("read");
        assert!(entries.iter().zip(&seqs).all(|(entry, seq)| entry.as_ref().is_some_and(|e| e.seq == *seq)));
        for key in 0..KEYS {
            let value = queue.get(POLICY_BUCKET, &format!("run-{key}")).await.expect("read");
            assert!(value.is_some(), "run-{key}");
        }
        for _ in 0..4 {
            let mut watched = queue.watch(POLICY_BUCKET).await.expect("watched");
            for _ in 0..KEYS {
                watched.next().await.expect("a value");
            }
        }
    };
    timeout(3 * PATIENCE, read).await.expect("it is read in time");
}
