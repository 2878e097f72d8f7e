//! `submit`: the run file, in TOML or JSON. Strict: an unknown field or a value out of range is
//! refused before anything starts, naming the field, the value and the remedy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::blob::Sha;
use crate::env_step::{EnvironmentSpec, Settings};
use crate::generate::Sampling;
use crate::ids::{PoolName, RunId};
use crate::omit;
use crate::publish_weights::Retention;
use crate::reward::RewardRule;

mod model;
mod domain;
pub mod mix;
mod algorithm;
mod read;
mod stored;
mod validate;

pub use algorithm::{
    Advantage, Aggregation, Algorithm, Correction, CorrectionWeight, Critic, Kl, KlEstimator, KlPlace,
    KlTarget, Loss, NormOver, OldPolicy, Parameters, RatioLevel, Rejection, RewardNorm, Schedule, Shaping,
};
pub use domain::{Domain, DomainSpec};
pub use model::{ModelSpec, Precision};
pub(crate) use read::meant;
pub use read::{RunFileError, from_json, from_toml};
pub use stored::StoredTurns;
pub(crate) use validate::Checks;
pub use validate::Refusal;

/// One training job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// The run's name: a-z, 0-9, '-' and '_'. Also its id: a second submit of the same name is
    /// refused.
    pub name: RunId,
    /// Seeds prompts, sampling and initial weights. Default 1.
    #[serde(default = "RunSpec::default_seed")]
    pub seed: u64,
    /// Train steps; version `steps` is the last.
    pub steps: u64,
    /// The model.
    pub model: ModelSpec,
    /// The environment. Default: none, for a run with `domains`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub environment: Option<EnvironmentSpec>,
    /// Several environments instead of one, each with a share of every batch. Default [].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("default" = []))]
    pub domains: Vec<DomainSpec>,
    /// The rewards of rollouts, summed by weight. Default: the environment's return.
    #[serde(default = "RunSpec::default_rewards")]
    pub rewards: Vec<RewardSpec>,
    /// Settings of rollouts.
    #[serde(default)]
    pub rollout: RolloutSpec,
    /// Settings of training.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// Settings of evaluation on held-out prompts.
    #[serde(default)]
    pub evaluate: EvaluateSpec,
    /// The gang that makes a step.
    #[serde(default)]
    pub gang: GangSpec,
    /// Which versions are kept.
    #[serde(default)]
    pub weights: Retention,
}

impl RunSpec {
    const fn default_seed() -> u64 {
        1
    }

    fn default_rewards() -> Vec<RewardSpec> {
        vec![RewardSpec::of(RewardRule::EnvReturn)]
    }

    /// Identifies the run file: the hash of its JSON with all defaults filled in.
    ///
    /// # Panics
    /// Never: a run file holds only what JSON can express.
    #[must_use]
    pub fn hash(&self) -> Sha {
        Sha::of(&serde_json::to_vec(self).expect("a run file holds only what JSON can express"))
    }

    /// The bound on staleness that follows from the async ratio, in versions: `⌈alpha⌉`, or
    /// `⌊alpha⌋` if its fraction of a batch is less than a group.
    #[must_use]
    pub fn max_staleness(&self) -> u64 {
        (self.rollout.alpha.floor() as u64).saturating_add(u64::from(self.fraction_of_batch() > 0))
    }

    /// Groups of a batch that may be as many versions behind as the bound allows: all, or the
    /// fraction of alpha.
    #[must_use]
    pub fn oldest_groups(&self) -> u64 {
        match self.fraction_of_batch() {
            0 => self.rollout.groups_per_step.into(),
            part => part,
        }
    }

    /// Rollouts in flight or waiting to be trained, at most.
    #[must_use]
    pub fn rollouts_in_flight(&self) -> u64 {
        self.window_groups().saturating_mul(self.rollout.group_size.into())
    }

    /// `⌊frac(alpha) * groups_per_step⌋`. In binary, 0.29 of 100 are a little less than 29.
    fn fraction_of_batch(&self) -> u64 {
        const ROUNDING: f64 = 1e-6;
        let RolloutSpec { alpha, groups_per_step, .. } = self.rollout;
        (alpha.fract() * f64::from(groups_per_step) + ROUNDING).floor() as u64
    }

    /// The bound on tokens that may be drawn; `None` for the whole vocabulary.
    #[must_use]
    pub fn sample_below(&self) -> Option<u32> {
        self.parts().next()?.environment.actions().filter(|_| self.rollout.actions_only)
    }

