//! What scaling costs and saves: a run with bursty environments, on workers that take a while to
//! start, under four rules for how many there are. A static fleet, sized for the bursts; as many as
//! the queue is long (what KEDA's JetStream scaler does), with its defaults and tuned to these workers; and the staleness
//! budget. Then the static
//! fleet is interrupted: by chance, and as a trace of a spot market has it. The coordinator, the
//! workers' run loop and the autoscaler are the real ones: in one process and in virtual time, or, with
//! `--real`, in processes of their own with a real queue. There a task takes its time before it is
//! executed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use millrace_workers::Executor;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::publish;
use crate::virtual_time::in_virtual_time;
use failures::Lost;
use figures::{Figures, Replayed};
use ground::Ground;
use in_process::InProcess;
use machines::Preemption;
use play::Setting;
use processes::{BEGUN, PACE, Processes};
use rules::Rule;
use trace::Trace;
use work::{Law, Pace, Slow};

mod work;
mod machines;
mod ground;
mod in_process;
mod processes;
mod rules;
mod trace;
mod play;
mod failures;
mod figures;

/// Seconds between two interruptions of a worker, and whether they are announced.
const INTERRUPTIONS: [(u64, bool); 6] =
    [(600, true), (300, true), (120, true), (600, false), (300, false), (120, false)];

/// In this share of the steps a worker is killed without a notice.
const FAILURES: [f64; 3] = [0.0, 0.1, 1.0];

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Train steps of a run
    #[arg(long, default_value_t = 40)]
    steps: u64,
    /// Seeds: each draws other start-up delays, turns and interruptions
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// What to measure. Default: everything
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    /// Only these rules. Default: all
    #[arg(long, value_enum, value_delimiter = ',')]
    rules: Vec<Rule>,
    /// On real processes: nats-server, `millrace coordinator`, and a process for each worker
    #[arg(long)]
    real: bool,
    /// With --real, everything takes so many times less than in virtual time
    #[arg(long, default_value_t = 4.0)]
    faster: f64,
    /// With --real, the trace, start-up delays and notices take so many times less where it is replayed
    #[arg(long, default_value_t = 20.0)]
    trace_faster: f64,
    /// Groups of 8 rollouts in a batch. The static fleet has half as many workers that generate, and as many for environments
    #[arg(long, default_value_t = 16)]
    groups: u32,
    /// Seconds after which a pool of the staleness budget shrinks to what it needs
    #[arg(long, default_value_t = 15.0)]
    cooldown: f64,
    /// Visibility timeout of a task, in seconds of virtual time
    #[arg(long, default_value_t = 30.0)]
    ack_wait: f64,
    /// The trace: lines of seconds,instances
    #[arg(long, default_value = "loadtest/scenarios/spot-g4dn-xlarge.csv")]
    trace: PathBuf,
    /// The seconds of the trace that are replayed. Default: its last two hours
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"], default_values_t = [37_502, 45_668])]
    window: Vec<u64>,
    /// Folder of real processes
    #[arg(long, default_value = "target/scale")]
    dir: PathBuf,
    /// Where the figures go
    #[arg(long, default_value = "target/bench/scale.json")]
    out: PathBuf,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The rules.
    Rules,
    /// The static fleet, interrupted by chance.
    Interruptions,
    /// A fleet that a spot market decides on.
    Trace,
    /// The static fleet with a trainer that stands by: a worker at work is killed in a share of the steps.
    Failures,
}

/// All figures.
#[derive(Debug, Default, Serialize)]
struct Measured {
    runs: Vec<Figures>,
    replayed: Vec<Replayed>,
    failures: Vec<Lost>,
}

impl Measured {
    fn tables(&self) -> String {
        let tables = [
            (!self.runs.is_empty()).then(|| figures::of_runs(&self.runs)),
            (!self.replayed.is_empty()).then(|| figures::of_replays(&self.replayed)),
            (!self.failures.is_empty()).then(|| failures::table(&self.failures)),
        ];
        tables.into_iter().flatten().collect::<Vec<_>>().join("\n")
    }
}

/// Runs the benchmark.
///
/// # Errors
/// A run failed or did not end.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let window = [args.window[0], args.window[1]].map(Duration::from_secs);
    let trace = Trace::read(&args.trace, window[0], window[1])?;
    let mut measured = Measured::default();
    for &seed in &args.seeds {
        args.measure(seed, &trace, &mut measured)?;
        // What there is so far is not lost with a later run.
        publish(&args.out, &measured, &measured.tables())?;
    }
    Ok(())
}

