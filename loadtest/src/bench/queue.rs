//! What the queue costs: whole lives beside their bare messages, and beside raw put, pull and ack, in turn.

use std::path::PathBuf;
use std::time::Duration;

use millrace_queue::testing::TestServer;
use millrace_queue::{Broker, JetStreamOptions, Objects};
use serde::Serialize;

use super::bare::Queues;
use super::lives::{Brokers, Lives, Load};
use super::{bare, cores, cpu, lives, median, publish, raw};

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
    /// The messages of lives, which nobody reads.
    bare_per_s: f64,
    ratio_of_bare: f64,
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
    /// The same of the bare messages, in nats-server and in the client library with the port on it.
    bare_us_per_life: [f64; 2],
}

/// Processor time that was spent in nats-server and in this process.
#[derive(Clone, Copy)]
struct Spent([Duration; 2]);

impl Spent {
    fn until_now(server: &TestServer) -> std::io::Result<Self> {
        Ok(Self([cpu::used(server.pid())?, cpu::used(std::process::id())?]))
    }

    /// Microseconds of what was spent since, a life. Warm-up and measurement alike: 1.2 times the measured lives.
    fn since_per_life(self, before: Self, lives_per_s: f64, seconds: f64) -> [f64; 2] {
        let lives = (lives_per_s * seconds * 1.2).max(1.0);
        [0, 1].map(|of| (self.0[of] - before.0[of]).as_secs_f64() * 1e6 / lives)
    }
}

/// Measures and prints.
///
/// # Errors
/// There is no nats-server, or it fails.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let time = Duration::from_secs_f64(args.seconds);
    let (server, other) = tokio::join!(TestServer::start(), TestServer::start());
    let objects = Objects::memory();
    let mut measured = Measured::default();
    for repeat in 0..args.repeats {
        let queue = server.connect(JetStreamOptions::default()).await;
        measured.raw.push(raw::run(queue, args.in_flight, 256, time).await?);
        let connect = async || other.connect(JetStreamOptions::default()).await;
        let queues = Queues { coordinator: connect().await, worker: connect().await };
        let before = Spent::until_now(&other)?;
        let per_s = bare::run(queues, &format!("bare-{repeat}"), args.in_flight, time).await?;
        let spent = Spent::until_now(&other)?.since_per_life(before, per_s, args.seconds);
        measured.bare.push((per_s, spent));
        let broker = async || Broker::new(server.connect(JetStreamOptions::default()).await, objects.clone());
        let brokers = Brokers { coordinator: broker().await, worker: broker().await };
        let before = Spent::until_now(&server)?;
        let name = format!("loaded-{repeat}");
        let lives = lives::run(&brokers, &name, Load::of(args.in_flight.max(8), TURNS), time).await?;
        let spent = Spent::until_now(&server)?.since_per_life(before, lives.per_s, args.seconds);
        measured.loaded.push((lives, spent));
        measured.lone.push(lives::run(&brokers, &format!("lone-{repeat}"), Load::of(2, TURNS), time).await?);
        let (raw, lives) = (measured.raw[measured.raw.len() - 1], lives.per_s);
        println!("run {}: raw {raw:.0}/s, bare messages {per_s:.0}/s, lives {lives:.0}/s", repeat + 1);
    }
    let figures = measured.figures(args);
    publish(&args.out, &figures, &table(&figures))
}

/// Of each repetition: rates, and processor microseconds a life in nats-server and in this process.
#[derive(Default)]
struct Measured {
    raw: Vec<f64>,
    bare: Vec<(f64, [f64; 2])>,
    loaded: Vec<(Lives, [f64; 2])>,
    lone: Vec<Lives>,
}

impl Measured {
    fn figures(&self, args: &Args) -> Figures {
        let lone = |what: fn(&Lives) -> f64| median(self.lone.iter().map(what).collect());
        let loaded = |what: fn(&Lives) -> f64| median(self.loaded.iter().map(|(l, _)| what(l)).collect());
        let spent = |of: usize| median(self.loaded.iter().map(|(_, spent)| spent[of]).collect());
        let bare = |of: usize| median(self.bare.iter().map(|(_, spent)| spent[of]).collect());
        let (lives_per_s, raw_per_s) = (loaded(|l| l.per_s), median(self.raw.clone()));
        let bare_per_s = median(self.bare.iter().map(|(per_s, _)| *per_s).collect());
        Figures {
            lives_per_s,
            raw_per_s,
            ratio: lives_per_s / raw_per_s,
            bare_per_s,
            ratio_of_bare: lives_per_s / bare_per_s,
            p50_us: lone(|l| l.p50_us),
            p99_us: lone(|l| l.p99_us),
            in_flight: args.in_flight,
            loaded_p50_us: loaded(|l| l.p50_us),
            loaded_p99_us: loaded(|l| l.p99_us),
            repeats: args.repeats,
            seconds: args.seconds,
            cores: cores(),
            server_us_per_life: spent(0),
            client_us_per_life: spent(1),
            bare_us_per_life: [bare(0), bare(1)],
        }
    }
}

fn table(f: &Figures) -> String {
    format!(
        "Medians of {} runs of {} s, nats-server on the same cores.\n\n\
         | | |\n|---|---|\n\
         | whole life of a task, {in_flight} in flight | {:.0} /s |\n\
         | raw put + pull + ack, 256 bytes, {in_flight} in flight | {:.0} /s |\n\
         | share of raw | {:.0} % |\n\
         | the messages of a life alone, which nobody reads, {in_flight} in flight | {:.0} /s |\n\
         | share of them | {:.0} % |\n\
         | end of a task to the start of its rollout's next, two rollouts in flight | {:.2} ms median, {:.2} ms 99th percentile |\n\
         | the same, {in_flight} in flight | {:.2} ms median, {:.2} ms 99th percentile |\n\
         | processor time a life | {:.0} µs in nats-server, {:.0} µs in coordinator, worker and client library |\n\
         | the same of the messages alone | {:.0} µs in nats-server, {:.0} µs in the client library |\n",
        f.repeats,
        f.seconds,
        f.lives_per_s,
        f.raw_per_s,
        100.0 * f.ratio,
        f.bare_per_s,
        100.0 * f.ratio_of_bare,
        f.p50_us / 1e3,
        f.p99_us / 1e3,
        f.loaded_p50_us / 1e3,
        f.loaded_p99_us / 1e3,
        f.server_us_per_life,
        f.client_us_per_life,
        f.bare_us_per_life[0],
        f.bare_us_per_life[1],
        in_flight = f.in_flight,
    )
}
