//! From a run file, what a person gives and what was measured to a request, with where each value is
//! from.

use anyhow::{Result, bail};
use millrace_schemas::RunSpec;
use millrace_schemas::plan::{MeasuredSplit, PlanRequest, Spread};
use millrace_schemas::submit::Refusal;

use super::figures::RunFigures;
use super::latencies::Latencies;

/// What is asked for.
pub(super) struct Question {
    pub(super) gpus: u32,
    pub(super) alphas: Vec<f64>,
    pub(super) seed: u64,
}

/// Values so far, and the words for people.
struct Draft<'a> {
    given: &'a Latencies,
    measured: Option<&'a RunFigures>,
    assumptions: Vec<String>,
    missing: Vec<String>,
    refusals: Vec<Refusal>,
}

/// Where a value is from.
#[derive(Clone, Copy)]
enum Source {
    Given,
    Measured,
    Default,
}

impl Source {
    const fn word(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Measured => "measured",
            Self::Default => "assumed",
        }
    }
}

/// The request.
///
/// # Errors
/// A value is missing or cannot work; the error has each field, its value and the remedy.
pub(super) fn assemble(
    spec: &RunSpec,
    given: &Latencies,
    measured: Option<&RunFigures>,
    question: Question,
) -> Result<PlanRequest> {
    let mut draft = Draft { given, measured, assumptions: vec![], missing: vec![], refusals: vec![] };
    draft.run();
    let slots = draft.slots();
    let slot_tokens_per_s = draft.pace(given.slot_tokens_per_s, |run| run.slot_tokens_per_s);
    let lone_tokens_per_s = draft.lone(slot_tokens_per_s);
    let (turns, tokens) = (draft.turns(), draft.tokens(spec));
    let env_s = draft.env();
    let reward_s = draft.seconds("a rollout's rewards take", given.reward_s, |run| run.reward_s);
    let train_gpu_s = draft.training(spec, &turns, &tokens);
    let train_step_s = draft.step();
    let load_s = draft.seconds("a generating GPU stops to load a version for", given.load_s, |_| 0.0);
    let least_trainers = given.least_trainers.unwrap_or(1);
    draft.assumptions.push(format!("at least {least_trainers} GPUs train, for the gang's memory"));
    draft.assumptions.push(format!(
        "a batch has {} groups of {}; a GPU is one worker; training is divided evenly among its GPUs",
        spec.rollout.groups_per_step, spec.rollout.group_size
    ));
    if !draft.missing.is_empty() || !draft.refusals.is_empty() {
        bail!(draft.why_not());
    }
    let request = PlanRequest {
        run: spec.name.to_string(),
        gpus: question.gpus,
        least_trainers,
        alphas: question.alphas,
        groups: spec.rollout.groups_per_step,
        group_size: spec.rollout.group_size,
        redundant_groups: spec.rollout.redundant_groups,
        patience_s: spec.rollout.patience_ms.div_ceil(1_000) as u32,
        turns,
        tokens,
        slots,
        slot_tokens_per_s,
        lone_tokens_per_s,
        env_s,
        reward_s,
        train_gpu_s,
        train_step_s,
        load_s,
        seed: question.seed,
        assumptions: draft.assumptions,
        measured: measured.map(RunFigures::split),
    };
    let refusals = request.refusals();
    if !refusals.is_empty() {
        bail!(unplannable(&refusals));
    }
    Ok(request)
}

fn unplannable(refusals: &[Refusal]) -> String {
    let lines: String = refusals.iter().map(|refusal| format!("\n  {refusal}")).collect();
    format!("nothing can be planned:{lines}")
}

