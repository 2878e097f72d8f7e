//! The whole system in one process: production's fold, driver, lease, journal and run loop on a queue and an
//! object store in memory, in virtual time, from a seed. Faults come; then the system is left alone and must
//! finish, and the checkers look at what it left.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::checkers::{self, Entry, Finding, History};

pub mod play;
pub mod scenario;

mod deadline;
mod executors;
mod faults;
mod fleet;
mod link;
mod machine;
mod operator;
mod queue;
mod replicas;
mod runs;
mod store;
mod world;

pub use play::{Played, play};
use scenario::{FaultKind, Scenario};

/// Arguments of `millrace-loadtest sim`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Play this seed alone, and say what it left
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Play this many seeds
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Write the log of this seed's runs there, an event a line
    #[arg(long, requires = "seed", value_name = "FILE")]
    log: Option<PathBuf>,
    /// A scenario to play, by name or in a file, instead of those that come with the program, which take turns
    #[arg(long)]
    scenario: Option<String>,
}

/// What many seeds gave.
#[derive(Debug, Default)]
struct Tally {
    seeds: u64,
    rollouts: u64,
    lasted: Duration,
    faults: BTreeMap<FaultKind, u64>,
}

/// The scenario that a seed is played in.
#[must_use]
pub fn scenario_of(seed: u64, scenarios: &[Scenario]) -> &Scenario {
    &scenarios[(seed % scenarios.len() as u64) as usize]
}

/// Plays the seeds; fails at the first finding, with the command that repeats it.
///
/// # Errors
/// A scenario cannot be read, or the simulator itself broke.
#[expect(clippy::print_stdout, reason = "a command's answer")]
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scenarios = match &args.scenario {
        Some(name) => vec![Scenario::read(name)?],
        None => Scenario::shipped(),
    };
    let seeds = match args.seed {
        Some(seed) => seed..seed + 1,
        None => args.first..args.first + args.seeds,
    };
    let (start, mut tally) = (Instant::now(), Tally::default());
    for seed in seeds {
        let played = play(seed, scenario_of(seed, &scenarios))?;
        let findings = checkers::check(&played.history);
        if args.seed.is_some() {
            println!("history {} of {} events", played.hash, played.history.log.len());
        }
        if let Some(path) = &args.log {
            std::fs::write(path, spelt(&played.history))
                .with_context(|| format!("failed to write {}", path.display()))?;
        }
        tally.add(&played);
        if !findings.is_empty() {
            report(seed, args, &findings);
            return Ok(ExitCode::FAILURE);
        }
    }
    tally.print(start.elapsed());
    Ok(ExitCode::SUCCESS)
}

/// The log as people read it: position, run, event.
fn spelt(history: &History) -> String {
    let line = |entry: &Entry| format!("{} {} {:?}\n", entry.seq, entry.run, entry.event);
    history.log.iter().map(line).collect()
}

#[expect(clippy::print_stdout, reason = "a command's answer")]
fn report(seed: u64, args: &Args, findings: &[Finding]) {
    println!("seed {seed}: {} findings", findings.len());
    for finding in findings {
        println!("  {finding}");
    }
    let scenario = args.scenario.as_ref().map(|name| format!(" --scenario {name}"));
    println!("again: millrace-loadtest sim --seed {seed}{}", scenario.unwrap_or_default());
}

impl Tally {
    fn add(&mut self, played: &Played) {
        self.seeds += 1;
        self.rollouts += played.rollouts;
        self.lasted += played.lasted;
        for (kind, count) in &played.faults {
            *self.faults.entry(*kind).or_default() += count;
        }
    }

    #[expect(clippy::print_stdout, reason = "a command's answer")]
    fn print(&self, wall: Duration) {
        let (seeds, rollouts) = (self.seeds, self.rollouts);
        let (wall_s, hours) = (wall.as_secs_f64(), self.lasted.as_secs_f64() / 3_600.0);
        let rate = rollouts as f64 / wall_s;
        println!(
            "{seeds} seeds without a finding in {wall_s:.1} s: {rollouts} rollouts, {rate:.0} a second, {hours:.1} hours of virtual time"
        );
        println!("faults: {}", self.faults.values().sum::<u64>());
        for (kind, count) in &self.faults {
            println!("  {kind} {count}");
        }
    }
}