    /// The sampling settings of its rollouts at `temperature`.
    #[must_use]
    pub fn sampling(&self, temperature: f64) -> Sampling {
        let RolloutSpec { top_p, top_k, min_p, ref stop_strings, .. } = self.rollout;
        let (sample_below, stop_strings) = (self.sample_below(), stop_strings.clone());
        Sampling { sample_below, top_p, top_k, min_p, stop_strings, ..Sampling::at(temperature) }
    }

    /// Groups that may be in flight or waiting to be trained: `(1 + alpha) * groups_per_step`, and
    /// the redundant ones.
    #[must_use]
    pub fn window_groups(&self) -> u64 {
        let RolloutSpec { alpha, groups_per_step, redundant_groups, .. } = self.rollout;
        let batches = (alpha.floor() as u64).saturating_add(1);
        let groups = batches.saturating_mul(groups_per_step.into()).saturating_add(self.fraction_of_batch());
        groups.saturating_add(redundant_groups.into())
    }
}

/// One reward of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardSpec {
    /// The rule.
    pub rule: RewardRule,
    /// Multiplies its score. Default 1.
    #[serde(default = "one")]
    pub weight: f64,
    /// With `custom`: the rule's name in your program, and the name of its pool. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub pool: Option<PoolName>,
    /// Settings of the rule, see workers/src/rewards/README.md. With `custom`: passed to the
    /// program. Default {}.
    #[serde(default, skip_serializing_if = "Settings::is_empty")]
    #[schemars(extend("default" = {}))]
    pub settings: Settings,
}

impl RewardSpec {
    /// A rule with weight 1.
    #[must_use]
    pub const fn of(rule: RewardRule) -> Self {
        Self { rule, weight: 1.0, pool: None, settings: Settings::new() }
    }

    /// Whether it reads the conversation.
    #[must_use]
    pub fn reads_words(&self) -> bool {
        // Without settings, `format` only uses the turns' results.
        self.rule.reads_words() || (self.rule == RewardRule::Format && !self.settings.is_empty())
    }

    /// The pool of its tasks.
    #[must_use]
    pub fn pool(&self) -> &str {
        self.pool.as_ref().map_or(self.rule.name(), PoolName::as_str)
    }
}

const fn one() -> f64 {
    1.0
}

/// Settings of rollouts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RolloutSpec {
    /// Groups (prompts) of a batch. Default 32.
    pub groups_per_step: u32,
    /// Rollouts of a group. Default 8.
    pub group_size: u32,
    /// The async ratio: how many versions a rollout may be behind the version it is trained on, and
    /// how many batches may be in flight besides the one in training. 0 is synchronous. Default 1.
    pub alpha: f64,
    /// Which finished groups are trained first. Default `oldest_first`.
    pub order: ConsumeOrder,
    /// Which groups are filtered and replaced at the current version. Default `none`.
    pub filter: GroupFilter,
    /// With `filter`: rewards whose standard deviation within their group is at most this count as
    /// equal. Default 0.000001.
    #[serde(skip_serializing_if = "is_equal_enough")]
    #[schemars(extend("default" = 0.000_001))]
    pub filter_deviation: f64,
    /// With `filter`: also filter a group whose mean reward is at most the first of these, or at
    /// least the second, because it is too hard or too easy. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub filter_means: Option<[f64; 2]>,
    /// Groups in flight beyond the window, so that no batch waits for the slowest. With an alpha of
    /// 0, those that are not finished when a batch is full are dropped at once, as `surplus`.
    /// Default 0.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = 0))]
    pub redundant_groups: u32,
    /// Milliseconds that a full batch waits for groups in play that its step would make too old. The
    /// longest rollouts of an asynchronous run then are trained on, and do not start again. What was
    /// lost with a worker is waited for too. 0: nothing is. Default 0.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = 0))]
    pub patience_ms: u64,
    /// Replacements of a rollout that failed, before its group is dropped. Default 3.
    pub max_replacements: u32,
    /// Tokens sampled in one turn at most. Default 1, the action of a game; a model with a tokenizer has
    /// no default.
    pub max_new_tokens: u32,
    /// Sampling temperature. Default 1.
    pub temperature: f64,
    /// Of the likeliest tokens, draw only those whose probabilities add up to this. 1 for all.
    /// Default 1.
    #[serde(skip_serializing_if = "omit::is_one")]
    #[schemars(extend("default" = 1.0))]
    pub top_p: f64,
    /// Draw only this many of the likeliest tokens. 0 for all. Default 0.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = 0))]
    pub top_k: u32,
    /// Draw only tokens at least this share as likely as the likeliest. 0 for all. Default 0.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = 0.0))]
    pub min_p: f64,
    /// Texts that end a turn, besides the model's own end tokens. Default [].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("default" = []))]
    pub stop_strings: Vec<String>,
    /// Partitions of the run's prompts among its generate workers. With more than 1 each worker
    /// serves partitions of its own first. So the turns of a rollout, and all samples of its
    /// prompt, go to the worker that has their prefix in its cache, as long as it has room, and to
    /// another if it has none or is gone. About 8 is right for 2 to 8 workers, 64 for more; 1 for
    /// workers without a cache. Default 1.
    #[serde(skip_serializing_if = "omit::is_single")]
    #[schemars(extend("default" = 1))]
    pub partitions: u32,
    /// Groups that start from turns of earlier rollouts. Default: none.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = { "share": 0.0, "keep": 64, "learnt": 0.5 }))]
    pub stored_turns: StoredTurns,
    /// Draw only tokens that are actions of the environment, in sampling and in training alike.
    /// Default true; if the environment uses text, all tokens are.
    pub actions_only: bool,
}

