//! `millrace up`: everything on one machine, each part in a process of its own, so that any of them
//! may be killed at any time.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use millrace_queue::Objects;
use millrace_schemas::api::{RunReply, RunRequest, RunState, Status};
use millrace_schemas::report::Report;
use millrace_schemas::{PolicyVersion, RunId, RunSpec};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::connect::{Api, CallError};
use super::data;
use super::follow::{Follow, paused_itself};
use super::live::view;
use super::metrics::{MetricsFile, Watched};
use super::plan::hint;
use super::report::{Measured, is_good, lines};
use super::signals::Signals;
use super::submit::read_run_file;
use super::term::{is_terminal, say};
pub(super) use folder::KEY_FILE;
use folder::{Begin, Folder, METRICS_FILE, StartOver};
use stack::{QueueArgs, Stack};
use workers::Counts;

mod folder;
mod gpus;
pub(super) mod model;
mod sandbox;
mod supervisor;
mod workers;
mod stack;
mod scaled;
mod baselines;
mod conclude;
pub(super) mod reopen;

/// Pause between two tries to submit the run.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// The exit code that shells expect after an interrupt.
const INTERRUPTED: u8 = 130;

/// Arguments of `millrace up`.
#[derive(Debug, clap::Args)]
pub(super) struct UpArgs {
    /// The run file, TOML or JSON
    run_file: PathBuf,
    /// Folder of the run [default: millrace-runs/NAME]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The object store: a folder, or s3://bucket/prefix [default: in the run's folder]
    #[arg(long, value_name = "LOCATION")]
    objects: Option<String>,
    #[command(flatten)]
    counts: Counts,
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    agents: sandbox::AgentArgs,
    /// Use this seed instead of the run file's
    #[arg(long)]
    seed: Option<u64>,
    /// Make this many steps instead of the run file's
    #[arg(long)]
    steps: Option<u64>,
    /// Start over if the run in the folder is over; its results move to earlier/
    #[arg(long)]
    again: bool,
    /// Start over in any case; results move to earlier/
    #[arg(long, conflicts_with = "again")]
    fresh: bool,
}

/// Why following a run ended.
enum Ended {
    /// The run is over.
    Over(Box<Status>, Measured),
    /// The run paused itself, and no person is there to repair the cause; the newest version.
    Paused(PolicyVersion),
    /// A signal arrived; the newest version seen.
    Stopped(Option<PolicyVersion>),
}

impl UpArgs {
    pub(super) async fn run(self) -> Result<ExitCode> {
        let (spec, contents) = self.spec()?;
        self.counts.check_tools(&spec)?;
        let root = self.dir.clone().unwrap_or_else(|| PathBuf::from(format!("millrace-runs/{}", spec.name)));
        Stack::check(self.objects.as_deref(), &self.counts, &self.queue)?;
        let known = |name: &str| self.start_over() == StartOver::No && root.join(name).exists();
        // A resumed run has its version 0 already.
        if !known("run.json") {
            sandbox::check(&spec).await?;
            model::check(&spec).await?;
            data::check_prompts(&spec, &contents, &self.counts.mcp()).await?;
        }
        // A run that is over hosts nothing.
        let hosting = if known("report.json") { vec![] } else { self.agents.hosting(&spec).await? };
        // Only what can run leaves a folder.
        let folder = Folder::open(&root).await?;
        match folder.begin(&spec, self.start_over())? {
            Begin::New => say(format_args!("{} starts in {}", spec.name, root.display())),
            Begin::Resumed => say(format_args!("{} resumes in {}", spec.name, root.display())),
            Begin::Over(report) => {
                tell(&report, &folder);
                say("this run is over; --again starts over and keeps these results");
                return Ok(code(&report));
            }
        }
        let stop = CancellationToken::new();
        let signals = tokio::spawn(on_signals(Signals::listen()?, stop.clone()));
        let counts = self.counts.for_run(&spec, hosting);
        let mut stack = Stack::start(&folder, self.objects.as_deref(), &counts, &self.queue)?;
        let objects = stack.objects().to_owned();
        let metrics =
            MetricsFile::new(Objects::open(&objects)?, spec.name.clone(), folder.path(METRICS_FILE));
        let (newest, versions) = watch::channel(PolicyVersion(0));
        let metrics = tokio::spawn(metrics.follow(versions));
        let ended = follow_run(&mut stack, (&spec, contents), newest, &stop).await;
        stack.drain().await;
        signals.abort();
        // What it has not written yet is written when the run ends, or goes on.
        metrics.abort();
        let _ = metrics.await;
        match ended? {
            Ended::Over(status, measured) => {
                // Baselines are optional for a run.
                let baselines = baselines::of(&spec).await.unwrap_or_else(|e| {
                    say(format_args!("without baselines: {e:#}"));
                    Vec::new()
                });
                let measured = Measured { baselines, ..measured };
                let report = conclude::conclude(&folder, &objects, &status, measured).await?;
                tell(&report, &folder);
                Ok(code(&report))
            }
            // The reason and the remedy are printed above.
            Ended::Paused(version) => {
                say(format_args!("{} is paused at {version}; the same command resumes it", spec.name));
                Ok(ExitCode::FAILURE)
            }
            Ended::Stopped(version) => {
                let at = version.map_or("before its first version".into(), |version| format!("at {version}"));
                say(format_args!("{} stopped {at}; the same command resumes it", spec.name));
                Ok(ExitCode::from(INTERRUPTED))
            }
        }
    }

