//! Bounds on products of values, each of which is within its own bound.

use super::Checks;
use crate::limits::{MAX_MODEL_PARAMETERS, MAX_ROLLOUTS_IN_FLIGHT, MAX_TOKENS_IN_FLIGHT};
use crate::submit::{ModelSpec, RunSpec};

pub(super) fn check(spec: &RunSpec, checks: &mut Checks) {
    let (groups, size, rollouts) = (spec.window_groups(), spec.rollout.group_size, spec.rollouts_in_flight());
    checks.require(
        rollouts <= MAX_ROLLOUTS_IN_FLIGHT,
        "rollout.groups_per_step",
        spec.rollout.groups_per_step,
        format!(
            "(1 + alpha) * groups_per_step + redundant_groups = {groups} groups of {size} are {rollouts} rollouts in flight; \
             choose less, so that they are at most {MAX_ROLLOUTS_IN_FLIGHT}"
        ),
    );
    let longest = spec.parts().map(|domain| domain.longest_rollout()).max().unwrap_or(0);
    // A rollout that the model has no room for is never played that far.
    let longest = spec.model.context().map_or(longest, |context| longest.min(context.into()));
    let tokens = rollouts.saturating_mul(longest);
    checks.require(
        tokens <= MAX_TOKENS_IN_FLIGHT,
        "rollout.max_new_tokens",
        spec.rollout.max_new_tokens,
        format!(
            "{rollouts} rollouts in flight of up to {longest} tokens have {tokens} tokens; choose less of either, so that \
             they are at most {MAX_TOKENS_IN_FLIGHT}"
        ),
    );
    let parameters = parameters(&spec.model);
    checks.require(
        parameters <= MAX_MODEL_PARAMETERS,
        "model.layers",
        match spec.model {
            ModelSpec::Decoder { layers, .. } => layers,
            ModelSpec::HuggingFace { .. } | ModelSpec::Scripted => 0,
        },
        format!(
            "the model has {parameters} parameters; choose fewer layers, or less width, feed_forward or vocabulary, so that \
             they are at most {MAX_MODEL_PARAMETERS}"
        ),
    );
}

/// Weights of a model made from scratch, without its norms.
fn parameters(model: &ModelSpec) -> u64 {
    let ModelSpec::Decoder { vocabulary, layers, width, feed_forward, .. } = model else { return 0 };
    let times = |a: u32, b: u32| u64::from(a).saturating_mul(b.into());
    let attention = times(*width, *width).saturating_mul(4);
    let layer = attention.saturating_add(times(*width, *feed_forward).saturating_mul(3));
    times(*vocabulary, *width).saturating_mul(2).saturating_add(layer.saturating_mul((*layers).into()))
}
