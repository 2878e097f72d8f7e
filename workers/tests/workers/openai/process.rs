//! End to end: a nats-server, the worker's binary, and an inference server that is killed in the
//! middle.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use millrace_queue::testing::TestServer;
use millrace_queue::{Broker, JetStreamOptions, Objects};
use millrace_schemas::generate::Sampling;
use millrace_schemas::subjects::GENERATE_POOL;
use millrace_schemas::{Event, OutcomeBody, Stage};
use serde_json::json;

use crate::openai::support::{Python, announce_with, task, until, versions};

/// The worker; killed if the test fails.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_process_generates_at_a_server_that_is_killed() {
    let server = TestServer::start().await;
    let (objects, weights) = (server.folder().join("objects"), server.folder().join("weights"));
    let queue = server.connect(JetStreamOptions::default()).await;
    let broker = Broker::new(queue, Objects::open(objects.to_str().unwrap()).unwrap());
    broker.queue().ensure_pool(Stage::Generate, &GENERATE_POOL.parse().unwrap()).await.unwrap();
    let python = Python::start();
    python.set(&json!({"slow": 0.02}));
    announce_with(&broker, 1, true, &[]).await;
    let worker = Command::new(env!("CARGO_BIN_EXE_millrace-worker"))
        .args(["--nats", server.url(), "--objects", objects.to_str().unwrap(), "--stages", "generate:4"])
        .args(["--engine", "openai", "--engine-url", &python.url(), "--engine-tolerance", "0.001"])
        .args(["--engine-weights-dir", weights.to_str().unwrap(), "--log", "off"])
        .stdin(Stdio::null())
        .spawn();
    let _worker = Worker(worker.unwrap());
    let tasks: Vec<_> = (0..12).map(|index| task(index, 1, 40, Sampling::at(1.0))).collect();
    for put in broker.put_tasks(&tasks).await {
        put.unwrap();
    }
    until("it samples", || python.active() > 0).await;
    let _python = python.replace();
    let mut log = broker.read_log(1).await.unwrap();
    let mut done = BTreeSet::new();
    let read = async {
        while done.len() < tasks.len() {
            for logged in log.next(100).await.unwrap() {
                match logged.event.unwrap() {
                    Event::Outcome(outcome) => {
                        let OutcomeBody::Generate(turn) = &outcome.body else { panic!("{outcome:?}") };
                        assert_eq!(versions(turn), [1]);
                        done.insert(outcome.key.to_string());
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(240), read).await.expect("each task is done in the end");
}