/// The default of `rollout.filter_deviation`.
const EQUAL_ENOUGH: f64 = 1e-6;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
fn is_equal_enough(deviation: &f64) -> bool {
    *deviation == EQUAL_ENOUGH
}

impl Default for RolloutSpec {
    fn default() -> Self {
        Self {
            groups_per_step: 32,
            group_size: 8,
            alpha: 1.0,
            order: ConsumeOrder::OldestFirst,
            filter: GroupFilter::None,
            filter_deviation: EQUAL_ENOUGH,
            filter_means: None,
            redundant_groups: 0,
            patience_ms: 0,
            max_replacements: 3,
            max_new_tokens: 1,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            stop_strings: Vec::new(),
            partitions: 1,
            stored_turns: StoredTurns::default(),
            actions_only: true,
        }
    }
}

/// Which finished groups a batch takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConsumeOrder {
    /// By admission: long rollouts are not placed behind short ones.
    OldestFirst,
    /// By completion: favours short rollouts.
    FinishOrder,
}

/// Which groups are filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupFilter {
    /// None.
    None,
    /// Groups whose rewards are all equal, by `filter_deviation` and `filter_means`: they carry no
    /// signal. After four batches' worth were filtered since the last step, such groups are trained
    /// all the same, so that a run on a solved task ends.
    EqualRewards,
}

/// The train workers that make a step together, each a shard of its batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GangSpec {
    /// Workers that make a step together. With 1 any train worker makes it alone. Default 1.
    pub ranks: u32,
    /// Workers that suffice if no more joined within `patience_ms`. Default 1.
    pub least: u32,
    /// Milliseconds that a step waits for workers to join while there are fewer than `ranks`.
    /// Default 10000.
    pub patience_ms: u64,
    /// Milliseconds that a rank waits for the others in the middle of a step before the step is
    /// void; more than one shard of a step may take. Default 60000.
    pub timeout_ms: u64,
}

impl Default for GangSpec {
    fn default() -> Self {
        Self { ranks: 1, least: 1, patience_ms: 10_000, timeout_ms: 60_000 }
    }
}

/// Evaluation on held-out prompts, before the first step and after the last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluateSpec {
    /// Held-out prompts; 0 for no evaluation. Default 128.
    pub prompts: u32,
    /// Also after every this many steps; 0 for never. Default 0.
    pub every: u64,
    /// Sampling temperature; 0 is greedy. Default 0.
    pub temperature: f64,
    /// Temperatures to evaluate at, one after the other, instead of `temperature`, which an empty
    /// list means. Each multiplies the cost. Default [].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("default" = []))]
    pub temperatures: Vec<f64>,
    /// Rollouts of each prompt at temperatures above 0; with more than 1 pass@k is reported.
    /// Default 1.
    #[serde(skip_serializing_if = "omit::is_single")]
    #[schemars(extend("default" = 1))]
    pub samples: u32,
}

impl EvaluateSpec {
    /// How many temperatures are tried.
    #[must_use]
    pub fn passes(&self) -> u32 {
        self.temperatures.len().max(1) as u32
    }

    /// Temperature and rollouts per prompt of the pass of this number, from 0. At temperature 0 all
    /// rollouts of a prompt are equal, so one is played.
    #[must_use]
    pub fn pass(&self, number: u32) -> (f64, u32) {
        let temperature = self.temperatures.get(number as usize).copied().unwrap_or(self.temperature);
        (temperature, if temperature > 0.0 { self.samples } else { 1 })
    }
}

impl Default for EvaluateSpec {
    fn default() -> Self {
        Self { prompts: 128, every: 0, temperature: 0.0, temperatures: Vec::new(), samples: 1 }
    }
}
