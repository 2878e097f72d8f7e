//! What a run that was played says of latencies: by its report, or by its status and its workers'
//! notices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use millrace_queue::Objects;
use millrace_schemas::api::{CurvePoint, Evaluation, Status};
use millrace_schemas::notice::WorkerNotice;
use millrace_schemas::report::Report;
use millrace_schemas::{PolicyVersion, RunId, Stage};

use super::lengths::{self, Lengths};
use crate::connect::ConnectionArgs;
use crate::status;
use crate::term::percent;

/// A side that idles for more than this share of the time is worth a plan.
const IDLE: f64 = 0.3;

/// Figures of a run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunFigures {
    pub(super) run: String,
    pub(super) alpha: f64,
    pub(super) steps: u64,
    /// Mean seconds of a step.
    pub(super) step_s: f64,
    /// Workers that generate, and those that train.
    pub(super) generators: u64,
    pub(super) trainers: u64,
    /// Tokens a second of one worker that generates, while it does.
    pub(super) generator_tokens_per_s: f64,
    /// The same of one sequence.
    pub(super) slot_tokens_per_s: f64,
    /// Turns of a rollout and tokens of a turn, on average.
    pub(super) turns: f64,
    pub(super) tokens: f64,
    /// Seconds of an environment's reset or step, of a rollout's rewards, of a commit.
    pub(super) env_s: f64,
    pub(super) reward_s: f64,
    pub(super) publish_s: f64,
    /// GPU-seconds of training on a batch.
    pub(super) train_gpu_s: f64,
    /// Tokens that a step used, those of dropped rollouts too.
    pub(super) step_tokens: f64,
    /// Distributions; `None` where the object store is not given or has no batch.
    pub(super) lengths: Option<Lengths>,
}

/// What a report and a status have in common.
struct Counted<'a> {
    report: &'a Report,
    generators: u64,
    trainers: u64,
    step_s: f64,
    /// Seconds in which a worker generated, over all workers; `None` where only rates are known.
    generate_s: Option<f64>,
    generator_tokens_per_s: Option<f64>,
}

impl RunFigures {
    /// Those of the run in a folder of `millrace up`, or of the run of this name.
    ///
    /// # Errors
    /// There is no such run, or it has not made enough steps.
    pub(super) async fn of(run: &str, connection: &ConnectionArgs) -> Result<Self> {
        let folder = Path::new(run);
        let mut connection = connection.clone();
        let report = folder.join("report.json");
        if report.is_file() {
            let objects = connection.objects.map_or_else(|| folder.join("objects"), PathBuf::from);
            return Self::of_report(&report, &objects).await;
        }
        let name = if folder.is_dir() {
            connection.dir = Some(folder.to_owned());
            None
        } else {
            let parsed = run.parse::<RunId>();
            Some(parsed.with_context(|| {
                format!("measured={run:?} is neither a folder of `millrace up` nor the name of a run")
            })?)
        };
        let (status, workers) = status::with_workers(&connection, name).await?;
        let mut figures = Self::of_status(&status, &workers)?;
        // Without an object store, lengths are means.
        if let Ok(objects) = connection.open_objects() {
            figures.lengths = lengths::read(&objects, &status.run, status.version).await;
        }
        Ok(figures)
    }

    async fn of_report(path: &Path, objects: &Path) -> Result<Self> {
        let failed = || format!("failed to read the report path={}", path.display());
        let report: Report =
            serde_json::from_slice(&std::fs::read(path).with_context(failed)?).with_context(failed)?;
        let generators = report.generate_workers;
        let generate_s = report.generate_busy * report.wall_s * generators as f64;
        let mut figures = Self::of_counted(&Counted {
            report: &report,
            generators,
            trainers: report.train_workers,
            step_s: report.step_s,
            generate_s: Some(generate_s),
            generator_tokens_per_s: None,
        })?;
        if objects.is_dir() {
            let (run, version) = (report.run.parse()?, PolicyVersion(report.final_version));
            figures.lengths = lengths::read(&Objects::open(&objects.to_string_lossy())?, &run, version).await;
        }
        Ok(figures)
    }

    /// Those of a run that goes on, with its workers by their notices.
    ///
    /// # Errors
    /// It has not made enough steps, or nobody works on it.
    pub(crate) fn of_status(status: &Status, workers: &BTreeMap<String, WorkerNotice>) -> Result<Self> {
        let of = |stage| workers.values().filter_map(move |worker| worker.stages.get(&stage));
        let (tokens, busy_us) = of(Stage::Generate).fold((0, 0), |(tokens, busy_us), counters| {
            (tokens + counters.tokens, busy_us + counters.busy_us)
        });
        let report = Report {
            run: status.run.to_string(),
            alpha: status.alpha,
            steps: status.version.0,
            counters: status.counters,
            ledger: status.ledger.clone(),
            evaluations: status.evaluations.clone(),
            busy_us: status.busy_us.clone(),
            ..Report::default()
        };
        Self::of_counted(&Counted {
            report: &report,
            generators: of(Stage::Generate).count() as u64,
            trainers: of(Stage::TrainShard).count() as u64,
            step_s: mean_step_s(&status.curve),
            generate_s: None,
            generator_tokens_per_s: (busy_us > 0).then(|| tokens as f64 / (busy_us as f64 / 1e6)),
        })
    }

