//! What scaling costs and saves: a run with bursty environments, on workers that take a while to
//! start, under three rules for how many there are. A static fleet, sized for the bursts; as many as
//! the queue is long (what KEDA's JetStream scaler does); and the staleness budget. The coordinator,
//! the workers and the autoscaler are the real ones, in one process and in virtual time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use millrace_autoscaler::targets::Target;
use millrace_autoscaler::{Autoscaler, Board, ScalingFile};
use millrace_coordinator::shell::driver::DriverConfig;
use millrace_coordinator::shell::shared::SharedState;
use millrace_queue::{Broker, QueueSettings};
use millrace_schemas::Stage;
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{mean_and_deviation, publish};
use crate::virtual_run::VirtualRun;
use crate::virtual_time::in_virtual_time;
use machines::{Machines, Pool, Preemption};
use work::Pace;

mod machines;
mod work;

/// The run's name.
const RUN: &str = "bursty";
/// A run that does not end within this virtual time fails.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Between two looks at the run.
const LOOK: Duration = Duration::from_millis(500);

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Train steps of a run
    #[arg(long, default_value_t = 40)]
    steps: u64,
    /// Seeds: each draws other start-up delays, turns and interruptions
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// Only these rules, without interruptions
    #[arg(long, value_enum, value_delimiter = ',')]
    rules: Vec<Rule>,
    /// Where the figures go
    #[arg(long, default_value = "target/bench/scale.json")]
    out: PathBuf,
}

/// How many workers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Rule {
    /// So many from the start to the end, whatever happens.
    Static,
    /// As many as waiting tasks ask for.
    QueueLag,
    /// The staleness budget.
    Budget,
}

/// The pools that are scaled: name, stages, the static fleet's size, tasks in flight of a worker.
const POOLS: [(&str, &[Stage], u32, u32); 2] =
    [("generate", &[Stage::Generate], 8, 16), ("env", &[Stage::EnvStep, Stage::Reward], 16, 16)];

/// What one run gave.
#[derive(Debug, Clone, Serialize)]
struct Figures {
    rule: Rule,
    seed: u64,
    /// Seconds between two of its interruptions of a worker; `None` without any.
    interrupted_every_s: Option<u64>,
    /// Interruptions are announced two minutes before.
    announced: bool,
    /// Seconds of a step.
    step_s: f64,
    /// Seconds of workers that were paid for, from the request of each to its end.
    worker_s: f64,
    /// Rollouts dropped, by reason.
    dropped: u64,
    /// Turns that were sampled and belong to no trained rollout.
    wasted_turns: u64,
    /// Workers interrupted.
    interrupted: u64,
}

/// Runs the benchmark.
///
/// # Errors
/// A run failed or did not end.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut figures = Vec::new();
    for seed in &args.seeds {
        let all = [Rule::Static, Rule::QueueLag, Rule::Budget];
        for rule in all.into_iter().filter(|rule| args.rules.is_empty() || args.rules.contains(rule)) {
            figures.push(in_virtual_time(play(rule, *seed, args.steps, None))?);
        }
        if !args.rules.is_empty() {
            continue;
        }
        for (every_s, announced) in
            [(600, true), (300, true), (120, true), (600, false), (300, false), (120, false)]
        {
            let preemption = Preemption { every: Duration::from_secs(every_s), announced };
            figures.push(in_virtual_time(play(Rule::Static, *seed, args.steps, Some(preemption)))?);
        }
    }
    publish(&args.out, &figures, &table(&figures))
}

/// One run under one rule.
async fn play(rule: Rule, seed: u64, steps: u64, preemption: Option<Preemption>) -> anyhow::Result<Figures> {
    let start = Instant::now();
    let run = VirtualRun::start(QueueSettings::default()).await?;
    let VirtualRun { broker, shared, config, stop, .. } = &run;
    let pace = Pace::new(seed, start);
    let pools: Vec<Arc<Machines>> = POOLS
        .iter()
        .map(|(name, stages, most, slots)| {
            Machines::new(broker.clone(), pace.clone(), name, stages, (*most, *slots), preemption)
        })
        .collect();
    // The trainer is always there: it is what the others must keep busy.
    let trainer = Machines::new(
        broker.clone(),
        pace.clone(),
        "train",
        &[Stage::TrainShard, Stage::PublishWeights],
        (1, 1),
        None,
    );
    trainer.has(1);
    let rule_task = tokio::spawn(apply(
        rule,
        broker.clone(),
        shared.clone(),
        config.clone(),
        pools.clone(),
        stop.clone(),
    ));
    let played = run.play(&run_file(seed, steps), LONGEST, LOOK, || {}).await;
    let (id, took) = played.with_context(|| format!("{rule:?}, seed {seed}"))?;
    let worker_s = pools.iter().map(|pool| pool.paid_s()).sum();
    rule_task.abort();
    let shared = run.end().await?;
    let state = shared.lock();
    let books = &state.runs.get(&id).context("the run is gone")?.books;
    Ok(Figures {
        rule,
        seed,
        interrupted_every_s: preemption.map(|preemption| preemption.every.as_secs()),
        announced: preemption.is_some_and(|preemption| preemption.announced),
        step_s: took.as_secs_f64() / steps as f64,
        worker_s,
        dropped: books.dropped.values().sum(),
        wasted_turns: books.counters.turns.saturating_sub(books.counters.trained_turns),
        interrupted: pools.iter().map(|pool| pool.interrupted()).sum(),
    })
}

