//! From the publication of a version until each of many workers of one machine has it, proved: each for itself,
//! through the machine's folder, and as changes through that folder. Beside what the server, the loopback device and
//! the disk allow.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use bytes::Bytes;
use millrace_policy::MODEL_FILE;
use millrace_queue::Objects;
use millrace_queue::testing::S3Server;
use millrace_schemas::RunId;
use millrace_schemas::train_shard::FileRef;
use millrace_workers::model::versions::VersionStore;
use serde::Serialize;

use super::super::median;
use super::Args;
use super::deltas::Pair;

/// Of the folder, more than all versions take.
const FOLDER_BYTES: u64 = 64 << 30;

/// How workers get a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    Alone,
    Folder,
    Delta,
}

/// One number of workers, one way.
#[derive(Debug, Serialize)]
pub(super) struct FanOut {
    workers: usize,
    way: Way,
    /// Until the trainer has stored the version.
    publish_seconds: f64,
    /// From then until the last worker has it.
    ready_seconds: f64,
    /// What the bytes take over the loopback device in one connection: those of all workers for themselves, of one else.
    loopback_seconds: f64,
    /// What as many readers take to read the version from a folder, one after another.
    disk_seconds: f64,
}

/// What bounds the figures, in seconds.
pub(super) struct Limits {
    loopback: f64,
    /// By number of workers.
    disk: Vec<f64>,
}

impl Limits {
    /// Of the version that is fetched.
    pub(super) fn measure(args: &Args, pair: &Pair) -> anyhow::Result<Self> {
        let disk = args.workers.iter().map(|workers| disk(&pair.next, *workers));
        Ok(Self { loopback: loopback(pair.next.len())?, disk: disk.collect::<anyhow::Result<_>>()? })
    }
}

/// All numbers of workers, all ways in turn.
pub(super) async fn measure(args: &Args, pair: Pair, limits: &Limits) -> anyhow::Result<Vec<FanOut>> {
    let server = S3Server::start().await;
    let mut all = Vec::new();
    for (&workers, &disk) in args.workers.iter().zip(&limits.disk) {
        let mut rounds: [Vec<(f64, f64)>; 3] = Default::default();
        for round in 0..args.rounds {
            for (way, times) in [Way::Alone, Way::Folder, Way::Delta].into_iter().zip(&mut rounds) {
                let objects = server.objects(&format!("w{workers}-{round}-{way:?}").to_lowercase());
                times.push(fan_out(&objects, &pair, workers, way).await?);
            }
        }
        for (way, times) in [Way::Alone, Way::Folder, Way::Delta].into_iter().zip(rounds) {
            let (publish, ready): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
            let over = if way == Way::Alone { workers as f64 } else { 1.0 };
            all.push(FanOut {
                workers,
                way,
                publish_seconds: median(publish),
                ready_seconds: median(ready),
                loopback_seconds: limits.loopback * over,
                disk_seconds: disk,
            });
            println!("{workers} workers, {way:?}");
        }
    }
    Ok(all)
}

/// Seconds to publish, and then until all are ready.
async fn fan_out(objects: &Objects, pair: &Pair, workers: usize, way: Way) -> anyhow::Result<(f64, f64)> {
    let run: RunId = "bench".parse()?;
    let folder = tempfile::tempdir()?;
    let shared = |at: &Path| VersionStore::new(objects.clone()).sharing_in(at.to_owned(), FOLDER_BYTES);
    let trainer = VersionStore::new(objects.clone());
    let base = trainer.files().store(&run, MODEL_FILE, pair.anchor.clone(), None).await?;
    let workers: Vec<VersionStore> = (0..workers)
        .map(|_| match way {
            Way::Alone => Ok(VersionStore::new(objects.clone())),
            Way::Folder | Way::Delta => shared(folder.path()),
        })
        .collect::<std::io::Result<_>>()?;
    if way == Way::Delta {
        // They serve the anchor already.
        workers[0].files().fetch(&run, &base).await?;
    }
    let began = Instant::now();
    let base = (way == Way::Delta).then_some(&base);
    let file = trainer.files().store(&run, MODEL_FILE, pair.next.clone(), base).await?;
    anyhow::ensure!(way != Way::Delta || file.delta.is_some(), "one step is stored as changes");
    let publish = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let fetched = workers.into_iter().map(|worker| tokio::spawn(fetch(worker, run.clone(), file.clone())));
    for length in futures::future::join_all(fetched).await {
        anyhow::ensure!(length?? == pair.next.len(), "a worker got other weights");
    }
    Ok((publish, began.elapsed().as_secs_f64()))
}

async fn fetch(worker: VersionStore, run: RunId, file: FileRef) -> anyhow::Result<usize> {
    Ok(worker.files().fetch(&run, &file).await?.len())
}

/// Seconds of so many bytes through one connection.
fn loopback(bytes: usize) -> anyhow::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let sender = std::thread::spawn(move || -> std::io::Result<()> {
        TcpStream::connect(address)?.write_all(&vec![7; bytes])
    });
    let (mut from, _) = listener.accept()?;
    let began = Instant::now();
    let mut content = Vec::with_capacity(bytes);
    from.read_to_end(&mut content)?;
    let seconds = began.elapsed().as_secs_f64();
    sender.join().ok().context("the sender of the loopback test panicked")??;
    Ok(seconds)
}

fn disk(content: &Bytes, readers: usize) -> anyhow::Result<f64> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), content)?;
    let began = Instant::now();
    for _ in 0..readers {
        anyhow::ensure!(std::fs::read(file.path())?.len() == content.len(), "the file is whole");
    }
    Ok(began.elapsed().as_secs_f64())
}

/// A row for each number and way.
pub(super) fn table(all: &[FanOut]) -> String {
    let mut text = String::from(
        "| workers of one machine | each version | publish | then all ready | loopback alone | disk alone |\n\
         |---|---|---|---|---|---|\n",
    );
    for row in all {
        let way = match row.way {
            Way::Alone => "whole, each for itself",
            Way::Folder => "whole, `--cache`",
            Way::Delta => "changes, `--cache`",
        };
        let _ = writeln!(
            text,
            "| {} | {way} | {:.2} s | {:.2} s | {:.2} s | {:.2} s |",
            row.workers, row.publish_seconds, row.ready_seconds, row.loopback_seconds, row.disk_seconds
        );
    }
    text
}