impl Draft<'_> {
    fn run(&mut self) {
        let Some(run) = self.measured else { return };
        self.assumptions.push(format!(
            "measured is run {}: {} steps, {} workers that generate and {} that train; what its tasks waited for \
             in the queue is not simulated",
            run.run, run.steps, run.generators, run.trainers
        ));
    }

    /// What is given, else what was measured, and where it is from; `None` for neither.
    fn value(&self, given: Option<f64>, measured: impl Fn(&RunFigures) -> f64) -> Option<(f64, Source)> {
        let measured = self.measured.map(|run| (measured(run), Source::Measured));
        given.map(|value| (value, Source::Given)).or(measured)
    }

    /// All that is missing, and all that cannot be.
    fn why_not(&self) -> String {
        let missing = format!("the plan lacks latencies:\n  {}", self.missing.join("\n  "));
        match (self.missing.is_empty(), self.refusals.is_empty()) {
            (false, true) => missing,
            (true, _) => unplannable(&self.refusals),
            (false, false) => format!("{missing}\n{}", unplannable(&self.refusals)),
        }
    }

    fn refuse(&mut self, field: &str, value: f64, remedy: impl Into<String>) {
        self.refusals.push(Refusal { field: field.into(), value: value.to_string(), remedy: remedy.into() });
    }

    fn lack(&mut self, field: &str, option: &str) {
        let also = "a line of --latencies FILE, or --measured RUN";
        self.missing.push(format!("{field} = not given: give {option} X, {also}"));
    }

    fn slots(&mut self) -> u32 {
        let (slots, from) = match (self.given.slots, self.measured) {
            (Some(slots), _) => (slots, Source::Given),
            (None, Some(run)) => (run.slots(), Source::Measured),
            (None, None) => {
                self.lack("slots", "--slots");
                return 1;
            }
        };
        self.assumptions.push(format!("a GPU decodes {slots} sequences at once ({})", from.word()));
        slots
    }

    fn pace(&mut self, given: Option<f64>, measured: impl Fn(&RunFigures) -> f64) -> f64 {
        let Some((pace, from)) = self.value(given, measured) else {
            self.lack("slot_tokens_per_s", "--slot-tokens-per-s");
            return 1.0;
        };
        self.assumptions.push(format!("each of them samples {} tokens/s ({})", short(pace), from.word()));
        pace
    }

    fn lone(&mut self, slot_tokens_per_s: f64) -> f64 {
        let pace = self.given.lone_tokens_per_s;
        let from = if pace.is_some() { Source::Given } else { Source::Default };
        let pace = pace.unwrap_or(slot_tokens_per_s);
        self.assumptions.push(format!("one alone on its GPU {} tokens/s ({})", short(pace), from.word()));
        pace
    }

    /// A log-normal spread of this median, cut at `most`.
    fn spread(&mut self, what: &str, (median, from): (f64, Source), sigma: Option<f64>, most: f64) -> Spread {
        let sigma = sigma.unwrap_or(0.0);
        let how =
            if sigma == 0.0 { "each".to_owned() } else { format!("median, log-normal with sigma {sigma}") };
        self.assumptions.push(format!("{what}: {} {how} ({})", short(median), from.word()));
        Spread::LogNormal { median, sigma, most: if sigma == 0.0 { median } else { most } }
    }

    fn turns(&mut self) -> Spread {
        let lengths = self.measured.and_then(|run| run.lengths.as_ref());
        if let (None, Some(lengths)) = (self.given.turns, lengths) {
            self.assumptions.push(format!(
                "turns and tokens are distributed as in {} rollouts of the last batches (measured)",
                lengths.rollouts
            ));
            return lengths.turns.clone();
        }
        let turns = self.value(self.given.turns, |run| run.turns).unwrap_or((1.0, Source::Default));
        self.spread("turns of a rollout", turns, self.given.turns_sigma, 250.0)
    }

    fn tokens(&mut self, spec: &RunSpec) -> Spread {
        let most = f64::from(spec.rollout.max_new_tokens);
        let sigma = self.given.tokens_sigma;
        // The mean of a log-normal distribution is its median times exp(σ²/2).
        let of_mean = |mean: f64| mean / (sigma.unwrap_or(0.0).powi(2) / 2.0).exp();
        let given = self.given.tokens_median.or(self.given.tokens.map(of_mean));
        let lengths = self.measured.and_then(|run| run.lengths.as_ref());
        if let (None, Some(lengths)) = (given, lengths) {
            return lengths.tokens.clone();
        }
        let Some(median) = self.value(given, |run| of_mean(run.tokens)) else {
            self.lack("tokens", "--tokens");
            return Spread::LogNormal { median: 1.0, sigma: 0.0, most: 1.0 };
        };
        if median.0 > most {
            let (field, value) = match (self.given.tokens_median, self.given.tokens) {
                (Some(median), _) => ("tokens_median", median),
                (None, Some(mean)) => ("tokens", mean),
                (None, None) => ("measured tokens", median.0),
            };
            let half = if value == median.0 {
                String::new()
            } else {
                format!("half of the turns have {} or more, and ", short(median.0))
            };
            let remedy = "give no more, or raise it in the run file";
            let remedy = format!("{half}a turn has at most rollout.max_new_tokens = {most}; {remedy}");
            self.refuse(field, value, remedy);
        }
        self.spread("tokens of a turn", median, sigma, most.max(1.0))
    }

    fn env(&mut self) -> Spread {
        let env_s = self.value(self.given.env_s, |run| run.env_s).unwrap_or((0.0, Source::Default));
        self.spread("seconds of an environment's reset or step", env_s, self.given.env_sigma, 1e6)
    }

    fn seconds(&mut self, what: &str, given: Option<f64>, measured: impl Fn(&RunFigures) -> f64) -> f64 {
        let (seconds, from) = match self.value(given, measured) {
            Some((seconds, Source::Measured)) if seconds == 0.0 => (seconds, Source::Default),
            Some(found) => found,
            None => (0.0, Source::Default),
        };
        self.assumptions.push(format!("{what} {} s ({})", short(seconds), from.word()));
        seconds
    }

    /// GPU-seconds of a batch.
    fn training(&mut self, spec: &RunSpec, turns: &Spread, tokens: &Spread) -> f64 {
        let rollouts = f64::from(spec.rollout.groups_per_step) * f64::from(spec.rollout.group_size);
        let epochs = f64::from(spec.algorithm.epochs);
        let (gpu_s, words) = match (self.given.train_sample_s, self.given.train_token_s, self.measured) {
            (Some(sample_s), None, _) => (
                rollouts * epochs * sample_s,
                format!("{} s a rollout and epoch, {epochs} epochs (given)", short(sample_s)),
            ),
            (None, Some(token_s), _) => (
                rollouts * epochs * token_s * mean(turns) * mean(tokens),
                format!("{} s a sampled token and epoch, {epochs} epochs (given)", short(token_s)),
            ),
            (None, None, Some(run)) => (run.train_gpu_s, "measured".to_owned()),
            (None, None, None) => {
                self.lack("train_sample_s", "--train-sample-s or --train-token-s");
                (0.0, String::new())
            }
            (Some(sample_s), Some(_), _) => {
                self.refuse("train_sample_s", sample_s, "train_token_s is given too; give one of them");
                (0.0, String::new())
            }
        };
        self.assumptions.push(format!("training takes {} GPU-seconds a batch: {words}", short(gpu_s)));
        gpu_s
    }

    fn step(&mut self) -> f64 {
        let step_s =
            self.seconds("a train step has, whatever the GPUs, another", self.given.train_step_s, |_| 0.0);
        step_s + self.seconds("a version's commit takes", self.given.publish_s, |run| run.publish_s)
    }
}

impl RunFigures {
    fn split(&self) -> MeasuredSplit {
        let count = |workers: u64| u32::try_from(workers).unwrap_or(u32::MAX);
        MeasuredSplit {
            generate: count(self.generators),
            train: count(self.trainers),
            alpha: self.alpha,
            step_s: self.step_s,
        }
    }
}

/// The mean of a spread; of a log-normal one before it is cut.
fn mean(spread: &Spread) -> f64 {
    match spread {
        Spread::LogNormal { median, sigma, .. } => median * (sigma.powi(2) / 2.0).exp(),
        Spread::Quantiles { values } => values.iter().sum::<f64>() / values.len().max(1) as f64,
    }
}

/// Four digits that say something.
fn short(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { (3 - value.abs().log10().floor() as i32).clamp(0, 9) };
    let text = format!("{value:.*}", digits as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests;
