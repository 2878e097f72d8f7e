//! What one coordinator and one nats-server bear, each in a process of its own: lives of tasks a second and how late they
//! are, with many rollouts in flight, of many runs, with long contexts; a take-over; a replay.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_coordinator::fold::State;
use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::limits::MAX_ACK_PENDING;
use nix::sys::signal::Signal;
use serde::Serialize;

use super::{median, origin, publish};
use plane::{Plane, Shape};
use soak::Soak;

mod plane;
mod schedule;
mod soak;

/// Turns of a rollout.
const TURNS: u8 = 16;
/// Where the rate is not in question.
const SMALL: Shape = Shape { in_flight: 1_024, runs: 1, turns: TURNS, tokens: 1_024 };
/// Entries of the log that are read at once.
const ENTRIES: usize = 1_024;
/// Shares of what the closed loop reached, at which the open loop is played.
const SHARES: [f64; 2] = [0.5, 0.8];
/// Lives after which another coordinator leads for certain.
const AFTER: u64 = 20_000;
/// What is done of the schedule, at least, where the system keeps up.
const KEPT_UP: f64 = 0.97;

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How often each is repeated; medians are printed
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// Rows as rollouts in flight, runs and tokens of a rollout: 10000x8x1024
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1024x1x1024,10000x1x1024,100000x1x1024,10000x8x1024,10000x64x1024,1024x1x32768,10000x1x32768"
    )]
    rows: Vec<String>,
    /// How often the leader is ended by SIGTERM, and as often by kill -9; 0: not at all
    #[arg(long, default_value_t = 3)]
    takeovers: u32,
    /// Events of the log that is folded again from its start; 0: none
    #[arg(long, default_value_t = 1_000_000)]
    events: u64,
    /// Minutes at half load, at the end; 0: none
    #[arg(long, default_value_t = 0.0)]
    soak: f64,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/limits.json")]
    out: PathBuf,
}

/// The figures.
#[derive(Debug, Serialize)]
struct Figures {
    seconds: f64,
    repeats: u32,
    /// Load average before and after.
    load: [f64; 2],
    rows: Vec<Row>,
    takeovers: Vec<TakeOver>,
    replay: Option<Replay>,
    soak: Option<Soak>,
}

/// One number of rollouts in flight, runs and tokens.
#[derive(Debug, Serialize)]
struct Row {
    in_flight: u32,
    runs: u32,
    tokens: u32,
    /// Each repetition.
    lives_per_s: Vec<f64>,
    /// Lives of the run that had the fewest, over those of the run that had the most.
    fairness: f64,
    coordinator_us_per_life: f64,
    server_us_per_life: f64,
    coordinator_mb: f64,
    server_mb: f64,
    open: Vec<Open>,
}

/// Outcomes leave at a rate that does not depend on the system.
#[derive(Debug, Serialize)]
struct Open {
    share: f64,
    per_s: f64,
    /// What was done of it.
    kept_up: f64,
    p50_us: u32,
    p99_us: u32,
    p999_us: u32,
}

#[derive(Debug, Serialize)]
struct TakeOver {
    signal: &'static str,
    /// Seconds in which no task began, each time.
    gap_s: Vec<f64>,
}

/// The log folded from its start.
#[derive(Debug, Serialize)]
struct Replay {
    events: u64,
    /// Read from the server and folded.
    s: f64,
    /// Of it, in the fold.
    fold_s: f64,
    snapshot_mb: f64,
    /// The state encoded, as for a snapshot.
    encode_s: f64,
    /// The state decoded from it.
    decode_s: f64,
}

/// Measures and prints.
///
/// # Errors
/// A row is none, a program is missing, or a process fails.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let shapes = args.rows.iter().map(|row| shape(row)).collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(args.seconds > 0.0 && args.repeats > 0, "--seconds and --repeats: give more than 0");
    let (before, mut rows, mut takeovers, mut replay) = (origin::load(), Vec::new(), Vec::new(), None);
    for shape in shapes {
        let mut plane = Plane::start(shape).await?;
        let row = row(&plane, shape, args).await?;
        println!(
            "{} in flight, {} runs, {} tokens: {:.0} lives/s",
            row.in_flight,
            row.runs,
            row.tokens,
            row.rate()
        );
        rows.push(row);
        plane.end().await?;
    }
    if args.takeovers > 0 || args.events > 0 {
        // So few that what was put before hides little of the time without a leader.
        let mut plane = Plane::start(SMALL).await?;
        let signals = [("SIGTERM", Signal::SIGTERM), ("kill -9", Signal::SIGKILL)];
        for (name, signal) in signals.into_iter().filter(|_| args.takeovers > 0) {
            takeovers.push(take_over(&mut plane, name, signal, args).await?);
        }
        replay = replayed(&mut plane, args.events).await?;
    }
    let soak = if args.soak > 0.0 { Some(soak::soak(args.soak, args.seconds).await?) } else { None };
    let load = [before, origin::load()];
    let figures =
        Figures { seconds: args.seconds, repeats: args.repeats, load, rows, takeovers, replay, soak };
    publish(&args.out, &figures, &table(&figures))
}

