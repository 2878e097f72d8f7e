//! `millrace plan`: how many GPUs of a run should generate and how many train, and at which async
//! ratio. `millrace-loadtest`, which has the simulator, does the search; this command collects what
//! it needs to know. The broker depends on neither workers nor load test, so it starts the program.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use millrace_schemas::RunSpec;
use millrace_schemas::plan::PlanRequest;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::connect::ConnectionArgs;
use super::submit::read_run_file;
use super::worker::find_program;
pub(super) use figures::{RunFigures, hint, mean_step_s};
use latencies::Latencies;

mod figures;
mod latencies;
mod lengths;
mod request;

/// The program with the simulator.
const SIMULATOR: &str = "millrace-loadtest";
/// Async ratios that are tried beside the run file's.
const ALPHAS: [f64; 4] = [0.0, 1.0, 2.0, 4.0];

/// Arguments of `millrace plan`.
#[derive(Debug, clap::Args)]
pub(super) struct PlanArgs {
    /// The run file, TOML or JSON
    run_file: PathBuf,
    /// GPUs to divide into those that generate and those that train
    #[arg(long, value_name = "N")]
    gpus: u32,
    /// Async ratios to choose among, with commas [default: 0,1,2,4 and the run file's]
    #[arg(long, value_name = "A,B", value_delimiter = ',', allow_negative_numbers = true)]
    alpha: Vec<f64>,
    /// Take latencies and lengths from a run: the folder of a `millrace up`, or the name of a run that a
    /// coordinator knows
    #[arg(long, value_name = "RUN")]
    measured: Option<String>,
    /// A TOML file with latencies: the options below, with `_` for `-`
    #[arg(long, value_name = "FILE")]
    latencies: Option<PathBuf>,
    #[command(flatten)]
    given: Latencies,
    /// Draws lengths and latencies [default: the run file's]
    #[arg(long)]
    seed: Option<u64>,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
}

impl PlanArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let spec = read_run_file(&self.run_file)?;
        let simulator = find_program(SIMULATOR)?;
        let read = match &self.latencies {
            Some(path) => Latencies::read(path)?,
            None => Latencies::default(),
        };
        let measured = match &self.measured {
            Some(run) => Some(RunFigures::of(run, connection).await?),
            None => None,
        };
        let given = self.given.clone().or(read);
        let request = request::assemble(&spec, &given, measured.as_ref(), self.question(&spec))?;
        ask(&simulator, &request, self.json).await
    }

    fn question(&self, spec: &RunSpec) -> request::Question {
        let mut alphas = self.alpha.clone();
        if alphas.is_empty() {
            alphas = [&ALPHAS[..], &[spec.rollout.alpha]].concat();
        }
        alphas.sort_unstable_by(f64::total_cmp);
        alphas.dedup();
        request::Question { gpus: self.gpus, alphas, seed: self.seed.unwrap_or(spec.seed) }
    }
}

/// Has the simulator answer, on this command's own output. An interrupt ends both.
async fn ask(simulator: &Path, request: &PlanRequest, json: bool) -> Result<ExitCode> {
    let failed = || format!("failed to run {}", simulator.display());
    let mut command = Command::new(simulator);
    command.arg("plan").args(json.then_some("--json")).stdin(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().with_context(failed)?;
    let mut input = child.stdin.take().context("a pipe was asked for")?;
    let text = serde_json::to_vec(request)?;
    // A program of another version may end without reading; its message is printed.
    let (_, ended) = tokio::join!(
        async move {
            let _ = input.write_all(&text).await;
        },
        child.wait()
    );
    let status = ended.with_context(failed)?;
    if !status.success() {
        bail!("{} ended with {status}; are `millrace` and it of the same build?", simulator.display());
    }
    Ok(ExitCode::SUCCESS)
}
