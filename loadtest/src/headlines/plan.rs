//! `millrace-loadtest plan`: which split of the GPUs and which async ratio make a run's steps
//! shortest. `millrace plan` asks, in JSON on the input.

use std::io::Read;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use anyhow::{Context, anyhow, bail};
use millrace_schemas::plan::{MeasuredSplit, PlanRequest};
use serde::Serialize;

use crate::bench;
use search::Search;
use split::{Division, Scale, Split, WHOLE_ROLLOUTS};

mod split;
mod search;
mod page;
mod chart;
pub(super) mod pictures;

/// A request is not longer: a measured distribution has a thousand numbers.
const MOST_BYTES: u64 = 1 << 20;
/// The recommended async ratio is the least that is this close to the fastest: staleness costs
/// learning, which the simulator does not see.
const CLOSE_ENOUGH: f64 = 1.02;
/// Shorter steps are not foretold: a task's way through the queue counts.
const SHORT_STEP_S: f64 = 1.0;
/// Splits that are listed beside the recommended one.
const RUNNERS_UP: usize = 4;

/// How to print a plan.
#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Plan {
    run: String,
    gpus: u32,
    seed: u64,
    recommended: Split,
    /// The fastest split of each async ratio, by the ratio.
    by_alpha: Vec<Split>,
    /// The fastest others of the recommended ratio.
    runners_up: Vec<Split>,
    /// The rule that knows nothing.
    half_and_half: Split,
    /// No asynchrony: all GPUs generate, then all train.
    in_turn: Split,
    /// A GPU more than asked for, which generates.
    one_more_generates: Split,
    one_more_trains: Split,
    /// A real run beside the simulated one; `None` without a measured run.
    check: Option<Check>,
    assumptions: Vec<String>,
    /// Runs that were simulated.
    simulated: usize,
    took_s: f64,
}

/// How far the simulator is from a real run.
#[derive(Debug, Serialize)]
struct Check {
    measured: MeasuredSplit,
    simulated: Split,
}

/// Reads a request from the input, and prints the plan.
///
/// # Errors
/// The request is refused, or a simulated run fails.
pub fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    let input = std::io::stdin().take(MOST_BYTES).read_to_string(&mut text);
    input.context("failed to read the request from the input")?;
    let request: PlanRequest = serde_json::from_str(&text)
        .context("failed to read the request; `millrace plan RUN.toml --gpus N` writes it")?;
    let refusals = request.refusals();
    if !refusals.is_empty() {
        let lines: String = refusals.iter().map(|refusal| format!("\n  {refusal}")).collect();
        bail!("nothing can be planned:{lines}");
    }
    let plan = Plan::of(&request)?;
    println!("{}", if args.json { serde_json::to_string_pretty(&plan)? } else { page::page(&plan) });
    Ok(ExitCode::SUCCESS)
}

impl Plan {
    fn of(request: &PlanRequest) -> anyhow::Result<Self> {
        let began = Instant::now();
        let mut searches =
            all(request.alphas.iter().map(|alpha| move || Search::new(request, *alpha).coarse()))?;
        let best_s = searches.iter().map(|search| search.best().step_s).fold(f64::INFINITY, f64::min);
        let enough = searches.iter_mut().find(|search| search.best().step_s <= CLOSE_ENOUGH * best_s);
        let enough = enough.context("there is no async ratio to choose")?;
        enough.fine()?;
        let recommended = enough.best().clone();
        let mut runners_up: Vec<Split> = enough.splits().cloned().collect();
        runners_up.retain(|split| split.generate != recommended.generate);
        runners_up.sort_by(Split::quicker);
        runners_up.truncate(RUNNERS_UP);
        let by_alpha = searches.iter().map(|search| search.best().clone()).collect();
        let whole = Scale::whole(request);
        let mut others = all(Self::others(request, &recommended).map(|of| move || whole.play(request, of)))?;
        let simulated = searches.iter().map(|search| search.simulated).sum::<usize>() + others.len();
        let mut next = || others.pop().context("a run less was simulated");
        let check = match &request.measured {
            Some(measured) => Some(Check { measured: measured.clone(), simulated: next()? }),
            None => None,
        };
        Ok(Self {
            run: request.run.clone(),
            gpus: request.gpus,
            seed: request.seed,
            one_more_trains: next()?,
            one_more_generates: next()?,
            in_turn: next()?,
            half_and_half: next()?,
            by_alpha,
            runners_up,
            check,
            assumptions: Self::assumptions(request, &recommended),
            simulated,
            recommended,
            took_s: began.elapsed().as_secs_f64(),
        })
    }

    /// Those of the request, and the simulator's own.
    fn assumptions(request: &PlanRequest, recommended: &Split) -> Vec<String> {
        let mut assumptions = request.assumptions.clone();
        let rollouts = u64::from(request.groups) * u64::from(request.group_size);
        if rollouts > u64::from(WHOLE_ROLLOUTS) {
            assumptions.push(format!(
                "a batch of {rollouts} rollouts is simulated as one of at most {WHOLE_ROLLOUTS} on as small a part \
                 of the slots: its longest rollout is shorter than the real one's"
            ));
        }
        if recommended.step_s < SHORT_STEP_S {
            assumptions.push(format!(
                "steps of less than {SHORT_STEP_S} s are mostly the queue's own time, which differs from machine to \
                 machine: the figures are rough"
            ));
        }
        assumptions
    }

    /// What is simulated beside the search, in the order of the fields.
    fn others<'a>(request: &'a PlanRequest, recommended: &Split) -> impl Iterator<Item = Division> + use<'a> {
        let Split { generate, train, alpha, .. } = *recommended;
        let half = (request.gpus / 2).clamp(1, request.gpus - request.least_trainers);
        let measured = request.measured.as_ref();
        [
            Division { generate: half, train: request.gpus - half, both: 0, alpha },
            Division { generate: 0, train: 0, both: request.gpus, alpha: 0.0 },
            Division { generate: generate + 1, train, both: 0, alpha },
            Division { generate, train: train + 1, both: 0, alpha },
        ]
        .into_iter()
        .chain(measured.map(|run| Division {
            generate: run.generate,
            train: run.train,
            both: 0,
            alpha: run.alpha,
        }))
    }
}

/// Does the work of each on a thread of its own: a simulated run keeps one busy. As many at once as
/// there are cores.
fn all<T: Send, F: FnOnce() -> anyhow::Result<T> + Send>(
    work: impl Iterator<Item = F>,
) -> anyhow::Result<Vec<T>> {
    let cores = bench::cores();
    let mut work = work.peekable();
    let mut done = Vec::new();
    while work.peek().is_some() {
        let some: Vec<F> = work.by_ref().take(cores).collect();
        let ended = thread::scope(|scope| {
            let threads: Vec<_> = some.into_iter().map(|work| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        for ended in ended {
            done.push(ended.map_err(|_| anyhow!("a simulated run panicked"))??);
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests;