fn shape(text: &str) -> anyhow::Result<Shape> {
    let numbers: Result<Vec<u32>, _> = text.split('x').map(str::parse).collect();
    let Some(&[in_flight, runs, tokens]) = numbers.as_deref().ok() else {
        anyhow::bail!("--rows {text}: write rollouts in flight, runs and tokens, as in 10000x8x1024");
    };
    ensure!(runs > 0 && in_flight >= 2 * runs, "--rows {text}: every run needs two rollouts in flight");
    ensure!(tokens > 0, "--rows {text}: a rollout has tokens");
    Ok(Shape { in_flight, runs, turns: TURNS, tokens })
}

async fn row(plane: &Plane, shape: Shape, args: &Args) -> anyhow::Result<Row> {
    let time = Duration::from_secs_f64(args.seconds);
    let (used, begun) = (plane.usage()?, plane.player.done());
    let mut lives_per_s = Vec::new();
    for _ in 0..args.repeats {
        lives_per_s.push(rate(plane, time).await);
    }
    let (now, done) = (plane.usage()?, plane.player.done());
    let lives: Vec<u64> = done.iter().map(|(run, count)| count - begun.get(run).unwrap_or(&0)).collect();
    let all = lives.iter().sum::<u64>().max(1);
    let extreme = |count: Option<&u64>| *count.unwrap_or(&0) as f64;
    let us_per_life = |spent: Duration| spent.as_secs_f64() * 1e6 / all as f64;
    let mut row = Row {
        in_flight: shape.in_flight,
        runs: shape.runs,
        tokens: shape.tokens,
        fairness: extreme(lives.iter().min()) / extreme(lives.iter().max()).max(1.0),
        lives_per_s,
        coordinator_us_per_life: us_per_life(now.coordinator - used.coordinator),
        server_us_per_life: us_per_life(now.server - used.server),
        coordinator_mb: now.coordinator_mb,
        server_mb: now.server_mb,
        open: Vec::new(),
    };
    // The server gives one consumer's workers no more than that at once, and what waits there is late by the rest's time.
    if i64::from(shape.in_flight) <= MAX_ACK_PENDING {
        for share in SHARES {
            row.open.push(open(plane, share, share * row.rate(), time).await);
        }
    }
    Ok(row)
}

impl Row {
    fn rate(&self) -> f64 {
        median(self.lives_per_s.clone())
    }
}

/// Lives a second.
async fn rate(plane: &Plane, time: Duration) -> f64 {
    let (before, since) = (plane.player.lives(), Instant::now());
    tokio::time::sleep(time).await;
    (plane.player.lives() - before) as f64 / since.elapsed().as_secs_f64()
}

async fn open(plane: &Plane, share: f64, per_s: f64, time: Duration) -> Open {
    plane.player.pace(Some(per_s));
    // What had left before comes back first.
    tokio::time::sleep(time / 2).await;
    plane.player.take_late_us();
    let done = rate(plane, time).await;
    let late = plane.player.take_late_us();
    plane.player.pace(None);
    let at = |share: f64| late.get((late.len() as f64 * share) as usize).copied().unwrap_or(0);
    Open { share, per_s, kept_up: done / per_s, p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999) }
}

