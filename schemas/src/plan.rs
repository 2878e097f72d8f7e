//! What `millrace plan` asks of the simulator, in JSON on its input: how long everything takes, and
//! among which splits and async ratios it may choose.

use serde::{Deserialize, Serialize};

use crate::limits;
use crate::submit::{Checks, Refusal};

/// GPUs that a plan divides at most: more splits are more than seconds of simulation.
const MAX_GPUS: u32 = 4_096;
/// Sequences that a GPU decodes at once, at most.
const MAX_SLOTS: u32 = 4_096;
/// Rollouts of a batch, at most: a simulated rollout costs as much as a real one's way through the
/// queue.
const MAX_ROLLOUTS: u64 = 65_536;
/// Turns of a rollout that the simulator plays, at most.
const MAX_TURNS: f64 = 250.0;
/// A greater async ratio would train on rollouts that are mostly dropped as stale.
const MAX_ALPHA: f64 = 16.0;
/// Seconds of a turn, at most: the simulator's clock does not count for ever.
const MOST_TURN_S: f64 = 1e9;
/// Quantiles of a measured distribution, at most.
const MAX_QUANTILES: usize = 1_001;

/// How a quantity is distributed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Spread {
    /// Log-normal, cut at `most`; a `sigma` of 0 is a constant.
    LogNormal {
        /// The median before it is cut.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// A greater draw counts as this.
        most: f64,
    },
    /// As measured: values at evenly spaced shares, ascending, from the least to the greatest. One
    /// or more.
    Quantiles {
        /// The values.
        values: Vec<f64>,
    },
}

/// A question of `millrace plan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// The run's name, for the output.
    pub run: String,
    /// GPUs to divide into those that generate and those that train.
    pub gpus: u32,
    /// GPUs that the gang needs at least, for its memory.
    pub least_trainers: u32,
    /// Async ratios to choose among, ascending, without repetition.
    pub alphas: Vec<f64>,
    /// Groups of a batch.
    pub groups: u32,
    /// Rollouts of a group.
    pub group_size: u32,
    /// Groups in flight beyond the window.
    pub redundant_groups: u32,
    /// Seconds that a full batch waits for what its step would make too old.
    #[serde(default)]
    pub patience_s: u32,
    /// Turns of a rollout, 1 to 250.
    pub turns: Spread,
    /// Tokens sampled in a turn.
    pub tokens: Spread,
    /// Sequences that a GPU decodes at once.
    pub slots: u32,
    /// Tokens a second of each sequence when all slots are taken.
    pub slot_tokens_per_s: f64,
    /// Tokens a second of a sequence that is alone on its GPU: at least `slot_tokens_per_s`.
    pub lone_tokens_per_s: f64,
    /// Seconds of an environment's reset or step.
    pub env_s: Spread,
    /// Seconds of a rollout's rewards.
    pub reward_s: f64,
    /// GPU-seconds of training on a batch, all epochs.
    pub train_gpu_s: f64,
    /// Seconds of a train step that more GPUs do not shorten, the commit of the version among them.
    pub train_step_s: f64,
    /// Seconds in which a GPU that generates loads a new version.
    pub load_s: f64,
    /// Draws lengths and latencies.
    pub seed: u64,
    /// Where each of the above is from, for people.
    pub assumptions: Vec<String>,
    /// What was measured, to hold the simulator against; `None` without a measured run.
    pub measured: Option<MeasuredSplit>,
}

/// A split that a real run had, and how long its steps took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredSplit {
    /// Workers that generated.
    pub generate: u32,
    /// Workers that trained.
    pub train: u32,
    /// The async ratio.
    pub alpha: f64,
    /// Mean seconds of a step.
    pub step_s: f64,
}

