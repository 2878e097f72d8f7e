//! The binary, on a real nats-server: it serves, reports its health, and leaves in good order.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use millrace_queue::testing::TestServer;
use millrace_queue::{Broker, JetStreamOptions, Objects};
use millrace_schemas::env_step::{EnvAction, EnvStepTask, EnvironmentSpec, FrozenLakeSpec, Split};
use millrace_schemas::notice::WorkerNotice;
use millrace_schemas::reward::{RewardRule, RewardTask, TurnResult};
use millrace_schemas::{
    Event, OutcomeBody, PolicyVersion, RolloutId, Stage, Task, TaskBody, TaskKey, subjects,
};

/// The process; killed if the test fails.
pub(super) struct Process(pub(super) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    pub(super) fn start(server: &TestServer, arguments: &[&str]) -> Self {
        let objects = server.folder().join("objects");
        let child = Command::new(env!("CARGO_BIN_EXE_millrace-worker"))
            .args(["--nats", server.url(), "--objects", objects.to_str().unwrap()])
            .args(["--http-addr", "127.0.0.1:0", "--log-format", "json"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    /// The address in its log.
    pub(super) fn http(&mut self) -> String {
        let mut lines = BufReader::new(self.0.stderr.take().unwrap()).lines();
        let line = lines.by_ref().map(Result::unwrap).find(|line| line.contains("/healthz")).unwrap();
        // Its output must be read, or the process would wait for room in the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        line["bound"].as_str().unwrap().to_owned()
    }

    /// Sends SIGTERM, and waits for the exit code; `None` if it had to be killed.
    pub(super) fn terminate(mut self) -> Option<i32> {
        let kill = |signal: &str, id: &str| Command::new("kill").args([signal, id]).status();
        let id = self.0.id().to_string();
        assert!(kill("-TERM", &id).unwrap().success());
        let (ended, is_over) = channel::<()>();
        std::thread::spawn(move || {
            if is_over.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
                drop(kill("-KILL", &id));
            }
        });
        let code = self.0.wait().unwrap().code();
        drop(ended);
        code
    }
}

pub(super) fn get(addr: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn task(key: TaskKey, pool: &str, body: TaskBody) -> Task {
    let (run, pool) = ("lake".parse().unwrap(), pool.parse().unwrap());
    Task { run, key, pool, version: PolicyVersion(0), evaluate: false, body }
}

pub(super) fn reset(group: u64) -> Task {
    let environment = EnvironmentSpec::FrozenLake(FrozenLakeSpec::default());
    let rollout = RolloutId { group, index: 0, attempt: 0 };
    let step = EnvStepTask {
        environment,
        split: Split::Train,
        seed: group,
        row: None,
        action: EnvAction::Reset,
        answers: None,
        prefix: Vec::new(),
    };
    task(TaskKey::EnvStep { rollout, turn: 0 }, "frozen_lake", TaskBody::EnvStep(step))
}

fn reward(group: u64, reward: f64) -> Task {
    let rollout = RolloutId { group, index: 0, attempt: 0 };
    let turns = vec![TurnResult { reward, valid: true, tokens: 1 }];
    let body = RewardTask::new(RewardRule::EnvReturn, turns, true);
    task(TaskKey::Reward { rollout, reward: 0 }, "env_return", TaskBody::Reward(body))
}

pub(super) async fn pools(broker: &Broker) {
    for (stage, pool) in [(Stage::EnvStep, "frozen_lake"), (Stage::Reward, "env_return")] {
        broker.queue().ensure_pool(stage, &pool.parse().unwrap()).await.unwrap();
    }
}

/// Reads the log until it holds `count` entries.
pub(super) async fn log(broker: &Broker, count: usize) -> Vec<Event> {
    let mut log = broker.read_log(1).await.unwrap();
    let mut events = Vec::new();
    let read = async {
        while events.len() < count {
            events.extend(log.next(1000).await.unwrap().into_iter().map(|logged| logged.event.unwrap()));
        }
    };
    tokio::time::timeout(Duration::from_secs(60), read).await.expect("the log grows");
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_serves_and_leaves_in_good_order() {
    let server = TestServer::start().await;
    let queue = server.connect(JetStreamOptions::default()).await;
    let broker = Broker::new(queue, Objects::memory());
    let mut listener = broker.queue().listen(subjects::NOTICE_WORKERS).await.unwrap();
    // The worker exists before its pools.
    let mut worker = Process::start(&server, &["--stages", "env_step:16,reward", "--id", "one"]);
    let http = worker.http();
    pools(&broker).await;
    let tasks: Vec<Task> = (0..500).map(reset).collect();
    for put in broker.put_tasks(&tasks).await {
        put.unwrap();
    }
    let events = log(&broker, 500).await;
    assert_eq!(events.len(), 500);

    let page = get(&http, "/metrics");
    let counted = r#"millrace_worker_tasks_total{stage="env_step",verdict="done"}"#;
    let mut notice: WorkerNotice;
    loop {
        let message = tokio::time::timeout(Duration::from_secs(30), listener.next()).await.unwrap().unwrap();
        notice = serde_json::from_slice(&message.payload).unwrap();
        if notice.stages[&Stage::EnvStep].done == 500 {
            break;
        }
    }
    assert_eq!(notice.worker, "one");
    assert!(notice.stages[&Stage::EnvStep].busy_us > 0);
    assert!(page.contains(counted), "{page}");
    let health = get(&http, "/healthz");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    assert!(health.contains(r#""stages":["env_step","reward"]"#), "{health}");
    assert_eq!(worker.terminate(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn infra_failure_is_not_reward() {
    let server = TestServer::start().await;
    let broker = Broker::new(server.connect(JetStreamOptions::default()).await, Objects::memory());
    pools(&broker).await;
    let worker = Process::start(&server, &["--stages", "reward", "--log", "off"]);
    let tasks = [reward(1, f64::NAN), reward(2, 0.0), reward(3, f64::INFINITY)];
    for put in broker.put_tasks(&tasks).await {
        put.unwrap();
    }
    let (mut scores, mut buried) = (Vec::new(), 0);
    for event in log(&broker, 3).await {
        match event {
            Event::Outcome(outcome) => match outcome.body {
                OutcomeBody::Reward(done) => scores.push((outcome.key, done.score)),
                other => panic!("{other:?}"),
            },
            Event::DeadLetter { reason, .. } => {
                assert!(reason.contains("is not finite"), "{reason}");
                buried += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((scores, buried), (vec![(tasks[1].key, 0.0)], 2));
    assert_eq!(worker.terminate(), Some(0));
}

#[test]
fn wrong_arguments_are_explained() {
    let output = Command::new(env!("CARGO_BIN_EXE_millrace-worker"))
        .args(["--objects", "memory:", "--stages", "generates"])
        .output()
        .unwrap();
    assert_ne!(output.status.code(), Some(0));
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("unknown stage value=\"generates\"; known: submit, generate"), "{words}");
}

#[test]
fn a_failed_command_reports_its_causes_and_no_backtrace() {
    let output = Command::new(env!("CARGO_BIN_EXE_millrace-worker"))
        .args(["check-model", "no-such-directory"])
        .envs([("RUST_BACKTRACE", "1"), ("RUST_LIB_BACKTRACE", "1")])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.starts_with("Error: model directory no-such-directory is refused"), "{words}");
    assert!(!words.to_lowercase().contains("backtrace"), "{words}");
}

#[test]
fn a_worker_hosts_no_agents_where_it_has_no_sandbox_for_them() {
    let worker = |more: &[&str]| {
        let ran = Command::new(env!("CARGO_BIN_EXE_millrace-worker"))
            .args(["--nats", "nats://127.0.0.1:1", "--objects", "/no/such/folder", "--stages", "env_step"])
            .args(["--agents"])
            .args(more)
            .output();
        let ran = ran.unwrap();
        assert!(!ran.status.success());
        String::from_utf8_lossy(&ran.stderr).into_owned()
    };
    // It fails before it asks for work, and says what to do.
    let refused = worker(&["--sandbox", "/no/such/program"]);
    assert!(refused.contains("/no/such/program"), "{refused}");
    assert!(refused.contains("--agents-without-sandbox"), "{refused}");
    let refused = worker(&["--agents-read", "/no/such/folder"]);
    assert!(refused.contains("/no/such/folder") && refused.contains("open to all users"), "{refused}");
    for wall in [["--agents-read", "/usr"], ["--agents-network", "pypi.org:443"]] {
        let both = worker(&[&wall[..], &["--agents-without-sandbox"]].concat());
        assert!(both.contains("cannot be used with"), "{both}");
    }
    // What an operator writes wrongly is answered with the field, the value and the remedy.
    let listed = ["--agents-network", "pypi.org:443"];
    for (flags, [field, value, remedy]) in [
        (
            &["--agents-network", "a.org:443,pypi.org"][..],
            ["--agents-network", "pypi.org", "write host:port"],
        ),
        (&["--agents-network", "10.0.0.1:443"], ["--agents-network", "10.0.0.1:443", "private network"]),
        (&["--agents-network", "*.org:443"], ["--agents-network", "*.org:443", "two parts or more"]),
        (
            &["--agents-network-private", "169.254.169.254:80"],
            ["--agents-network-private", "169.254.169.254:80", "none that can be permitted"],
        ),
    ] {
        let refused = worker(&[flags, if flags[0] == listed[0] { &[] } else { &listed[..] }].concat());
        assert!([field, value, remedy].iter().all(|text| refused.contains(text)), "{flags:?}: {refused}");
    }
    let alone = worker(&["--agents-network-private", "10.0.0.1:443"]);
    assert!(alone.contains("--agents-network <HOST:PORT>"), "{alone}");
}

/// A server that takes connections and says nothing, as behind a broken load balancer.
#[test]
fn a_worker_that_waits_for_its_server_heeds_a_signal() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nats://{}", silent.local_addr().unwrap());
    let child = Command::new(env!("CARGO_BIN_EXE_millrace-worker"))
        .args(["--nats", &url, "--objects", "memory:", "--stages", "env_step"])
        .spawn();
    let worker = Process(child.unwrap());
    let held = silent.accept().unwrap();
    assert_eq!(worker.terminate(), Some(0));
    drop(held);
}
