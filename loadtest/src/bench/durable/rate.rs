//! Durable rollouts a second: outcomes are appended by the broker as a worker does it, to a real
//! server with its files on disk; what is above the bound of a message goes to an object store in a
//! folder, which is synced always.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_queue::testing::TestServer;
use millrace_queue::{Broker, JetStreamOptions, Objects};
use millrace_schemas::generate::GenerateDone;
use millrace_schemas::{Event, Outcome, OutcomeBody, PolicyVersion, RolloutId, TaskKey};
use serde::Serialize;
use tokio::task::JoinSet;

use super::{Args, disk, memory};
use crate::bench::{cpu, median, origin};

const RUN: &str = "durable";
/// Rollouts that are on their way at once, at most.
const MOST_IN_FLIGHT: u32 = 1_024;
/// The same where each is synced: the server answers for all that it has read when all of them are
/// on the disk.
const MOST_SYNCED_IN_FLIGHT: u32 = 64;
/// Times that a rollout is encoded to find out how long it takes.
const ENCODED: usize = 101;
/// Time for the first acknowledgement.
const FIRST: Duration = Duration::from_secs(30);

/// The goals: small rollouts a second, and bytes a second of large ones.
const GOAL_SMALL_PER_S: f64 = 10_000.0;
const GOAL_BYTES_PER_S: f64 = 1e9;
/// Rollouts up to this are small.
const SMALL_BYTES: usize = 1_024;

pub(super) const HEAD: &str = "| bytes of a rollout | by | durable: file, synced every 2 min; blobs synced | the same, synced \
     always | a queue in memory | bare disk | bare disk, synced each | of the bare disk | processor µs: server, ours | of ours, encoding | goal |\n\
     |---|---|---|---|---|---|---|---|---|---|---|\n";

/// Rollouts a second of one size, each a median.
#[derive(Debug, Serialize)]
pub(super) struct Rates {
    /// As it is in the log or in the object store.
    bytes: usize,
    /// Whether it goes through the object store.
    is_blob: bool,
    durable_per_s: f64,
    synced_per_s: f64,
    memory_per_s: f64,
    disk_per_s: f64,
    disk_synced_per_s: f64,
    /// Processor time of a rollout in nats-server, and in the producer with the client library.
    server_us: f64,
    producer_us: f64,
    /// Time to encode one on an otherwise idle thread: MessagePack, a number at a time. Part of the
    /// producer's.
    encode_us: f64,
}

/// A rate with its processor time.
#[derive(Debug, Clone, Copy, Default)]
struct Appended {
    per_s: f64,
    server_us: f64,
    producer_us: f64,
}

/// Measures every size in every round.
///
/// # Errors
/// There is no nats-server, or it fails.
pub(super) async fn measure(args: &Args) -> anyhow::Result<Vec<Rates>> {
    let time = Duration::from_secs_f64(args.seconds);
    let mut samples = vec![Vec::new(); args.kilobytes.len()];
    for round in 1..=args.rounds {
        for (kilobytes, samples) in args.kilobytes.iter().zip(&mut samples) {
            let outcome = of_bytes(*kilobytes as usize * 1_024);
            let bytes = event(&outcome, 0).to_bytes().len();
            let [durable, synced] =
                [append(args, &outcome, false, time).await?, append(args, &outcome, true, time).await?];
            let in_memory = memory::rollouts_per_s(bytes, time).await?;
            let folder = tempfile::tempdir()?;
            let bare = move |sync| disk::records_per_s(folder.path(), bytes, sync, time);
            let [plain, each] =
                tokio::task::spawn_blocking(move || Ok::<_, anyhow::Error>([bare(false)?, bare(true)?]))
                    .await??;
            println!(
                "round {round}, load {:.1}, {bytes} bytes: durable {:.0}/s, synced {:.0}/s, in memory {in_memory:.0}/s, disk \
                 {plain:.0}/s, disk synced {each:.0}/s",
                origin::load(),
                durable.per_s,
                synced.per_s
            );
            samples.push((bytes, [durable.per_s, synced.per_s, in_memory, plain, each], durable));
        }
    }
    let measured = args.kilobytes.iter().zip(&samples).filter(|(_, samples)| !samples.is_empty());
    let encoded = |kilobytes: &u32| encode_us(&of_bytes(*kilobytes as usize * 1_024));
    Ok(measured.map(|(kilobytes, samples)| rates(samples, encoded(kilobytes))).collect())
}

fn rates(samples: &[(usize, [f64; 5], Appended)], encode_us: f64) -> Rates {
    let bytes = samples[0].0;
    let of = |what: usize| median(samples.iter().map(|(_, per_s, _)| per_s[what]).collect());
    let used =
        |what: fn(&Appended) -> f64| median(samples.iter().map(|(.., appended)| what(appended)).collect());
    Rates {
        bytes,
        is_blob: bytes > millrace_schemas::limits::MAX_INLINE_BYTES,
        durable_per_s: of(0),
        synced_per_s: of(1),
        memory_per_s: of(2),
        disk_per_s: of(3),
        disk_synced_per_s: of(4),
        server_us: used(|appended| appended.server_us),
        producer_us: used(|appended| appended.producer_us),
        encode_us,
    }
}

/// Median time to encode a rollout.
fn encode_us(outcome: &OutcomeBody) -> f64 {
    let event = event(outcome, 0);
    let encoded = (0..ENCODED).map(|_| {
        let since = Instant::now();
        std::hint::black_box(event.to_bytes());
        since.elapsed().as_secs_f64() * 1e6
    });
    median(encoded.collect())
}