impl PlanRequest {
    /// Values with which nothing can be planned, each with field, value and remedy.
    #[must_use]
    pub fn refusals(&self) -> Vec<Refusal> {
        let mut checks = Checks::default();
        checks.require(
            (2..=MAX_GPUS).contains(&self.gpus),
            "gpus",
            self.gpus,
            format!(
                "choose 2 to {MAX_GPUS}: one generates and one trains; with 1, let it do both in turn \
                 (`millrace up --generate 0 --time-division 1`)"
            ),
        );
        checks.require(
            (1..self.gpus.max(2)).contains(&self.least_trainers),
            "least_trainers",
            self.least_trainers,
            format!("choose 1 to {}, so that a GPU is left to generate", self.gpus.saturating_sub(1).max(1)),
        );
        self.check_alphas(&mut checks);
        checks.count("rollout.groups_per_step", self.groups.into(), 1, limits::MAX_GROUPS_PER_STEP.into());
        checks.count("rollout.group_size", self.group_size.into(), 1, limits::MAX_GROUP_SIZE.into());
        let rollouts = u64::from(self.groups) * u64::from(self.group_size);
        checks.require(
            rollouts <= MAX_ROLLOUTS,
            "rollout.groups_per_step * rollout.group_size",
            rollouts,
            format!("plan a batch of at most {MAX_ROLLOUTS} rollouts, and scale the GPUs with it"),
        );
        self.turns.check("turns", 1.0, MAX_TURNS, &mut checks);
        self.tokens.check("tokens", 1.0, 1e9, &mut checks);
        self.env_s.check("env_s", 0.0, 1e6, &mut checks);
        checks.count("slots", self.slots.into(), 1, MAX_SLOTS.into());
        self.check_paces(&mut checks);
        let times = [
            ("reward_s", self.reward_s),
            ("train_gpu_s", self.train_gpu_s),
            ("train_step_s", self.train_step_s),
            ("load_s", self.load_s),
        ];
        for (field, value) in times {
            checks.require((0.0..=1e9).contains(&value), field, value, "give seconds, 0 to 1e9");
        }
        checks.0
    }

    fn check_paces(&self, checks: &mut Checks) {
        let paces =
            [("slot_tokens_per_s", self.slot_tokens_per_s), ("lone_tokens_per_s", self.lone_tokens_per_s)];
        for (field, value) in paces {
            let fits = value > 0.0 && value <= 1e9;
            checks.require(fits, field, value, "give tokens a second, more than 0 and at most 1e9");
        }
        let (pace, tokens) = (self.slot_tokens_per_s, self.tokens.greatest());
        let never_ends = pace > 0.0 && tokens / pace > MOST_TURN_S;
        checks.require(
            !never_ends,
            "slot_tokens_per_s",
            format!("{pace:e}"),
            format!(
                "a turn of {tokens:.0} tokens would take more than {MOST_TURN_S:e} s; give tokens a second, at least {:e}",
                tokens / MOST_TURN_S
            ),
        );
        let slower_alone = self.lone_tokens_per_s < self.slot_tokens_per_s;
        checks.require(
            !slower_alone,
            "lone_tokens_per_s",
            self.lone_tokens_per_s,
            "a sequence alone on its GPU is not slower than one of many; give at least slot_tokens_per_s",
        );
        let slower_together =
            self.lone_tokens_per_s > f64::from(self.slots) * self.slot_tokens_per_s * (1.0 + 1e-9);
        checks.require(
            !slower_together,
            "lone_tokens_per_s",
            self.lone_tokens_per_s,
            "all slots together are not slower than one sequence; give at most slots * slot_tokens_per_s",
        );
    }

    fn check_alphas(&self, checks: &mut Checks) {
        let shown = format!("{:?}", self.alphas);
        let in_range = |alpha: &f64| (0.0..=MAX_ALPHA).contains(alpha);
        checks.require(
            !self.alphas.is_empty() && self.alphas.iter().all(in_range),
            "alpha",
            &shown,
            format!("give one or more from 0 to {MAX_ALPHA}, with commas: 0,1,2,4"),
        );
        let ascends = self.alphas.windows(2).all(|pair| pair[0] < pair[1]);
        checks.require(ascends, "alpha", &shown, "give each once, ascending");
    }
}

impl Spread {
    fn greatest(&self) -> f64 {
        match self {
            Self::LogNormal { most, .. } => *most,
            Self::Quantiles { values } => values.last().copied().unwrap_or(0.0),
        }
    }

    fn check(&self, field: &str, least: f64, greatest: f64, checks: &mut Checks) {
        let in_range = |value: f64| (least..=greatest).contains(&value);
        match self {
            Self::LogNormal { median, sigma, most } => {
                let remedy = format!("choose {least} to {greatest}");
                checks.require(in_range(*median), &format!("{field}.median"), median, &remedy);
                checks.require(
                    (0.0..=5.0).contains(sigma),
                    &format!("{field}.sigma"),
                    sigma,
                    "choose 0 to 5: the standard deviation of the logarithm",
                );
                let fits = in_range(*most) && most >= median;
                checks.require(
                    fits,
                    &format!("{field}.most"),
                    most,
                    format!("{remedy}, and at least the median"),
                );
            }
            Self::Quantiles { values } => {
                let ascends = values.windows(2).all(|pair| pair[0] <= pair[1]);
                checks.require(
                    (1..=MAX_QUANTILES).contains(&values.len())
                        && values.iter().all(|value| in_range(*value))
                        && ascends,
                    &format!("{field}.values"),
                    format!("{values:?}"),
                    format!("give 1 to {MAX_QUANTILES} numbers from {least} to {greatest}, ascending"),
                );
            }
        }
    }

