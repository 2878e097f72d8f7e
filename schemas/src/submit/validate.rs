//! Checks of a run file's values.

use serde::Serialize;
use std::fmt;

use super::{
    ConsumeOrder, EvaluateSpec, GangSpec, GroupFilter, ModelSpec, RewardSpec, RolloutSpec, RunSpec, algorithm,
};
use crate::reward::RewardRule;
use crate::text::shown;
use crate::{PoolName, limits, subjects};

mod dataset;
mod domains;
mod environment;
mod products;
mod sampling;
mod agent;
mod stored;
pub(super) mod unused;

/// One value that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Path to the field, `rollout.group_size`.
    pub field: String,
    /// The value.
    pub value: String,
    /// The mistake, and what to write instead.
    pub remedy: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}", self.field, self.value, self.remedy)
    }
}

/// Gathers refusals.
#[derive(Default)]
pub(crate) struct Checks(pub(crate) Vec<Refusal>);

impl Checks {
    pub(crate) fn require(
        &mut self,
        ok: bool,
        field: &str,
        value: impl fmt::Display,
        remedy: impl Into<String>,
    ) {
        if !ok && self.0.len() < limits::MAX_REFUSALS {
            let short = |text: &str| shown(text, limits::MAX_SHOWN_BYTES);
            let (field, value) = (short(field), short(&value.to_string()));
            self.0.push(Refusal { field, value, remedy: remedy.into() });
        }
    }

    pub(crate) fn count(&mut self, field: &str, value: u64, low: u64, high: u64) {
        self.require(
            (low..=high).contains(&value),
            field,
            value,
            format!("choose a whole number from {low} to {high}"),
        );
    }

    pub(crate) fn number(&mut self, field: &str, value: f64, low: f64, high: f64) {
        // NaN is in no range.
        self.require(
            value >= low && value <= high,
            field,
            value,
            format!("choose a number from {low} to {high}"),
        );
    }
}

impl RunSpec {
    /// Everything in the run file that cannot work; empty if all can.
    #[must_use]
    pub fn refusals(&self) -> Vec<Refusal> {
        let mut checks = Checks::default();
        checks.require(
            !subjects::RESERVED_RUNS.contains(&self.name.as_str()),
            "name",
            &self.name,
            "this word has a meaning of its own in subjects; choose another",
        );
        checks.count("steps", self.steps, 1, limits::MAX_STEPS);
        domains::check(self, &mut checks);
        self.check_model(&mut checks);
        environment::check(self, &mut checks);
        self.check_rewards(&mut checks);
        self.check_rollout(&mut checks);
        self.algorithm.check(&mut checks);
        algorithm::check_signal(self, &mut checks);
        check_gang(&self.gang, &mut checks);
        check_evaluate(&self.evaluate, &mut checks);
        checks.count("weights.checkpoint_every", self.weights.checkpoint_every, 1, limits::MAX_STEPS);
        checks.count("weights.anchor_every", self.weights.anchor_every, 1, limits::MAX_STEPS);
        checks.count("weights.every", self.weights.every, 0, limits::MAX_STEPS);
        let least = self.max_staleness().max(1).saturating_add(1);
        checks.require(
            self.weights.newest >= least,
            "weights.newest",
            self.weights.newest,
            format!("keep at least {least}: workers may still be on the version before, and rollouts up to alpha behind"),
        );
        checks.require(
            self.weights.newest <= limits::MAX_STEPS,
            "weights.newest",
            self.weights.newest,
            format!("choose at most {}, which keeps every version of any run", limits::MAX_STEPS),
        );
        checks.0
    }

    fn check_model(&self, checks: &mut Checks) {
        let speaks_text = matches!(self.model, ModelSpec::HuggingFace { .. });
        let remedy = if speaks_text {
            "a model with a tokenizer needs an environment that speaks text, arithmetic for example"
        } else {
            "this environment speaks text, which takes a tokenizer; choose model.kind = \"hugging_face\""
        };
        for (i, domain) in self.parts().enumerate() {
            let fits = domain.environment.speaks_text() == speaks_text;
            checks.require(fits, &self.path_of(i, "environment.name"), domain.environment.name(), remedy);
        }
        match &self.model {
            ModelSpec::Decoder { .. } => check_decoder(&self.model, checks),
            ModelSpec::HuggingFace { path, .. } => {
                checks.require(
                    !path.trim().is_empty() && path.len() <= limits::MAX_PATH_BYTES,
                    "model.path",
                    format!("{path:?}"),
                    "name the model's directory on the machine of the train worker",
                );
                let rate = self.algorithm.learning_rate;
                checks.require(
                    rate <= 1e-3,
                    "algorithm.learning_rate",
                    rate,
                    "a pretrained model forgets what it knows at such steps; choose about 1e-5",
                );
            }
            ModelSpec::Scripted => return,
        }
        let needed = self.parts().filter_map(|domain| domain.environment.vocabulary()).max();
        if let (Some(vocabulary), Some(needed)) = (self.model.vocabulary(), needed) {
            checks.require(
                vocabulary >= needed,
                "model.vocabulary",
                vocabulary,
                format!("the environment uses {needed} tokens; choose at least that"),
            );
        }
        if let Some(context) = self.model.context() {
            checks.count("model.context", u64::from(context), 2, limits::MAX_CONTEXT_TOKENS as u64);
            let needed = self.parts().map(|domain| domain.longest_rollout()).max().unwrap_or(0);
            checks.require(
                u64::from(context) >= needed,
                "model.context",
                context,
                format!(
                    "a rollout may have {needed} tokens; choose at least that, or fewer environment.max_turns"
                ),
            );
        }
    }