/// A turn whose outcome has about so many bytes.
fn of_bytes(bytes: usize) -> OutcomeBody {
    let turn = |tokens: usize| {
        let ids: Vec<u32> = (0..tokens as u32).map(|n| n.wrapping_mul(2_654_435_761) % 150_000).collect();
        let logprobs: Vec<f32> = ids.iter().map(|id| -(*id as f32) / 1e5).collect();
        OutcomeBody::Generate(GenerateDone::sampled(&ids, &logprobs, PolicyVersion(1)))
    };
    let [few, many] = [64, 1_064].map(|tokens| event(&turn(tokens), 0).to_bytes().len());
    let each = (many - few) as f64 / 1_000.0;
    turn((64.0 + (bytes as f64 - few as f64) / each).max(1.0) as usize)
}

fn event(body: &OutcomeBody, number: u64) -> Event {
    let rollout = RolloutId { group: number, index: 0, attempt: 0 };
    let worker = "producer".parse().expect("a name");
    let key = TaskKey::Generate { rollout, turn: 1 };
    Event::Outcome(Outcome { key, worker, busy_us: 1, request_fingerprint: None, body: body.clone() })
}

/// Appends for `time`, as many at once as `args` says. A rollout counts when the server has
/// acknowledged it.
async fn append(args: &Args, body: &OutcomeBody, sync: bool, time: Duration) -> anyhow::Result<Appended> {
    let server = TestServer::start_as(|options| options.sync_always = sync).await;
    let objects = Objects::open(&server.folder().join("objects").to_string_lossy())?;
    let bytes = event(body, 0).to_bytes().len() as u32;
    let most = if sync { MOST_SYNCED_IN_FLIGHT } else { MOST_IN_FLIGHT };
    let in_flight = (args.in_flight_mb * 1_000_000 / bytes).min(most).max(args.producers);
    let (next, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (body, mut producers) = (Arc::new(body.clone()), JoinSet::new());
    for _ in 0..args.producers {
        let broker = Broker::new(server.connect(JetStreamOptions::default()).await, objects.clone());
        for _ in 0..in_flight / args.producers {
            producers.spawn(produce(broker.clone(), body.clone(), next.clone(), done.clone()));
        }
    }
    until_one(&done, 0).await;
    tokio::time::sleep(time / 5).await;
    let used = || anyhow::Ok([cpu::used(server.pid())?, cpu::used(std::process::id())?]);
    let (from, before, since) = (done.load(Ordering::Relaxed), used()?, Instant::now());
    tokio::time::sleep(time).await;
    // On a slow disk one may take longer than that: then the measurement is as long as the first.
    until_one(&done, from).await;
    let (count, after) = ((done.load(Ordering::Relaxed) - from) as f64, used()?);
    let took = since.elapsed().as_secs_f64();
    if let Some(ended) = producers.try_join_next() {
        ended.context("a producer panicked")?.context("a producer failed")?;
    }
    producers.shutdown().await;
    ensure!(count > 0.0, "no rollout was acknowledged in {took:.1} s");
    let [server_us, producer_us] = [0, 1].map(|of| (after[of] - before[of]).as_secs_f64() * 1e6 / count);
    Ok(Appended { per_s: count / took, server_us, producer_us })
}

/// Waits until more than `before` are acknowledged; no longer than [`FIRST`].
async fn until_one(done: &AtomicU64, before: u64) {
    let since = Instant::now();
    while done.load(Ordering::Relaxed) <= before && since.elapsed() < FIRST {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Consumes numbers. Produces outcomes in the log. Waits for the server's acknowledgement. Never
/// ends by itself. On failure: ends with the error, which the measurement returns.
async fn produce(
    broker: Broker,
    body: Arc<OutcomeBody>,
    next: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    loop {
        let event = event(&body, next.fetch_add(1, Ordering::Relaxed));
        broker.append(RUN, &event).await?;
        done.fetch_add(1, Ordering::Relaxed);
    }
}

impl Rates {
    pub(super) fn line(&self) -> String {
        let Self {
            bytes,
            is_blob,
            durable_per_s,
            memory_per_s,
            disk_per_s,
            server_us,
            producer_us,
            encode_us,
            ..
        } = *self;
        let both = |per_s: f64| format!("{per_s:.0}/s, {:.0} MB/s", per_s * bytes as f64 / 1e6);
        let reached = match bytes <= SMALL_BYTES * 2 {
            true => durable_per_s >= GOAL_SMALL_PER_S,
            false => durable_per_s * bytes as f64 >= GOAL_BYTES_PER_S,
        };
        format!(
            "| {bytes} | {} | {} | {} | {} | {} | {} | {:.0} % | {server_us:.0}, {producer_us:.0} | {encode_us:.0} | {} |\n",
            if is_blob { "blob" } else { "message" },
            both(durable_per_s),
            both(self.synced_per_s),
            both(memory_per_s),
            both(disk_per_s),
            both(self.disk_synced_per_s),
            100.0 * durable_per_s / disk_per_s,
            if reached { "reached" } else { "**missed**" },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_has_about_the_bytes_that_were_asked_for() {
        for kilobytes in [1, 64, 512] {
            let bytes = event(&of_bytes(kilobytes * 1_024), 7).to_bytes().len();
            let off = (bytes as f64 / (kilobytes as f64 * 1_024.0) - 1.0).abs();
            assert!(off < 0.05, "{bytes} bytes for {kilobytes} KiB");
        }
    }
}