    /// The quantiles of a sample: itself if it is small.
    #[must_use]
    pub fn of_sample(mut sample: Vec<f64>) -> Option<Self> {
        sample.retain(|value| value.is_finite());
        sample.sort_unstable_by(f64::total_cmp);
        let last = sample.len().checked_sub(1)?;
        let count = sample.len().min(MAX_QUANTILES);
        let at = |index: usize| if count > 1 { index * last / (count - 1) } else { 0 };
        Some(Self::Quantiles { values: (0..count).map(|index| sample[at(index)]).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> PlanRequest {
        let constant = |value: f64| Spread::LogNormal { median: value, sigma: 0.0, most: value };
        PlanRequest {
            run: "sample".into(),
            gpus: 8,
            least_trainers: 1,
            alphas: vec![0.0, 1.0],
            groups: 8,
            group_size: 4,
            redundant_groups: 0,
            patience_s: 0,
            turns: constant(1.0),
            tokens: constant(100.0),
            slots: 8,
            slot_tokens_per_s: 10.0,
            lone_tokens_per_s: 10.0,
            env_s: constant(0.0),
            reward_s: 0.0,
            train_gpu_s: 10.0,
            train_step_s: 0.0,
            load_s: 0.0,
            seed: 1,
            assumptions: vec![],
            measured: None,
        }
    }

    #[test]
    fn what_cannot_be_planned_is_refused_with_field_value_and_remedy() {
        assert!(request().refusals().is_empty(), "{:?}", request().refusals());
        let wrong: [(PlanRequest, &str); 11] = [
            (PlanRequest { gpus: 1, ..request() }, "gpus = 1: choose 2 to"),
            (PlanRequest { least_trainers: 8, ..request() }, "least_trainers = 8: choose 1 to 7"),
            (
                PlanRequest { alphas: vec![17.0], ..request() },
                "alpha = [17.0]: give one or more from 0 to 16",
            ),
            (PlanRequest { alphas: vec![f64::NAN], ..request() }, "alpha = [NaN]: "),
            (PlanRequest { alphas: vec![], ..request() }, "alpha = []: "),
            (PlanRequest { alphas: vec![1.0, 1.0], ..request() }, "give each once"),
            (PlanRequest { slot_tokens_per_s: f64::NAN, ..request() }, "slot_tokens_per_s = NaN: "),
            (PlanRequest { slot_tokens_per_s: 1e-9, ..request() }, "slot_tokens_per_s = 1e-9: a turn of 100"),
            (PlanRequest { lone_tokens_per_s: 1.0, ..request() }, "lone_tokens_per_s = 1: "),
            (PlanRequest { lone_tokens_per_s: 81.0, ..request() }, "at most slots"),
            (PlanRequest { train_gpu_s: -1.0, ..request() }, "train_gpu_s = -1: give seconds"),
        ];
        for (request, said) in wrong {
            let refusals: Vec<String> = request.refusals().iter().map(ToString::to_string).collect();
            assert!(refusals.iter().any(|refusal| refusal.contains(said)), "{said}: {refusals:?}");
        }
        let tokens = Spread::Quantiles { values: vec![3.0, 2.0] };
        assert!(PlanRequest { tokens, ..request() }.refusals()[0].field == "tokens.values");
    }

    #[test]
    fn quantiles_keep_both_ends_of_a_sample() {
        let sample: Vec<f64> = (0..50_000).rev().map(f64::from).collect();
        let Some(Spread::Quantiles { values }) = Spread::of_sample(sample) else { panic!("no quantiles") };
        assert_eq!((values.len(), values[0], values[1_000]), (MAX_QUANTILES, 0.0, 49_999.0));
        assert_eq!(Spread::of_sample(vec![]), None);
        assert_eq!(Spread::of_sample(vec![2.0, 1.0]), Some(Spread::Quantiles { values: vec![1.0, 2.0] }));
    }
}