    fn of_counted(counted: &Counted<'_>) -> Result<Self> {
        let Counted { report, generators, trainers, step_s, .. } = *counted;
        let run = report.run.clone();
        let busy_s = |stage: Stage| report.busy_us.get(stage.name()).copied().unwrap_or(0) as f64 / 1e6;
        if report.steps < 2 || step_s <= 0.0 {
            bail!("run={run} has made steps={}; measure one that has made 3 or more", report.steps);
        }
        let evaluated: f64 = report
            .evaluations
            .iter()
            .map(|Evaluation { prompts, samples, .. }| f64::from(*prompts * *samples))
            .sum();
        let (trained, turns) = (report.ledger.trained as f64, report.counters.turns as f64);
        let turns_each = report.counters.trained_turns as f64 / trained;
        let tokens_each = report.counters.sampled_tokens as f64 / turns;
        // Busy times include evaluations, counters do not.
        let all_turns = turns + evaluated * turns_each;
        let all_rollouts = all_turns / turns_each;
        let all_tokens = all_turns * tokens_each;
        let generator_tokens_per_s =
            counted.generator_tokens_per_s.or_else(|| Some(all_tokens / counted.generate_s?)).unwrap_or(0.0);
        let figures = Self {
            alpha: report.alpha,
            steps: report.steps,
            step_s,
            generators,
            trainers,
            generator_tokens_per_s,
            slot_tokens_per_s: all_tokens / busy_s(Stage::Generate),
            turns: turns_each,
            tokens: tokens_each,
            env_s: busy_s(Stage::EnvStep) / (all_turns + all_rollouts),
            reward_s: busy_s(Stage::Reward) / all_rollouts,
            publish_s: busy_s(Stage::PublishWeights) / report.steps as f64,
            train_gpu_s: busy_s(Stage::TrainShard) / report.steps as f64,
            step_tokens: report.counters.sampled_tokens as f64 / report.steps as f64,
            lengths: None,
            run,
        };
        let measured = [
            figures.generator_tokens_per_s,
            figures.slot_tokens_per_s,
            figures.turns,
            figures.tokens,
            figures.env_s,
            figures.train_gpu_s,
        ];
        let known = measured.iter().all(|value| value.is_finite() && *value >= 0.0);
        if generators == 0 || trainers == 0 || !known || figures.generator_tokens_per_s <= 0.0 {
            bail!(
                "run={} was measured with generate workers={generators}, train workers={trainers}, tokens={}; \
                 measure a run whose workers are there, or one that a newer `millrace up` reported",
                figures.run,
                report.counters.sampled_tokens
            );
        }
        Ok(figures)
    }

    /// Sequences in flight on a worker while it generates, on average.
    pub(super) fn slots(&self) -> u32 {
        (self.generator_tokens_per_s / self.slot_tokens_per_s).round().max(1.0) as u32
    }

    /// Shares of the time of steps in which workers generate and train.
    pub(crate) fn busy(&self) -> (f64, f64) {
        let generates_s = self.step_tokens / self.generator_tokens_per_s / self.generators as f64;
        let trains_s = self.train_gpu_s / self.trainers as f64;
        ((generates_s / self.step_s).min(1.0), (trains_s / self.step_s).min(1.0))
    }
}

/// Mean seconds between the first and the last step; 0 for fewer than two.
pub(crate) fn mean_step_s(curve: &[CurvePoint]) -> f64 {
    let (Some(first), Some(last)) = (curve.first(), curve.last()) else { return 0.0 };
    let steps = last.version.saturating_sub(first.version).max(1);
    last.at_ms.saturating_sub(first.at_ms) as f64 / 1e3 / steps as f64
}

/// `generate workers idle for 52.0 %: …` where one side idles too much; `None` else. `measured` is
/// the folder or name of the run.
pub(crate) fn hint(generate_busy: f64, train_busy: f64, measured: &str) -> Option<String> {
    let idle = [("generate", 1.0 - generate_busy), ("train", 1.0 - train_busy)];
    let most = idle.into_iter().max_by(|(_, one), (_, other)| one.total_cmp(other));
    let (side, share) = most.filter(|(_, share)| *share > IDLE)?;
    Some(format!(
        "{side} workers idle {} of the time: `millrace plan RUN.toml --gpus N --measured {measured}` finds a \
         better split",
        percent(share)
    ))
}

#[cfg(test)]
mod tests;