/// Ends the leader again and again, each time with another that stands by.
async fn take_over(
    plane: &mut Plane,
    name: &'static str,
    signal: Signal,
    args: &Args,
) -> anyhow::Result<TakeOver> {
    let mut gap_s = Vec::new();
    for _ in 0..args.takeovers {
        plane.coordinator()?;
        // It has read the log by then, and the one before has led for longer than a lease.
        tokio::time::sleep(Duration::from_secs_f64(args.seconds.max(3.0))).await;
        plane.player.take_gap();
        let before = plane.player.lives();
        plane.end_leader(signal).await?;
        // What was put before is done without a coordinator.
        while plane.player.lives() < before + AFTER {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        gap_s.push(plane.player.take_gap().as_secs_f64());
    }
    Ok(TakeOver { signal: name, gap_s })
}

/// Plays on until the log has so many events, and folds it again.
async fn replayed(plane: &mut Plane, events: u64) -> anyhow::Result<Option<Replay>> {
    if events == 0 {
        plane.end().await?;
        return Ok(None);
    }
    while plane.broker.queue().log_range().await?.last < events {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    plane.end().await?;
    let (mut state, mut fold_s) = (State::default(), 0.0);
    let since = Instant::now();
    let mut log = plane.broker.follow_log(1).await?;
    while state.seq < events {
        let entries = log.next(ENTRIES).await?;
        let folding = Instant::now();
        for entry in entries {
            state.advance(entry.seq, &entry.run, entry.event?);
        }
        fold_s += folding.elapsed().as_secs_f64();
    }
    let s = since.elapsed().as_secs_f64();
    let since = Instant::now();
    let snapshot = encode(&state);
    let encode_s = since.elapsed().as_secs_f64();
    let since = Instant::now();
    let read: State = decode("snapshot", &snapshot)?;
    let decode_s = since.elapsed().as_secs_f64();
    ensure!(read.seq == state.seq, "the snapshot is at {} and the state at {}", read.seq, state.seq);
    let snapshot_mb = snapshot.len() as f64 / 1e6;
    Ok(Some(Replay { events: state.seq, s, fold_s, snapshot_mb, encode_s, decode_s }))
}

fn table(figures: &Figures) -> String {
    let mut page = format!(
        "Medians of {} windows of {} s, with their range. Load average {:.1} before and {:.1} after.\n\n\
         | rollouts in flight, runs, tokens of each | lives/s | fewest over most, by run | processor µs a life: coordinator, server | MB: coordinator, server | \
         late at 50 %: median, 99 %, 99.9 % ms | late at 80 % |\n|---|---|---|---|---|---|---|\n",
        figures.repeats, figures.seconds, figures.load[0], figures.load[1]
    );
    for row in &figures.rows {
        let late = |share: f64| match row.open.iter().find(|open| open.share == share) {
            None => "–".to_owned(),
            Some(open) if open.kept_up < KEPT_UP => format!("{:.0} % of it done", 100.0 * open.kept_up),
            Some(open) => {
                let [p50, p99, p999] = [open.p50_us, open.p99_us, open.p999_us].map(|us| f64::from(us) / 1e3);
                format!("{p50:.1}, {p99:.1}, {p999:.1}")
            }
        };
        let least = row.lives_per_s.iter().copied().fold(f64::INFINITY, f64::min);
        let most = row.lives_per_s.iter().copied().fold(0.0, f64::max);
        page += &format!(
            "| {}, {}, {} | {:.0} ({least:.0} to {most:.0}) | {:.2} | {:.0}, {:.0} | {:.0}, {:.0} | {} | {} |\n",
            row.in_flight,
            row.runs,
            row.tokens,
            row.rate(),
            row.fairness,
            row.coordinator_us_per_life,
            row.server_us_per_life,
            row.coordinator_mb,
            row.server_mb,
            late(SHARES[0]),
            late(SHARES[1]),
        );
    }
    if !figures.takeovers.is_empty() {
        page += "\n| take-over, 1,024 in flight | seconds in which no task began |\n|---|---|\n";
    }
    for TakeOver { signal, gap_s } in &figures.takeovers {
        let gaps: Vec<String> = gap_s.iter().map(|gap| format!("{gap:.2}")).collect();
        page += &format!("| {signal} | {} |\n", gaps.join(", "));
    }
    if let Some(replay) = &figures.replay {
        page += &format!(
            "\n{} events read and folded from the start in {:.1} s, of which {:.1} s in the fold. The state's snapshot: {:.1} MB, encoded in {:.3} s, \
             decoded in {:.3} s.\n",
            replay.events, replay.s, replay.fold_s, replay.snapshot_mb, replay.encode_s, replay.decode_s
        );
    }
    page + &figures.soak.as_ref().map(Soak::table).unwrap_or_default()
}