    fn check_rewards(&self, checks: &mut Checks) {
        check_rewards("rewards", &self.rewards, checks);
        for (i, domain) in self.domains.iter().enumerate() {
            if let Some(rewards) = &domain.rewards {
                check_rewards(&format!("domains[{i}].rewards"), rewards, checks);
            }
        }
        for (i, domain) in self.parts().enumerate() {
            let at = self.path_of(i, "rewards");
            for (k, reward) in domain.rewards.iter().enumerate() {
                checks.require(
                    reward.rule == RewardRule::Custom
                        || !reward.reads_words()
                        || domain.environment.speaks_text(),
                    &format!("{at}[{k}].rule"),
                    reward.rule.name(),
                    "this rule reads text, and the environment uses tokens; choose one that uses text",
                );
            }
        }
    }

    fn check_rollout(&self, checks: &mut Checks) {
        let r = &self.rollout;
        checks.count(
            "rollout.groups_per_step",
            u64::from(r.groups_per_step),
            1,
            u64::from(limits::MAX_GROUPS_PER_STEP),
        );
        checks.count("rollout.group_size", u64::from(r.group_size), 1, u64::from(limits::MAX_GROUP_SIZE));
        checks.number("rollout.alpha", r.alpha, 0.0, limits::MAX_ALPHA);
        checks.count("rollout.max_replacements", u64::from(r.max_replacements), 0, 100);
        checks.count(
            "rollout.max_new_tokens",
            u64::from(r.max_new_tokens),
            1,
            u64::from(limits::MAX_NEW_TOKENS),
        );
        checks.count(
            "rollout.redundant_groups",
            u64::from(r.redundant_groups),
            0,
            u64::from(limits::MAX_GROUPS_PER_STEP),
        );
        check_patience(r, checks);
        check_filter(r, checks);
        checks.count("rollout.partitions", u64::from(r.partitions), 1, u64::from(limits::MAX_PARTITIONS));
        checks.number("rollout.temperature", r.temperature, 0.01, 100.0);
        products::check(self, checks);
        sampling::check(self, checks);
        stored::check(self, checks);
    }
}

fn check_evaluate(evaluate: &EvaluateSpec, checks: &mut Checks) {
    let EvaluateSpec { prompts, temperature, ref temperatures, samples, every, .. } = *evaluate;
    checks.count("evaluate.every", every, 0, limits::MAX_STEPS);
    checks.count("evaluate.prompts", u64::from(prompts), 0, u64::from(limits::MAX_EVALUATE_PROMPTS));
    checks.number("evaluate.temperature", temperature, 0.0, 100.0);
    let most = limits::MAX_EVALUATE_TEMPERATURES;
    let count = temperatures.len();
    checks.require(count <= most, "evaluate.temperatures", count, format!("name {most} at most"));
    for (i, temperature) in temperatures.iter().enumerate() {
        checks.number(&format!("evaluate.temperatures[{i}]"), *temperature, 0.0, 100.0);
    }
    checks.count("evaluate.samples", u64::from(samples), 1, u64::from(limits::MAX_EVALUATE_SAMPLES));
    let rollouts = u64::from(prompts) * u64::from(samples.max(1));
    checks.require(
        rollouts <= u64::from(limits::MAX_EVALUATE_PROMPTS),
        "evaluate.samples",
        samples,
        format!("{prompts} prompts make {rollouts} rollouts; {} are the most", limits::MAX_EVALUATE_PROMPTS),
    );
}