    /// The run file with the options applied, and its dataset rows.
    fn spec(&self) -> Result<(RunSpec, Vec<Bytes>)> {
        let mut spec = read_run_file(&self.run_file)?;
        spec.seed = self.seed.unwrap_or(spec.seed);
        spec.steps = self.steps.unwrap_or(spec.steps);
        let contents = data::read(&mut spec, &self.run_file)?;
        Ok((spec, contents))
    }

    const fn start_over(&self) -> StartOver {
        match (self.fresh, self.again) {
            (true, _) => StartOver::Always,
            (false, true) => StartOver::IfOver,
            (false, false) => StartOver::No,
        }
    }
}

fn code(report: &Report) -> ExitCode {
    if is_good(report) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tell(report: &Report, folder: &Folder) {
    lines(report).iter().for_each(say);
    let report_path = folder.path("report.json");
    let metrics = folder.path(METRICS_FILE);
    if metrics.exists() {
        say(format_args!("  {:<10} {}", "metrics", metrics.display()));
    }
    say(format_args!("  {:<10} {}", "report", report_path.display()));
    let root = folder.path("");
    say(format_args!("  {:<10} millrace rollouts --dir {}", "samples", root.display()));
    let hint = hint(report.generate_busy, report.train_busy, &root.to_string_lossy());
    // A run without a step has nothing to plan from.
    if let Some(hint) = hint.filter(|_| report.steps > 0) {
        say(format_args!("  {:<10} {hint}", "idle"));
    }
}

/// The first signal asks for an orderly end, the second for an immediate one.
async fn on_signals(mut signals: Signals, stop: CancellationToken) {
    signals.next().await;
    stop.cancel();
    say("draining: workers finish or return their tasks; interrupt a second time to end at once");
    signals.next().await;
    // The kernel kills the other processes with this one.
    std::process::exit(i32::from(INTERRUPTED));
}

/// Submits the run unless it exists, and follows it until it is over or `stop`.
async fn follow_run(
    stack: &mut Stack,
    (spec, contents): (&RunSpec, Vec<Bytes>),
    newest: watch::Sender<PolicyVersion>,
    stop: &CancellationToken,
) -> Result<Ended> {
    let begin = async {
        data::store(&Objects::open(stack.objects())?, spec, contents).await?;
        let api = stack.connect().await?;
        stack.or_given_up(submit_once(&api, spec)).await?;
        stack.or_given_up(resume_if_paused(&api, &spec.name)).await?;
        anyhow::Ok(api)
    };
    let api = tokio::select! {
        () = stop.cancelled() => return Ok(Ended::Stopped(None)),
        api = begin => api?,
    };
    let restarts = stack.restarts();
    let mut view = Watched { view: view(), newest };
    let follow = Follow {
        api: &api,
        run: &spec.name,
        view: &mut view,
        prompts: Some(spec.evaluate.prompts),
        restarts: Some(restarts.clone()),
        news: Some(stack.news()),
        leaves_paused: !is_terminal(),
        patience: None,
    };
    let followed = follow.until_over(stop).await?;
    Ok(match followed.status {
        Some(status) if status.state.is_over() => {
            let measured = Measured {
                generate_busy: followed.generate_busy,
                train_busy: followed.train_busy,
                workers: followed.workers,
                restarts: restarts.load(Ordering::Relaxed),
                ..Measured::default()
            };
            Ended::Over(Box::new(status), measured)
        }
        Some(status) if paused_itself(&status) && !stop.is_cancelled() => Ended::Paused(status.version),
        seen => Ended::Stopped(seen.map(|status| status.version)),
    })
}

/// Submits the run. It exists already if this command resumes it, or if a response was lost.
async fn submit_once(api: &Api, spec: &RunSpec) -> Result<()> {
    match until_answered(async || api.call::<RunReply>("submit", spec).await).await {
        Err(CallError::Refused(e)) if e.code == 409 => Ok(()),
        answer => Ok(answer.map(drop)?),
    }
}

/// Resumes the run if it is paused, as the same command implies. Checks the state before each try:
/// a response may have been lost.
async fn resume_if_paused(api: &Api, run: &RunId) -> Result<()> {
    let request = RunRequest { run: Some(run.clone()) };
    let resume = async || {
        if api.status(run).await?.state == RunState::Paused {
            api.call::<RunReply>("resume", &request).await?;
        }
        Ok(())
    };
    Ok(until_answered(resume).await?)
}

/// Retries until a coordinator responds, even with a refusal.
async fn until_answered<T>(ask: impl AsyncFn() -> Result<T, CallError>) -> Result<T, CallError> {
    loop {
        match ask().await {
            Err(CallError::Silent(_)) => tokio::time::sleep(TRY_AGAIN).await,
            answer => return answer,
        }
    }
}
