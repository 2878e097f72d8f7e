//! What the queue costs: whole lives beside raw put, pull and ack, in turn on the same server.

use std::path::PathBuf;
use std::time::Duration;

use millrace_queue::testing::TestServer;
use millrace_queue::{Broker, JetStreamOptions, Objects};
use serde::Serialize;

use super::lives::{Brokers, Lives, Load};
use super::{cores, cpu, lives, median, publish, raw};

/// Turns of a rollout.
const TURNS: u8 = 16;

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How often each is repeated; medians are printed
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// Tasks in flight
    #[arg(long, default_value_t = 1024)]
    in_flight: u32,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/queue.json")]
    out: PathBuf,
}

/// The figures.
#[derive(Debug, Serialize)]
struct Figures {
    lives_per_s: f64,
    raw_per_s: f64,
    ratio: f64,
    /// Of two tasks in flight: from the end of a task to the start of its rollout's next.
    p50_us: f64,
    p99_us: f64,
    in_flight: u32,
    /// With that many in flight.
    loaded_p50_us: f64,
    loaded_p99_us: f64,
    repeats: u32,
    seconds: f64,
    cores: usize,
    /// Processor microseconds a life, in nats-server.
    server_us_per_life: f64,
    /// Processor microseconds a life, in coordinator, worker and client library.
    client_us_per_life: f64,
}

/// Measures and prints.
///
/// # Errors
/// There is no nats-server, or it fails.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let time = Duration::from_secs_f64(args.seconds);
    let server = TestServer::start().await;
    let objects = Objects::memory();
    let (mut raws, mut loaded, mut lone) = (Vec::new(), Vec::new(), Vec::new());
    let mut spent = (Duration::ZERO, Duration::ZERO);
    for repeat in 0..args.repeats {
        let queue = server.connect(JetStreamOptions::default()).await;
        raws.push(raw::run(queue, args.in_flight, 256, time).await?);
        let broker = async || Broker::new(server.connect(JetStreamOptions::default()).await, objects.clone());
        let brokers = Brokers { coordinator: broker().await, worker: broker().await };
        let before = (cpu::used(server.pid())?, cpu::used(std::process::id())?);
        let name = format!("loaded-{repeat}");
        loaded.push(lives::run(&brokers, &name, Load::of(args.in_flight.max(8), TURNS), time).await?);
        let after = (cpu::used(server.pid())?, cpu::used(std::process::id())?);
        spent = (spent.0 + after.0 - before.0, spent.1 + after.1 - before.1);
        lone.push(lives::run(&brokers, &format!("lone-{repeat}"), Load::of(2, TURNS), time).await?);
        let (raw, lives) = (raws[raws.len() - 1], loaded[loaded.len() - 1]);
        println!("run {}: raw {raw:.0}/s, lives {:.0}/s", repeat + 1, lives.per_s);
    }
    let figures = figures(args, raws, &loaded, &lone, spent);
    publish(&args.out, &figures, &table(&figures))
}

fn figures(
    args: &Args,
    raws: Vec<f64>,
    loaded: &[Lives],
    lone: &[Lives],
    spent: (Duration, Duration),
) -> Figures {
    let of = |lives: &[Lives], what: fn(&Lives) -> f64| median(lives.iter().map(what).collect());
    let (lives_per_s, raw_per_s) = (of(loaded, |l| l.per_s), median(raws));
    // Warm-up and measurement alike: 1.2 times the measured lives.
    let lives = loaded.iter().map(|l| l.per_s * args.seconds * 1.2).sum::<f64>().max(1.0);
    Figures {
        lives_per_s,
        raw_per_s,
        ratio: lives_per_s / raw_per_s,
        p50_us: of(lone, |l| l.p50_us),
        p99_us: of(lone, |l| l.p99_us),
        in_flight: args.in_flight,
        loaded_p50_us: of(loaded, |l| l.p50_us),
        loaded_p99_us: of(loaded, |l| l.p99_us),
        repeats: args.repeats,
        seconds: args.seconds,
        cores: cores(),
        server_us_per_life: spent.0.as_secs_f64() * 1e6 / lives,
        client_us_per_life: spent.1.as_secs_f64() * 1e6 / lives,
    }
}

fn table(f: &Figures) -> String {
    format!(
        "Medians of {} runs of {} s, nats-server on the same cores.\n\n\
         | | |\n|---|---|\n\
         | whole life of a task, {in_flight} in flight | {:.0} /s |\n\
         | raw put + pull + ack, 256 bytes, {in_flight} in flight | {:.0} /s |\n\
         | share of raw | {:.0} % |\n\
         | end of a task to the start of its rollout's next, two rollouts in flight | {:.2} ms median, {:.2} ms 99th percentile |\n\
         | the same, {in_flight} in flight | {:.2} ms median, {:.2} ms 99th percentile |\n\
         | processor time a life | {:.0} µs in nats-server, {:.0} µs in coordinator, worker and client library |\n",
        f.repeats,
        f.seconds,
        f.lives_per_s,
        f.raw_per_s,
        100.0 * f.ratio,
        f.p50_us / 1e3,
        f.p99_us / 1e3,
        f.loaded_p50_us / 1e3,
        f.loaded_p99_us / 1e3,
        f.server_us_per_life,
        f.client_us_per_life,
        in_flight = f.in_flight,
    )
}
