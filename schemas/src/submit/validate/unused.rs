//! Settings that would change nothing beside the others. They are refused where a run file is read, but not
//! where the log is: they do no harm.

use super::Checks;
use crate::submit::{Advantage, Algorithm, Loss, Parameters, RunSpec};

/// Refuses settings that differ from their defaults and change nothing.
pub(in crate::submit) fn check(spec: &RunSpec, checks: &mut Checks) {
    check_parameters(&spec.algorithm, checks);
    check_clip(&spec.algorithm, checks);
    check_decay(&spec.algorithm, checks);
    checks.require(
        !spec.algorithm.shard_gradients || spec.gang.ranks > 1,
        "algorithm.shard_gradients",
        true,
        "gang.ranks is 1, so that one worker has everything; choose gang.ranks of 2 or more, or leave this out",
    );
    let evaluate = &spec.evaluate;
    let is_drawn = (0..evaluate.passes()).any(|pass| evaluate.pass(pass).0 > 0.0);
    checks.require(
        evaluate.samples <= 1 || is_drawn,
        "evaluate.samples",
        evaluate.samples,
        "at temperature 0 all rollouts of a prompt are equal, so that one is played; choose evaluate.temperature = 1, or leave \
         this out",
    );
}

fn check_parameters(algorithm: &Algorithm, checks: &mut Checks) {
    let (given, plain) = (&algorithm.parameters, Parameters::default());
    let (advantage, loss) = (algorithm.advantage, algorithm.loss);
    let discounts = matches!(advantage, Advantage::Chunk | Advantage::GiGpo);
    let turns = "algorithm.advantage = \"chunk\" or \"gi_gpo\"";
    for (name, value, plain, is_used, user) in [
        ("discount", given.discount, plain.discount, discounts, turns),
        (
            "turn_weight",
            given.turn_weight,
            plain.turn_weight,
            advantage == Advantage::GiGpo,
            "algorithm.advantage = \"gi_gpo\"",
        ),
        ("tau", given.tau, plain.tau, loss == Loss::Kimi, "algorithm.loss = \"kimi\""),
        ("delta", given.delta, plain.delta, loss == Loss::DppoTv, "algorithm.loss = \"dppo_tv\""),
        ("pull", given.pull, plain.pull, loss == Loss::DppoTv, "algorithm.loss = \"dppo_tv\""),
    ] {
        checks.require(
            is_used || value == plain,
            &format!("algorithm.parameters.{name}"),
            value,
            format!("nothing that this run computes has it; choose {user}, or leave it out"),
        );
    }
}

fn check_clip(algorithm: &Algorithm, checks: &mut Checks) {
    let plain = Algorithm::default();
    for (name, value, plain) in [
        ("clip_low", algorithm.clip_low, plain.clip_low),
        ("clip_high", algorithm.clip_high, plain.clip_high),
    ] {
        checks.require(
            algorithm.loss.clips() || value == plain,
            &format!("algorithm.{name}"),
            value,
            "this loss clips no ratio; choose algorithm.loss = \"ppo_clip\", \"cispo\", \"gspo\" or \"segment\", or leave it out",
        );
    }
}

fn check_decay(algorithm: &Algorithm, checks: &mut Checks) {
    let plain = Algorithm::default();
    for (name, value, plain) in [
        ("decay_embeddings", algorithm.decay_embeddings, plain.decay_embeddings),
        ("decay_norms", algorithm.decay_norms, plain.decay_norms),
        ("decay_biases", algorithm.decay_biases, plain.decay_biases),
    ] {
        checks.require(
            algorithm.weight_decay != 0.0 || value == plain,
            &format!("algorithm.{name}"),
            value,
            "algorithm.weight_decay is 0, so that nothing is decayed; choose a number above 0, 0.01 for example, or leave this out",
        );
    }
}
