//! What time division gains: one run on 128 devices, of which some generate, some train, and some do
//! both in turn. Answers are of log-normal length. The coordinator and the workers are the real ones,
//! in one process and in virtual time; what a device computes is a time that passes.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use millrace_queue::{Broker, QueueSettings};
use millrace_workers::WorkerSettings;
use serde::Serialize;
use tokio::task::JoinSet;

use super::{mean_and_deviation, publish};
use crate::virtual_run::{self, VirtualRun};
use crate::virtual_time::in_virtual_time;
use device::{Device, Kind, MOST_PIECES, Pace, SLOTS};

mod device;
mod processes;

/// The run's name.
const RUN: &str = "divided";
/// A run that does not end within this virtual time fails.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Between two looks at the run.
const LOOK: Duration = Duration::from_millis(500);
/// Groups of a batch, and rollouts of a group: as many rollouts as the devices sample at once.
const BATCH: (u32, u32) = (128, 8);

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Devices
    #[arg(long, default_value_t = 128)]
    devices: u32,
    /// Train steps of a run
    #[arg(long, default_value_t = 10)]
    steps: u64,
    /// Device-seconds of a train step. A batch takes about 2400 to sample
    #[arg(long, value_delimiter = ',', default_values_t = [600.0, 2400.0])]
    train: Vec<f64>,
    /// Only these divisions: devices that generate, that train and that do both, and α, as 96/32/0/1.0
    #[arg(long, value_delimiter = ',')]
    splits: Vec<Split>,
    /// Seeds: each draws other lengths
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    seeds: Vec<u64>,
    /// Play this run file on two processes of this machine instead, so many times
    #[arg(long, value_name = "FILE")]
    run: Option<PathBuf>,
    /// Times that each variant of such a run is played
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Folder of such runs
    #[arg(long, default_value = "target/division")]
    dir: PathBuf,
    /// Where the figures go
    #[arg(long, default_value = "target/bench/division.json")]
    out: PathBuf,
}

/// How the devices are divided.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Split {
    generate: u32,
    train: u32,
    flexible: u32,
    alpha: f64,
}

impl FromStr for Split {
    type Err = String;

    fn from_str(words: &str) -> Result<Self, String> {
        let wrong = || format!("{words:?} is not of the form generate/train/both/alpha: 96/32/0/1.0");
        let [generate, train, flexible, alpha] =
            words.split('/').collect::<Vec<_>>().try_into().map_err(|_| wrong())?;
        let count = |word: &str| word.parse::<u32>().map_err(|_| wrong());
        let (generate, train, flexible) = (count(generate)?, count(train)?, count(flexible)?);
        Ok(Self { generate, train, flexible, alpha: alpha.parse().map_err(|_| wrong())? })
    }
}

/// What one run gave.
#[derive(Debug, Clone, Serialize)]
struct Figures {
    split: Split,
    /// Device-seconds of a step.
    train_s: f64,
    seed: u64,
    steps_an_hour: f64,
    /// Share of the devices' time in which they neither sampled nor trained, 0 to 1.
    idle: f64,
    /// Of the time in which a device could sample, the share of its slots that did, 0 to 1.
    filled: f64,
    /// Rollouts dropped, of those admitted, 0 to 1.
    dropped: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// A run failed or did not end.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(file) = &args.run {
        let played = processes::played(file, args.steps, args.rounds, &args.dir)?;
        return publish(&args.out, &played, &processes::table(&played));
    }
    let mut figures = Vec::new();
    for train_s in &args.train {
        let all = splits(args.devices);
        for split in if args.splits.is_empty() { &all } else { &args.splits } {
            for seed in &args.seeds {
                let pace = Pace { seed: *seed, train_s: *train_s };
                let played = in_virtual_time(play(*split, pace, args.steps))?;
                println!("{played:?}");
                figures.push(played);
            }
        }
    }
    publish(&args.out, &figures, &table(&figures))
}

/// Static splits, and fleets in which some or all devices do both.
fn splits(devices: u32) -> Vec<Split> {
    let mut splits = Vec::new();
    for alpha in [0.0, 1.0] {
        let sixteenths = |n: u32| devices * n / 16;
        splits.extend([1, 2, 4, 6, 8, 10].map(|n| {
            let train = sixteenths(n);
            Split { generate: devices - train, train, flexible: 0, alpha }
        }));
        splits.extend([4, 8, 16].map(|n| {
            let flexible = sixteenths(n);
            Split { generate: devices - flexible, train: 0, flexible, alpha }
        }));
    }
    splits
}