impl Args {
    fn measure(&self, seed: u64, trace: &Trace, measured: &mut Measured) -> anyhow::Result<()> {
        let has = |part| self.parts.is_empty() || self.parts.contains(&part);
        if has(Part::Rules) {
            let asked = |rule: &Rule| self.rules.is_empty() || self.rules.contains(rule);
            for rule in Rule::ALL.into_iter().filter(asked) {
                measured.runs.push(self.play(rule, seed, None)?);
            }
        }
        if has(Part::Interruptions) {
            for (every_s, announced) in INTERRUPTIONS {
                let preemption = Preemption { every: Duration::from_secs(every_s), announced };
                measured.runs.push(self.play(Rule::Static, seed, Some(preemption))?);
            }
        }
        if has(Part::Trace) {
            for (trace, announced) in [(&trace.undisturbed(), true), (trace, true), (trace, false)] {
                measured.replayed.push(self.replay(trace, announced, seed)?);
            }
        }
        if has(Part::Failures) {
            for share in FAILURES {
                measured.failures.push(self.fail(share, seed)?);
            }
        }
        Ok(())
    }

    fn fail(&self, share: f64, seed: u64) -> anyhow::Result<Lost> {
        let setting = self.setting(seed, true, self.steps);
        let lost = self.on(setting.law, None, |ground| setting.fail(ground, share))?;
        println!("{lost:?}");
        Ok(lost)
    }

    fn play(&self, rule: Rule, seed: u64, preemption: Option<Preemption>) -> anyhow::Result<Figures> {
        let setting = self.setting(seed, true, self.steps);
        let figures = self.on(
            setting.law,
            (rule == Rule::Budget).then(|| setting.scaling_file(self.cooldown)),
            |ground| setting.play(ground, rule, preemption),
        )?;
        println!("{figures:?}");
        Ok(figures)
    }

    fn replay(&self, trace: &Trace, announced: bool, seed: u64) -> anyhow::Result<Replayed> {
        let setting = self.setting(seed, false, u64::from(u32::MAX));
        let replayed = self.on(setting.law, None, |ground| setting.replay(ground, trace, announced))?;
        println!("{replayed:?}");
        Ok(replayed)
    }

    fn setting(&self, seed: u64, bursts: bool, steps: u64) -> Setting {
        Setting { law: self.law(seed, bursts), steps, groups: self.groups }
    }

    fn law(&self, seed: u64, bursts: bool) -> Law {
        if !self.real {
            return Law::virtual_time(seed, bursts);
        }
        let fleet_faster = if bursts { self.faster } else { self.trace_faster };
        Law { seed, work_faster: self.faster, fleet_faster, bursts }
    }

    /// Calls `measure` with everything but the workers started. A coordinator that scales does so by
    /// `scaling`.
    fn on<T, M>(
        &self,
        law: Law,
        scaling: Option<String>,
        measure: impl FnOnce(Arc<dyn Ground>) -> M,
    ) -> anyhow::Result<T>
    where
        M: Future<Output = anyhow::Result<T>>,
    {
        let measured = async |ground: Arc<dyn Ground>| {
            let measured = measure(ground.clone()).await;
            ground.end().await;
            measured
        };
        if self.real {
            let runtime = tokio::runtime::Runtime::new()?;
            return runtime.block_on(async {
                measured(Arc::new(Processes::start(&self.dir, law, self.ack_wait, scaling).await?)).await
            });
        }
        in_virtual_time(async {
            measured(Arc::new(InProcess::start(law, self.ack_wait, scaling).await?)).await
        })
    }
}

/// Arguments of a worker whose tasks take their time: those of `millrace-worker`.
#[derive(Debug, clap::Args)]
pub struct SlowWorkerArgs {
    /// Arguments of `millrace-worker`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Serves as `millrace-worker` does, where each task takes its time before it is executed.
///
/// # Errors
/// As that.
pub fn slow_worker(args: &SlowWorkerArgs) -> anyhow::Result<()> {
    let pace = std::env::var(PACE).with_context(|| format!("{PACE} is not set"))?;
    let pace = Pace::from_json(&pace).with_context(|| format!("{PACE} is no pace"))?;
    let notes = std::env::var_os(BEGUN).with_context(|| format!("{BEGUN} is not set"))?;
    let begins = Arc::new(work::notes_in(Path::new(&notes))?);
    let program = [OsString::from("millrace-worker")];
    let wrapped = |_, executor| -> Arc<dyn Executor> {
        let (pace, begins) = (pace.clone(), begins.clone());
        Arc::new(Slow { pace, executor, leaving: CancellationToken::new(), begins })
    };
    millrace_workers::command::serve_with(program.into_iter().chain(args.arguments.clone()), wrapped)
}
