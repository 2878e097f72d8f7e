//! Chaos on real processes: runs are played while processes are killed and paused, connections cut and the
//! disk filled; then the same runs undisturbed. Nothing may be lost, nothing done twice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use millrace_schemas::RunSpec;
use millrace_schemas::submit::from_toml;
use tokio::time::Instant;

use inject::{Injected, Record};
use leader::Leader;
use plan::{Means, Plan};
use player::Player;
use stack::{Stack, StackOptions};

pub mod role;
pub mod scenario;
pub mod plan;
pub mod proxy;
pub mod process;
pub mod disk;
pub mod stack;
pub mod leader;
pub mod inject;
pub mod player;
pub mod observe;
pub mod result;
pub mod cost;
pub mod report;

/// Arguments of `millrace-loadtest chaos`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Minutes of faults; the run in play when they end is played to its end
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Draws the faults; the runs have this seed, the next, and so on
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The run file; only its name and seed are changed
    #[arg(long, default_value = "broker/coordinator/runs/frozen-lake-surroundings.toml")]
    run: PathBuf,
    /// Make this many steps instead of the run file's
    #[arg(long)]
    steps: Option<u64>,
    /// Make each step with this many ranks, and start as many train workers; default: the run file's
    #[arg(long)]
    ranks: Option<u32>,
    /// Folder for everything; what an earlier test left there is removed
    #[arg(long, default_value = "target/chaos")]
    dir: PathBuf,
    /// Three nats-servers and three replicas; the leader of the log is killed too
    #[arg(long)]
    cluster: bool,
    /// What goes wrong, how often and for how long; default: scenarios/chaos.toml
    #[arg(long)]
    scenario: Option<PathBuf>,
    /// Play at most this many of the runs again undisturbed, to compare
    #[arg(long, default_value_t = u64::MAX)]
    compare: u64,
    /// Where the tables go: this with .md and with .json; default: report in the folder
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What one series of runs gave.
pub struct Series {
    /// The runs, in order.
    pub runs: Vec<result::Played>,
    /// When what came of tasks was seen.
    pub seen: Vec<observe::ObservedTurn>,
    /// Rollouts that were trained.
    pub trained: cost::Trained,
    /// What the checkers say; empty when all is well.
    pub findings: Vec<String>,
    /// Processes that ended although nobody had killed them, by name.
    pub unasked: Vec<(String, u64)>,
}

/// Runs the test, prints and writes its tables. Fails when a checker finds something.
///
/// # Errors
/// Something is missing, or a run cannot be played to its end.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let disk = disk::own_namespace();
    let scenario = scenario::Scenario::read(args.scenario.as_deref())?;
    let base = read_run(&args)?;
    let means = Means { disk, cluster: args.cluster };
    let plan = Plan::new(scenario, means, args.seed);
    let processes = BTreeMap::from([(role::Role::Train, base.gang.ranks as usize)]);
    let options = |name: &str| StackOptions {
        cluster: args.cluster,
        processes: processes.clone(),
        disk,
        ..StackOptions::in_folder(args.dir.join(name))
    };
    let lasts = Duration::from_secs_f64(args.minutes * 60.0);
    let (disturbed, faults) = disturbed(&options("disturbed"), &base, args.seed, plan, lasts).await?;
    let count = (disturbed.runs.len() as u64).min(args.compare);
    let undisturbed = undisturbed(&options("undisturbed"), &base, args.seed, count).await?;
    let report = report::Report::new(&args, means, &disturbed, &undisturbed, &faults);
    let out = args.out.clone().unwrap_or_else(|| args.dir.join("report"));
    report.write(&out)?;
    Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read_run(args: &Args) -> anyhow::Result<RunSpec> {
    let fail = || format!("failed to read run file path={}", args.run.display());
    let mut spec = from_toml(&std::fs::read_to_string(&args.run).with_context(fail)?).with_context(fail)?;
    spec.steps = args.steps.unwrap_or(spec.steps);
    spec.gang.ranks = args.ranks.unwrap_or(spec.gang.ranks);
    Ok(spec)
}

/// Plays runs for as long as faults are injected, and the last to its end.
async fn disturbed(
    options: &StackOptions,
    base: &RunSpec,
    seed: u64,
    plan: Plan,
    lasts: Duration,
) -> anyhow::Result<(Series, Vec<Injected>)> {
    let stack = Arc::new(Stack::start(options).await?);
    let player = Player::connect(stack.url(), "chaos").await?;
    let began = Instant::now();
    let record = Record::new(began);
    let observer = observe::Observer::start(stack.url(), &stack.objects, began).await?;
    let end = began + lasts;
    let leader = Leader::new(player.queue().clone());
    let injecting = tokio::spawn(inject::run(stack.clone(), plan, record.clone(), leader, end));
    let (mut runs, mut stuck) = (Vec::new(), None);
    for seed in seed.. {
        match result::play(&player, &player::spec(base, seed)?, began).await {
            Ok(played) => runs.push(played),
            Err(error) => stuck = Some(format!("{error:#}")),
        }
        if stuck.is_some() || Instant::now() >= end {
            break;
        }
    }
    injecting.await.context("the injector failed")?;
    let mut series = conclude(&stack, &player, runs, observer).await?;
    series.findings.extend(stuck);
    Ok((series, record.take()))
}

/// Plays the same runs with nothing in their way.
async fn undisturbed(
    options: &StackOptions,
    base: &RunSpec,
    seed: u64,
    count: u64,
) -> anyhow::Result<Series> {
    let stack = Stack::start(options).await?;
    let player = Player::connect(stack.url(), "chaos").await?;
    let began = Instant::now();
    let observer = observe::Observer::start(stack.url(), &stack.objects, began).await?;
    let mut runs = Vec::new();
    for seed in (seed..).take(usize::try_from(count).unwrap_or(usize::MAX)) {
        runs.push(result::play(&player, &player::spec(base, seed)?, began).await?);
    }
    conclude(&stack, &player, runs, observer).await
}

async fn conclude(
    stack: &Stack,
    player: &Player,
    runs: Vec<result::Played>,
    observer: observe::Observer,
) -> anyhow::Result<Series> {
    let (findings, trained) = result::check(player, &stack.objects, &runs, &observer).await?;
    let members = stack.members.iter();
    let unasked = members.map(|m| (m.process.name().to_owned(), m.process.ended_unasked()));
    let unasked = unasked.filter(|(_, times)| *times > 0).collect();
    Ok(Series { runs, seen: observer.stop(), trained, findings, unasked })
}