fn run_file(seed: u64, steps: u64) -> String {
    format!(
        r#"
        name = "{RUN}"
        seed = {seed}
        steps = {steps}
        model = {{ kind = "scripted" }}
        environment = {{ name = "counter", turns = 8 }}
        rewards = [{{ rule = "success" }}]
        evaluate = {{ prompts = 0 }}
        rollout = {{ groups_per_step = 16, group_size = 8, alpha = 2.0 }}
        "#
    )
}

/// Applies the rule until `stop`.
async fn apply(
    rule: Rule,
    broker: Broker,
    shared: SharedState,
    config: DriverConfig,
    pools: Vec<Arc<Machines>>,
    stop: CancellationToken,
) {
    match rule {
        Rule::Static => pools.iter().for_each(|pool| pool.has(pool.most)),
        Rule::QueueLag => queue_lag(shared, pools).await,
        Rule::Budget => {
            let file = scaling_file();
            let targets = pools
                .into_iter()
                .map(|pool| (pool.name.clone(), Arc::new(Pool(pool)) as Arc<dyn Target>))
                .collect();
            let file = Arc::new(ScalingFile::parse(&file).expect("the file of the benchmark is valid"));
            let board = Board::default();
            let autoscaler =
                Autoscaler { broker, shared, term: config.term, clock: config.clock, file, board };
            millrace_autoscaler::run(autoscaler, targets, stop).await;
        }
    }
}

/// The pools of the benchmark as a user would write them.
fn scaling_file() -> String {
    let pool = |(name, stages, most, _): &(&str, &[Stage], u32, u32)| {
        let stages: Vec<String> = stages.iter().map(|stage| format!("{:?}", stage.name())).collect();
        let stages = stages.join(", ");
        format!(
            "[[pool]]\nname = {name:?}\nstages = [{stages}]\nmax = {most}\nstep = 4\ncooldown_s = 60.0\nstart_up_s = 45.0\n"
        )
    };
    let pools: Vec<String> = POOLS.iter().map(pool).collect();
    format!("interval_s = 5.0\n{}", pools.join("\n"))
}

/// KEDA's rule for JetStream with its defaults: every 30 s, one worker for each 10 messages that are
/// queued or in flight; fewer only after 300 s in which fewer were enough.
async fn queue_lag(shared: SharedState, pools: Vec<Arc<Machines>>) {
    const POLL: Duration = Duration::from_secs(30);
    const THRESHOLD: u64 = 10;
    const STABILISATION: usize = 10;
    let mut recent: Vec<Vec<u32>> = vec![Vec::new(); pools.len()];
    loop {
        let demands = millrace_coordinator::fold::demand::of(&shared.lock());
        for (pool, recent) in pools.iter().zip(&mut recent) {
            let tasks = |stage: &Stage| demands.iter().map(|demand| demand.tasks(*stage)).sum::<u64>();
            let lag: u64 = pool.stages.iter().map(tasks).sum();
            recent.push((lag.div_ceil(THRESHOLD) as u32).min(pool.most));
            let from = recent.len().saturating_sub(STABILISATION);
            pool.has(recent[from..].iter().copied().max().unwrap_or(0));
        }
        tokio::time::sleep(POLL).await;
    }
}

fn table(figures: &[Figures]) -> String {
    let mut rows = String::from(
        "| fleet | interrupted | s a step | worker-seconds | of static | rollouts dropped | turns wasted |\n|---|---|---|---|---|---|---|\n",
    );
    let mut kinds: Vec<(Rule, Option<u64>, bool)> = Vec::new();
    for figure in figures {
        let kind = (figure.rule, figure.interrupted_every_s, figure.announced);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let of = |kind: (Rule, Option<u64>, bool), value: fn(&Figures) -> f64| {
        let values: Vec<f64> = figures
            .iter()
            .filter(|f| (f.rule, f.interrupted_every_s, f.announced) == kind)
            .map(value)
            .collect();
        mean_and_deviation(&values)
    };
    let (all, _) = of((Rule::Static, None, false), |f| f.worker_s);
    for kind in kinds {
        let (step, step_d) = of(kind, |f| f.step_s);
        let (worker, worker_d) = of(kind, |f| f.worker_s);
        let (dropped, _) = of(kind, |f| f.dropped as f64);
        let (wasted, _) = of(kind, |f| f.wasted_turns as f64);
        let rule = match kind.0 {
            Rule::Static => "static",
            Rule::QueueLag => "by the queue's length (KEDA's rule)",
            Rule::Budget => "by the staleness budget",
        };
        let interrupted = match (kind.1, kind.2) {
            (None, _) => "no".to_owned(),
            (Some(every), true) => format!("each worker every {every} s, announced"),
            (Some(every), false) => format!("each worker every {every} s, killed"),
        };
        rows += &format!(
            "| {rule} | {interrupted} | {step:.1} ± {step_d:.1} | {worker:.0} ± {worker_d:.0} | {:.0} % | {dropped:.0} | {wasted:.0} |\n",
            100.0 * worker / all
        );
    }
    rows
}