async fn play(split: Split, pace: Pace, steps: u64) -> anyhow::Result<Figures> {
    let run = VirtualRun::start(QueueSettings::default()).await?;
    let kinds =
        [(Kind::Generate, split.generate), (Kind::Train, split.train), (Kind::Flexible, split.flexible)];
    let (mut workers, mut devices) = (JoinSet::new(), Vec::new());
    for (kind, count) in kinds {
        for number in 0..count {
            let device = Device::new(kind, pace);
            workers.spawn(serve(
                run.broker.clone(),
                format!("{kind:?}-{number}").to_lowercase(),
                device.clone(),
            ));
            devices.push(device);
        }
    }
    // Environments and rewards need no device.
    for number in 0..4 {
        workers.spawn(serve(run.broker.clone(), format!("play-{number}"), Device::new(Kind::Play, pace)));
    }
    let played = run.play(&run_file(split, pace.seed, steps), LONGEST, LOOK, || {}).await;
    let (id, took) = played.with_context(|| format!("{split:?}, {pace:?}"))?;
    workers.abort_all();
    let shared = run.end().await?;
    let state = shared.lock();
    let books = &state.runs.get(&id).context("the run is gone")?.books;
    let used: Vec<_> = devices.iter().map(|device| device.used()).collect();
    let whole = took.as_secs_f64() * used.len() as f64;
    let trained: f64 = used.iter().map(|used| used.trained_s).sum();
    let could = took.as_secs_f64() * f64::from(split.generate + split.flexible);
    let flexible: f64 = if split.flexible > 0 { trained } else { 0.0 };
    Ok(Figures {
        split,
        train_s: pace.train_s,
        seed: pace.seed,
        steps_an_hour: steps as f64 / took.as_secs_f64() * 3600.0,
        idle: 1.0 - used.iter().map(|used| used.busy_s).sum::<f64>() / whole,
        filled: used.iter().map(|used| used.slots_s).sum::<f64>() / f64::from(SLOTS) / (could - flexible),
        dropped: books.dropped.values().sum::<u64>() as f64 / books.admitted.max(1) as f64,
    })
}

/// A worker with this device.
async fn serve(broker: Broker, name: String, device: Arc<Device>) {
    let id = name.parse().expect("a kind and a number are a worker's name");
    let settings = WorkerSettings {
        report: Duration::from_secs(600),
        time_division: device.division.clone(),
        ..WorkerSettings::new(id)
    };
    let stages = device.kind.stages().iter().copied();
    virtual_run::serve(broker, settings, stages, |stage, policies| device.executor(stage, policies)).await;
}

fn run_file(split: Split, seed: u64, steps: u64) -> String {
    let Split { train, flexible, alpha, .. } = split;
    let (groups, size) = BATCH;
    format!(
        r#"
        name = "{RUN}"
        seed = {seed}
        steps = {steps}
        model = {{ kind = "scripted" }}
        environment = {{ name = "counter", turns = 1 }}
        rewards = [{{ rule = "success" }}]
        evaluate = {{ prompts = 0 }}
        gang = {{ ranks = {}, patience_ms = 5000 }}
        rollout = {{ groups_per_step = {groups}, group_size = {size}, alpha = {alpha:?}, max_new_tokens = {MOST_PIECES} }}
        "#,
        train + flexible
    )
}

fn table(figures: &[Figures]) -> String {
    let mut rows = String::from(
        "| device-s a step | α | generate | train | both | steps an hour | idle | slots filled | dropped |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut seen: Vec<(f64, Split)> = Vec::new();
    for figure in figures {
        if !seen.contains(&(figure.train_s, figure.split)) {
            seen.push((figure.train_s, figure.split));
        }
    }
    for (train_s, split) in seen {
        let of = |value: fn(&Figures) -> f64| {
            let same = figures.iter().filter(|figure| (figure.train_s, figure.split) == (train_s, split));
            mean_and_deviation(&same.map(value).collect::<Vec<_>>())
        };
        let (steps, spread) = of(|figure| figure.steps_an_hour);
        let [idle, filled, dropped] =
            [of(|figure| figure.idle), of(|figure| figure.filled), of(|figure| figure.dropped)]
                .map(|(mean, _)| 100.0 * mean);
        let Split { generate, train, flexible, alpha } = split;
        rows += &format!(
            "| {train_s} | {alpha} | {generate} | {train} | {flexible} | {steps:.1} ± {spread:.1} | {idle:.0} % | {filled:.0} % | {dropped:.1} % |\n"
        );
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_do_both_turn_by_turn_make_every_step_and_lose_no_token() {
        let pace = Pace { seed: 1, train_s: 40.0 };
        let split = Split { generate: 2, train: 0, flexible: 2, alpha: 1.0 };
        let figures = in_virtual_time(play(split, pace, 2)).unwrap();
        assert!(figures.steps_an_hour > 0.0 && figures.idle < 0.5, "{figures:?}");
    }
}