fn check_decoder(model: &ModelSpec, checks: &mut Checks) {
    let ModelSpec::Decoder { vocabulary, layers, width, heads, feed_forward, init_std, .. } = model else {
        return;
    };
    let most = u64::from(limits::MAX_MODEL_DIMENSION);
    checks.count("model.vocabulary", u64::from(*vocabulary), 2, most);
    checks.count("model.layers", u64::from(*layers), 1, 1_000);
    checks.count("model.width", u64::from(*width), 2, most);
    checks.count("model.heads", u64::from(*heads), 1, 1_000);
    checks.count("model.feed_forward", u64::from(*feed_forward), 1, most);
    checks.number("model.init_std", *init_std, 1e-6, 1.0);
    checks.require(
        *heads > 0 && u64::from(*width).is_multiple_of(2 * u64::from(*heads)),
        "model.width",
        width,
        format!("choose a multiple of 2 x model.heads = {}", 2 * u64::from(*heads)),
    );
}

fn check_patience(rollout: &RolloutSpec, checks: &mut Checks) {
    let RolloutSpec { patience_ms, order, redundant_groups, .. } = *rollout;
    checks.count("rollout.patience_ms", patience_ms, 0, 24 * 3_600_000);
    checks.require(
        patience_ms == 0 || order == ConsumeOrder::OldestFirst,
        "rollout.patience_ms",
        patience_ms,
        "a batch in the order of finishing has no place for the groups that it waits for; \
         choose 0, or order = \"oldest_first\"",
    );
    checks.require(
        patience_ms == 0 || redundant_groups == 0,
        "rollout.patience_ms",
        patience_ms,
        "redundant_groups are there so that no batch waits for the slowest; choose 0 for one of them",
    );
}

fn check_filter(rollout: &RolloutSpec, checks: &mut Checks) {
    let (most, plain) = (limits::MAX_REWARD, RolloutSpec::default());
    checks.number("rollout.filter_deviation", rollout.filter_deviation, 0.0, most);
    let [low, high] = rollout.filter_means.unwrap_or([-most, most]);
    checks.number("rollout.filter_means[0]", low, -most, most);
    checks.number("rollout.filter_means[1]", high, -most, most);
    checks.require(
        low < high,
        "rollout.filter_means",
        format!("[{low}, {high}]"),
        "no group would be left; the first must be less than the second",
    );
    let is_set =
        rollout.filter_deviation != plain.filter_deviation || rollout.filter_means != plain.filter_means;
    checks.require(
        !is_set || rollout.filter != GroupFilter::None,
        "rollout.filter",
        "none",
        "filter_deviation and filter_means say which groups a filter leaves out; choose \"equal_rewards\"",
    );
}

fn check_gang(gang: &GangSpec, checks: &mut Checks) {
    checks.count("gang.ranks", u64::from(gang.ranks), 1, u64::from(limits::MAX_RANKS));
    checks.count("gang.least", u64::from(gang.least), 1, u64::from(gang.ranks.max(1)));
    checks.count("gang.patience_ms", gang.patience_ms, 0, 24 * 3_600_000);
    checks.count("gang.timeout_ms", gang.timeout_ms, 1_000, 24 * 3_600_000);
}

fn check_rewards(at: &str, rewards: &[RewardSpec], checks: &mut Checks) {
    let n = rewards.len();
    let most = limits::MAX_REWARDS;
    checks.require((1..=most).contains(&n), at, n, format!("name 1 to {most} rewards"));
    for (i, reward) in rewards.iter().enumerate() {
        checks.number(&format!("{at}[{i}].weight"), reward.weight, -1e6, 1e6);
        let custom = reward.rule == RewardRule::Custom;
        let ours = RewardRule::BUILT_IN.iter().any(|rule| rule.name() == reward.pool());
        checks.require(
                reward.pool.is_some() == custom,
                &format!("{at}[{i}].pool"),
                reward.pool.as_ref().map_or("none", PoolName::as_str),
                "a rule of your own, rule = \"custom\", has the name that your program gives it; other rules have none",
            );
        checks.require(
            !(custom && ours),
            &format!("{at}[{i}].pool"),
            reward.pool(),
            "a rule that comes with Millrace has this name; give yours another",
        );
        for wrong in reward.rule.wrong_settings(&reward.settings) {
            let dot = if wrong.field.is_empty() { "" } else { "." };
            let field = format!("{at}[{i}].settings{dot}{}", wrong.field);
            checks.require(false, &field, wrong.value, wrong.remedy);
        }
    }
    let all_zero = n > 0 && rewards.iter().all(|reward| reward.weight == 0.0);
    checks.require(
        !all_zero,
        at,
        "all weights 0",
        "no rollout could ever be better than another; give one reward a weight",
    );
}
