//! Checks of an algorithm: invalid numbers, the optimiser's settings, the KL term.

use super::{Aggregation, Algorithm, KlEstimator, KlPlace, Loss, Schedule};
use crate::submit::validate::Checks;

mod off_policy;
mod signal;

pub(in crate::submit) use signal::check as check_signal;

impl Algorithm {
    /// Everything in it that cannot work.
    pub(in crate::submit) fn check(&self, checks: &mut Checks) {
        checks.count("algorithm.epochs", u64::from(self.epochs), 1, 1_000);
        checks.count("algorithm.minibatches", u64::from(self.minibatches), 1, 10_000);
        checks.number("algorithm.entropy", self.entropy, 0.0, 10.0);
        checks.count(
            "algorithm.tokens_per_microbatch",
            u64::from(self.tokens_per_microbatch),
            1,
            u64::from(u32::MAX),
        );
        checks.require(
            self.recompute || !self.offload_activations,
            "algorithm.offload_activations",
            self.offload_activations,
            "only the inputs that algorithm.recompute keeps are offloaded; set that to true, or leave this out",
        );
        checks.require(
            !self.shard_weights || self.shard_gradients && self.recompute,
            "algorithm.shard_weights",
            self.shard_weights,
            "weights are gathered layer by layer, for each layer's gradient again; set algorithm.shard_gradients and \
             algorithm.recompute to true, or leave this out",
        );
        self.check_optimiser(checks);
        self.check_schedule(checks);
        self.check_clip(checks);
        self.check_ratio(checks);
        self.check_old(checks);
        self.check_correction(checks);
        self.check_aggregation(checks);
        self.check_kl(checks);
    }

    fn check_optimiser(&self, checks: &mut Checks) {
        checks.number("algorithm.learning_rate", self.learning_rate, 0.0, 10.0);
        checks.require(
            self.learning_rate != 0.0,
            "algorithm.learning_rate",
            0,
            "nothing would be learnt; choose a number above 0",
        );
        checks.number("algorithm.adam_beta1", self.adam_beta1, 0.0, 0.999_999_999);
        checks.number("algorithm.adam_beta2", self.adam_beta2, 0.0, 0.999_999_999);
        checks.number("algorithm.weight_decay", self.weight_decay, 0.0, 10.0);
        checks.number("algorithm.max_grad_norm", self.max_grad_norm, 1e-9, 1e9);
    }

    fn check_schedule(&self, checks: &mut Checks) {
        checks.number("algorithm.floor", self.floor, 0.0, 1.0);
        let comes_down = self.schedule != Schedule::Constant;
        checks.require(
            !comes_down || self.decay_steps > self.warmup_steps,
            "algorithm.decay_steps",
            self.decay_steps,
            format!(
                "the learning rate comes down after its rise; choose more than algorithm.warmup_steps = {}, the run's steps for example",
                self.warmup_steps
            ),
        );
        checks.require(
            comes_down || (self.decay_steps == 0 && self.floor == 0.0),
            "algorithm.schedule",
            "constant",
            "it never comes down; choose \"linear\" or \"cosine\", or leave out algorithm.decay_steps and algorithm.floor",
        );
    }

    fn check_clip(&self, checks: &mut Checks) {
        checks.number("algorithm.clip_low", self.clip_low, 0.0, 1.0);
        checks.number("algorithm.clip_high", self.clip_high, 0.0, 1e6);
        for (field, width) in [("algorithm.clip_low", self.clip_low), ("algorithm.clip_high", self.clip_high)]
        {
            checks.require(
                self.loss != Loss::Gspo || width <= 0.1,
                field,
                width,
                "the ratio of a whole rollout is a geometric mean, which such a bound never holds; choose about 0.0003 and 0.0004, at most 0.1",
            );
            checks.require(
                !self.loss.clips() || width > 0.0,
                field,
                width,
                "every token that moves at all would be held; choose a number above 0",
            );
        }
        let p = &self.parameters;
        checks.number("algorithm.parameters.dual_clip", p.dual_clip, 0.0, 1e6);
        let has_dual = matches!(self.loss, Loss::PpoClip | Loss::Gspo | Loss::Segment);
        checks.require(
            p.dual_clip == 0.0 || has_dual,
            "algorithm.parameters.dual_clip",
            p.dual_clip,
            "this loss has no such bound; choose algorithm.loss = \"ppo_clip\", or leave it out",
        );
        checks.require(
            p.dual_clip == 0.0 || p.dual_clip > 1.0 + self.clip_high,
            "algorithm.parameters.dual_clip",
            p.dual_clip,
            format!(
                "it bounds ratios that the clip leaves free; choose more than 1 + algorithm.clip_high = {}, 3 for example",
                1.0 + self.clip_high
            ),
        );
        checks.number("algorithm.parameters.tau", p.tau, 0.0, 1e3);
        checks.number("algorithm.parameters.delta", p.delta, 1e-6, 1.0);
        checks.number("algorithm.parameters.pull", p.pull, 0.0, 1e3);
    }

    fn check_ratio(&self, checks: &mut Checks) {
        let (levels, level) = (self.loss.ratio_levels(), self.ratio_level());
        let names: Vec<String> = levels.iter().map(|level| format!("{:?}", level.name())).collect();
        checks.require(
            levels.contains(&level),
            "algorithm.ratio",
            level.name(),
            format!(
                "this loss has another; choose {}, or algorithm.loss = \"gspo\", \"segment\", \"topr\" or \"cispo\"",
                names.join(" or ")
            ),
        );
    }

    fn check_aggregation(&self, checks: &mut Checks) {
        checks.require(
            self.loss != Loss::Gspo || self.aggregation == Aggregation::SeqMeanTokenMean,
            "algorithm.aggregation",
            self.aggregation.name(),
            "gspo is a mean over rollouts, and here a rollout would weigh by its length; choose \"seq_mean_token_mean\"",
        );
        let tokens = self.parameters.response_tokens;
        let divides = self.aggregation == Aggregation::SeqMeanTokenSumNorm;
        checks.require(
            divides == (tokens > 0),
            "algorithm.parameters.response_tokens",
            tokens,
            if divides {
                "seq_mean_token_sum_norm divides each rollout's sum by it; choose the most tokens that a rollout may have sampled: turns x rollout.max_new_tokens"
            } else {
                "only seq_mean_token_sum_norm divides by it; choose that as algorithm.aggregation, or leave it out"
            },
        );
    }

    fn check_kl(&self, checks: &mut Checks) {
        let Some(kl) = &self.kl else { return };
        checks.number("algorithm.kl.coefficient", kl.coefficient, 0.0, 1e3);
        checks.require(
            kl.coefficient != 0.0,
            "algorithm.kl.coefficient",
            0,
            "the reference model would be computed for nothing; choose a number above 0, or leave out algorithm.kl",
        );
        checks.require(
            kl.estimator != KlEstimator::K1 || kl.place == KlPlace::Reward,
            "algorithm.kl.estimator",
            "k1",
            "in the loss it has no pull: its gradient is 0 on average; choose \"k3\" or \"k2\", or algorithm.kl.place = \"reward\"",
        );
        if let Some(adapt) = &kl.adapt {
            checks.number("algorithm.kl.adapt.target", adapt.target, 1e-9, 1e3);
            checks.count("algorithm.kl.adapt.horizon", adapt.horizon, 1, 1_000_000_000_000);
        }
    }
}
