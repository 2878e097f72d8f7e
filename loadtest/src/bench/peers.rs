//! Other systems that run tasks, beside this one: the same machine, in one run, in turn.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use tokio::signal::unix::{SignalKind, signal};

use super::{origin, publish};
use figures::{Figures, Row};
use process::Peer;

mod process;
mod ours;
mod figures;

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How often all of it is repeated, in turn; medians are printed
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Tasks in flight
    #[arg(long, default_value_t = 1024)]
    in_flight: u32,
    /// Only these, by name. Default: all
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The program that installs a peer by its name, from the repository's root
    #[arg(long, default_value = "infra/dev/peers.sh")]
    setup: PathBuf,
    /// Where it puts their virtual environments
    #[arg(long, default_value = "target/peers")]
    venvs: PathBuf,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/peers.json")]
    out: PathBuf,
}

/// How much longer a server is measured that syncs every write.
const SYNCED: f64 = 3.0;

/// A system as it is set up here.
struct Entry {
    name: &'static str,
    title: &'static str,
    /// What survives what.
    durable: &'static str,
    what: What,
}

enum What {
    /// A script in a virtual environment: its package, the script, its argument.
    Python(&'static str, &'static str, &'static str),
    /// Plain JetStream; whether the server syncs every write.
    JetStream(bool),
    /// Millrace; whether the server syncs every write.
    Millrace(bool),
}

const ENTRIES: [Entry; 9] = [
    Entry {
        name: "ray-tasks",
        title: "Ray, tasks",
        durable: "nothing survives its processes",
        what: What::Python("ray", "ray_peer.py", "tasks"),
    },
    Entry {
        name: "ray-actors",
        title: "Ray, actors",
        durable: "nothing survives its processes",
        what: What::Python("ray", "ray_peer.py", "actors"),
    },
    Entry {
        name: "celery",
        title: "Celery, Redis",
        durable: "nothing survives Redis; a killed worker's tasks are lost",
        what: What::Python("celery", "celery_peer.py", "memory"),
    },
    Entry {
        name: "celery-late",
        title: "Celery, Redis, `acks_late`, append-only file",
        durable: "file, synced every second; a killed worker's tasks come back",
        what: What::Python("celery", "celery_peer.py", "late"),
    },
    Entry {
        name: "transferqueue",
        title: "TransferQueue: rows put, got, cleared; no task is run",
        durable: "nothing survives its processes",
        what: What::Python("transferqueue", "transferqueue_peer.py", ""),
    },
    Entry {
        name: "jetstream",
        title: "JetStream, put, pull, ack",
        durable: "file, synced every 2 minutes",
        what: What::JetStream(false),
    },
    Entry {
        name: "jetstream-sync",
        title: "JetStream, put, pull, ack",
        durable: "file, synced before each acknowledgement",
        what: What::JetStream(true),
    },
    Entry {
        name: "millrace",
        title: "**Millrace, whole lives**",
        durable: "file, synced every 2 minutes; all tasks come back",
        what: What::Millrace(false),
    },
    Entry {
        name: "millrace-sync",
        title: "**Millrace, whole lives**",
        durable: "file, synced before each acknowledgement; all tasks come back",
        what: What::Millrace(true),
    },
];

/// One measurement of one system.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sample {
    tasks_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// Rollouts a second through three stages; `None` where there are no stages.
    chain_per_s: Option<f64>,
}

/// Measures and prints.
///
/// # Errors
/// A name is unknown, there is no nats-server, or the command is interrupted. A peer that is
/// missing or fails is a row with the reason.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    for name in &args.only {
        let known = ENTRIES.map(|entry| entry.name);
        ensure!(known.contains(&name.as_str()), "--only {name}: name some of {}", known.join(", "));
    }
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    // Whatever was started ends when its owner is dropped.
    let measured = tokio::select! {
        measured = args.measure() => Some(measured?),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
    };
    let Some(figures) = measured else { anyhow::bail!("interrupted; all that was started has ended") };
    publish(&args.out, &figures, &figures.table())
}

impl Args {
    async fn measure(&self) -> anyhow::Result<Figures> {
        let chosen = |entry: &&Entry| self.only.is_empty() || self.only.iter().any(|n| n == entry.name);
        let mut rows = Vec::new();
        for entry in ENTRIES.iter().filter(chosen) {
            let missing = self.install(entry).await.err().map(|error| format!("not installed: {error:#}"));
            rows.push(Row::new(entry.name, entry.title, entry.durable, missing));
        }
        let mut load = Vec::new();
        for round in 1..=self.rounds {
            for (entry, row) in ENTRIES.iter().filter(chosen).zip(&mut rows) {
                if row.missing.is_some() {
                    continue;
                }
                let sample = self.sample(entry).await;
                println!("round {round}, load {:.1}, {}: {sample:?}", origin::load(), entry.name);
                match (sample, &entry.what) {
                    (Ok(sample), _) => row.samples.push(sample),
                    // What it says of our own is an error of this command.
                    (Err(error), What::JetStream(_) | What::Millrace(_)) => return Err(error),
                    (Err(error), What::Python(..)) => row.missing = Some(format!("failed: {error:#}")),
                }
            }
            load.push(origin::load());
        }
        Ok(Figures::of(rows, load, self))
    }

    async fn install(&self, entry: &Entry) -> anyhow::Result<()> {
        let What::Python(package, ..) = &entry.what else { return Ok(()) };
        println!("{}: is installed, or will be, in {}", entry.name, self.venvs.join(package).display());
        process::install(&self.setup, package).await
    }

    async fn sample(&self, entry: &Entry) -> anyhow::Result<Sample> {
        // A server that syncs answers in bursts: for all that it has read when all of it is on the
        // disk.
        let is_synced = matches!(entry.what, What::JetStream(true) | What::Millrace(true));
        let time = Duration::from_secs_f64(self.seconds * if is_synced { SYNCED } else { 1.0 });
        match entry.what {
            What::Python(package, script, argument) => {
                let python = self.venvs.join(package).join("bin/python");
                let mut peer = Peer::start(&python, script, argument)?;
                peer.sample(self.in_flight, time).await
            }
            What::JetStream(sync) => ours::jetstream(sync, self.in_flight, time).await,
            What::Millrace(sync) => ours::millrace(sync, self.in_flight, time).await,
        }
    }
}
