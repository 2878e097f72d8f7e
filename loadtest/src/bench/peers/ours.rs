//! Our side: whole lives of tasks on a real server with its files on disk, and plain JetStream on
//! the same.

use std::time::Duration;

use anyhow::ensure;
use millrace_queue::testing::TestServer;
use millrace_queue::{Broker, JetStreamOptions, Objects};

use super::Sample;
use crate::bench::lives::{self, Brokers, Load};
use crate::bench::raw;

/// Turns of a rollout where tasks are counted.
const TURNS: u8 = 16;
/// Bytes of a plain message, as of a peer's task.
const BYTES: usize = 256;

/// A server with an empty folder.
async fn server(sync: bool) -> TestServer {
    TestServer::start_as(|options| options.sync_always = sync).await
}

/// Put, pull and ack.
pub(super) async fn jetstream(sync: bool, in_flight: u32, time: Duration) -> anyhow::Result<Sample> {
    let server = server(sync).await;
    let connect = || server.connect(JetStreamOptions::default());
    let tasks_per_s = raw::run(connect().await, in_flight, BYTES, time).await?;
    let took = raw::lone(connect().await, BYTES, time).await?;
    ensure!(!took.is_empty(), "no message came back");
    let at = |share: f64| took[(took.len() as f64 * share) as usize] * 1e6;
    Ok(Sample { tasks_per_s, p50_us: at(0.5), p99_us: at(0.99), chain_per_s: None })
}

/// Whole lives. A rollout of the chain is a reset, a turn, a step and a score; its trainer's and
/// committer's tasks come on top.
pub(super) async fn millrace(sync: bool, in_flight: u32, time: Duration) -> anyhow::Result<Sample> {
    let server = server(sync).await;
    let objects = Objects::open(&server.folder().join("objects").to_string_lossy())?;
    let broker = async || Broker::new(server.connect(JetStreamOptions::default()).await, objects.clone());
    let brokers = Brokers { coordinator: broker().await, worker: broker().await };
    let loaded = lives::run(&brokers, "tasks", Load::of(in_flight, TURNS), time).await?;
    // A group of one has no advantage over itself, so two rollouts take turns.
    let lone = lives::run(&brokers, "lone", Load::of(2, TURNS), time).await?;
    // Asynchronous, as the peers' chains are.
    let half = Load { alpha: 1, ..Load::of((in_flight / 2).max(1), 1) };
    let chain = lives::run(&brokers, "chain", half, time).await?;
    Ok(Sample {
        tasks_per_s: loaded.per_s,
        p50_us: lone.p50_us,
        p99_us: lone.p99_us,
        chain_per_s: Some(chain.rollouts_per_s),
    })
}
