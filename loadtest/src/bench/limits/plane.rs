//! The processes: a nats-server with its files on disk, `millrace coordinator`s, and the worker in this one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_cli::tied::tied;
use millrace_queue::testing::TestServer;
use millrace_queue::{Broker, JetStreamOptions, Objects};
use millrace_schemas::Event;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::schedule::Player;
use crate::bench::cpu;
use crate::bench::lives::{self, Load};
use crate::bench::memory::resident_mb;
use crate::chaos::stack::beside;

/// Until all rollouts of all runs have begun.
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(50);

/// What is played.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Rollouts in flight, over all runs.
    pub(super) in_flight: u32,
    pub(super) runs: u32,
    pub(super) turns: u8,
    /// Tokens of a rollout, sampled and shown.
    pub(super) tokens: u32,
}

/// Processor time and memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    pub(super) server: Duration,
    pub(super) coordinator: Duration,
    pub(super) server_mb: f64,
    pub(super) coordinator_mb: f64,
}

/// All of them. What is left ends when it is dropped.
pub(super) struct Plane {
    server: TestServer,
    objects: PathBuf,
    millrace: PathBuf,
    pub(super) broker: Broker,
    pub(super) player: Arc<Player>,
    /// The first one leads, until it is killed.
    coordinators: Vec<Child>,
    started: u32,
    runs: Vec<String>,
    worker: JoinHandle<anyhow::Result<()>>,
    pace: JoinHandle<()>,
    stop: CancellationToken,
}

impl Plane {
    /// Starts them, and the runs.
    pub(super) async fn start(shape: Shape) -> anyhow::Result<Self> {
        let server = TestServer::start().await;
        let objects = server.folder().join("objects");
        let broker = async || {
            let queue = server.connect(JetStreamOptions::default()).await;
            anyhow::Ok(Broker::new(queue, Objects::open(&objects.to_string_lossy())?))
        };
        let (own, workers) = (broker().await?, broker().await?);
        own.queue().ensure_topology().await?;
        let player = Arc::new(Player::new(shape.turns, shape.tokens));
        let stop = CancellationToken::new();
        let worker = tokio::spawn(lives::work(
            workers,
            lives::ENV_POOL,
            player.clone(),
            shape.in_flight,
            stop.clone(),
        ));
        let pace = tokio::spawn(player.clone().keep_pace());
        let (millrace, coordinators, runs) = (beside("millrace")?, Vec::new(), Vec::new());
        let mut plane = Self {
            server,
            objects,
            millrace,
            broker: own,
            player,
            coordinators,
            started: 0,
            runs,
            worker,
            pace,
            stop,
        };
        plane.coordinator()?;
        for number in 0..shape.runs {
            let (name, load) = (format!("run-{number}"), Load::of(shape.in_flight / shape.runs, shape.turns));
            lives::submit(&plane.broker, &name, load, shape.tokens).await?;
            plane.runs.push(name);
        }
        plane.begun(shape).await?;
        Ok(plane)
    }

    /// Starts another coordinator, which stands by.
    pub(super) fn coordinator(&mut self) -> anyhow::Result<()> {
        self.started += 1;
        let log = self.server.folder().join("coordinators.log");
        let mut command = tied(&self.millrace, &self.millrace, &log)?;
        command.args(["coordinator", "--id", &format!("coordinator-{}", self.started)]);
        command.args(["--nats", self.server.url(), "--objects"]).arg(&self.objects);
        self.coordinators.push(command.spawn().context("failed to start a coordinator")?);
        Ok(())
    }

    /// Waits until every rollout had its first task.
    async fn begun(&self, shape: Shape) -> anyhow::Result<()> {
        let since = Instant::now();
        loop {
            let done = self.player.done();
            let lives = self.player.lives();
            if done.len() >= shape.runs as usize && lives > u64::from(shape.in_flight) {
                return Ok(());
            }
            ensure!(
                since.elapsed() < PATIENCE,
                "after {PATIENCE:?} runs={} of {} have begun, with tasks={lives}",
                done.len(),
                shape.runs,
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Of the server and of the coordinator that leads.
    pub(super) fn usage(&self) -> anyhow::Result<Usage> {
        let coordinator = self.coordinators[0].id().context("the coordinator has ended")?;
        let server = self.server.pid();
        Ok(Usage {
            server: cpu::used(server)?,
            coordinator: cpu::used(coordinator)?,
            server_mb: resident_mb(server)?,
            coordinator_mb: resident_mb(coordinator)?,
        })
    }

    /// Where the server's streams and the object store are.
    pub(super) fn folders(&self) -> [PathBuf; 2] {
        [self.server.streams(), self.objects.clone()]
    }

    /// Ends the coordinator that leads by `signal`; the next one has stood by.
    pub(super) async fn end_leader(&mut self, signal: Signal) -> anyhow::Result<()> {
        ensure!(self.coordinators.len() > 1, "no other coordinator stands by");
        let mut leader = self.coordinators.remove(0);
        let pid = leader.id().and_then(|pid| i32::try_from(pid).ok()).context("the coordinator has ended")?;
        kill(Pid::from_raw(pid), signal)?;
        leader.wait().await?;
        Ok(())
    }

    /// Cancels the runs and ends worker and coordinators, but not the server, whose log can be read still.
    pub(super) async fn end(&mut self) -> anyhow::Result<()> {
        self.player.pace(None);
        for run in &self.runs {
            self.broker.append(run, &Event::Cancelled { reason: "measured".into() }).await?;
        }
        self.stop.cancel();
        (&mut self.worker).await??;
        self.pace.abort();
        for mut coordinator in self.coordinators.drain(..) {
            coordinator.kill().await?;
        }
        Ok(())
    }
}
