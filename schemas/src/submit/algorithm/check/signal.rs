//! Runs in which no rollout could ever be better than another.

use crate::reward::RewardRule;
use crate::submit::validate::Checks;
use crate::submit::{Advantage, Critic, Domain, GroupFilter, NormOver, RewardNorm, RewardSpec, RunSpec};

/// Settings that leave the advantage without signal, or with a wrong one.
pub(in crate::submit) fn check(spec: &RunSpec, checks: &mut Checks) {
    check_group(spec, checks);
    for (i, domain) in spec.parts().enumerate() {
        check_rewards(spec, (&spec.path_of(i, "rewards"), domain.rewards), checks);
    }
    check_shaping(spec, checks);
    check_normalisation(spec, checks);
    check_critic(spec, checks);
    let p = &spec.algorithm.parameters;
    checks.number("algorithm.parameters.discount", p.discount, 0.0, 1.0);
    checks.number("algorithm.parameters.turn_weight", p.turn_weight, 0.0, 1e3);
}

fn check_group(spec: &RunSpec, checks: &mut Checks) {
    let (advantage, size) = (spec.algorithm.advantage, spec.rollout.group_size);
    checks.require(
        size != 1 || !advantage.compares_group(),
        "rollout.group_size",
        1,
        "group advantages compare the rollouts of a group, so a group of one has no signal; choose 2 or more, or algorithm.advantage = \"reinforce_plus_plus\"",
    );
    checks.require(
        advantage != Advantage::ReinforcePlusPlus || size != 1 || spec.rollout.groups_per_step != 1,
        "rollout.groups_per_step",
        1,
        "this advantage compares the rollouts of a batch, so a batch of one has no signal; choose 2 or more",
    );
    checks.require(
        size != 1 || spec.rollout.filter != GroupFilter::EqualRewards,
        "rollout.filter",
        "equal_rewards",
        "a group of one is equal to itself, so that every group would be left out; choose \"none\", or a larger rollout.group_size",
    );
}

fn check_rewards(spec: &RunSpec, (at, rewards): (&str, &[RewardSpec]), checks: &mut Checks) {
    let advantage = spec.algorithm.advantage;
    for (i, reward) in rewards.iter().enumerate() {
        let field = format!("{at}[{i}].weight");
        checks.require(
            reward.rule != RewardRule::Format || reward.weight >= 0.0,
            &field,
            reward.weight,
            "the score is 0 at best and -1 at worst, so that a negative weight rewards turns that are no actions; choose a number above 0",
        );
        checks.require(
            advantage != Advantage::MaxRl || (reward.weight >= 0.0 && reward.rule != RewardRule::Format),
            &field,
            reward.weight,
            "max_rl divides by the mean reward of a group, which must not be negative; choose another algorithm.advantage, or rewards of 0 and more",
        );
    }
    let of_returns = rewards.iter().filter(|reward| reward.rule == RewardRule::EnvReturn);
    let returns = of_returns.fold(0.0, |sum, reward| sum + reward.weight);
    checks.require(
        !advantage.is_by_turn() || returns == 1.0,
        at,
        format!("env_return x {returns}"),
        "this advantage gives each turn the environment's own reward; name the reward \"env_return\" with weight 1, others besides it as you like",
    );
    let acts_only = spec.sample_below().is_some();
    let only_format = rewards.iter().all(|r| r.rule == RewardRule::Format || r.weight == 0.0);
    checks.require(
        !(acts_only && only_format && !rewards.is_empty()),
        at,
        "format",
        "with rollout.actions_only every turn is an action and scores 0, so that no rollout could be better than another; name another reward",
    );
}

fn check_normalisation(spec: &RunSpec, checks: &mut Checks) {
    let (algorithm, size) = (&spec.algorithm, spec.rollout.group_size);
    let norm = algorithm.reward_norm;
    checks.require(
        norm == RewardNorm::default() || algorithm.advantage.takes_reward_norm(),
        "algorithm.reward_norm",
        "settings",
        "this advantage compares rewards by itself; choose algorithm.advantage = \"reinforce\", \"chunk\" or \"gae\", or leave them out",
    );
    checks.require(
        size != 1 || !norm.is_over(NormOver::Group),
        "rollout.group_size",
        1,
        "algorithm.reward_norm compares the rollouts of a group, so a group of one has no signal; choose 2 or more, or \"batch\"",
    );
    checks.require(
        size != 1 || spec.rollout.groups_per_step != 1 || !norm.is_over(NormOver::Batch),
        "rollout.groups_per_step",
        1,
        "algorithm.reward_norm compares the rollouts of a batch, so a batch of one has no signal; choose 2 or more, or \"running\"",
    );
    checks.require(
        !(algorithm.whiten_advantages && algorithm.advantage.has_critic()),
        "algorithm.whiten_advantages",
        true,
        "gae normalises over all tokens by itself; leave it out",
    );
    let may_end = |domain: Domain<'_>| domain.environment.max_turns() > 1 || domain.max_new_tokens > 1;
    checks.require(
        !algorithm.mask_truncated || spec.parts().any(may_end),
        "algorithm.mask_truncated",
        true,
        "rollouts of one turn of one token are never cut off; leave it out",
    );
    checks.number("algorithm.advantage_clip", algorithm.advantage_clip, 0.0, 1e9);
    checks.number("algorithm.imitation", algorithm.imitation, 0.0, 1e3);
}

fn check_critic(spec: &RunSpec, checks: &mut Checks) {
    let (critic, has) = (&spec.algorithm.critic, spec.algorithm.advantage.has_critic());
    checks.number("algorithm.critic.discount", critic.discount, 0.0, 1.0);
    checks.number("algorithm.critic.lambda", critic.lambda, 0.0, 1.0);
    checks.number("algorithm.critic.coefficient", critic.coefficient, 0.0, 1e3);
    checks.number("algorithm.critic.clip", critic.clip, 0.0, 1e9);
    checks.require(
        !has || critic.coefficient != 0.0,
        "algorithm.critic.coefficient",
        0,
        "the critic would never learn what to expect; choose a number above 0, 0.5 for example",
    );
    checks.require(
        has || *critic == Critic::default(),
        "algorithm.critic",
        "settings",
        "this advantage has no critic; choose algorithm.advantage = \"gae\", or leave them out",
    );
}

fn check_shaping(spec: &RunSpec, checks: &mut Checks) {
    let s = &spec.algorithm.shaping;
    checks.number("algorithm.shaping.clip", s.clip, 0.0, 1e9);
    checks.number("algorithm.shaping.overlong_penalty", s.overlong_penalty, 0.0, 1e6);
    let asked = s.overlong_tokens > 0;
    checks.require(
        asked == (s.overlong_penalty > 0.0),
        "algorithm.shaping.overlong_penalty",
        s.overlong_penalty,
        if asked {
            "an overlong rollout would lose nothing; choose a number above 0, 1 for example: it is subtracted"
        } else {
            "no rollout is overlong; choose algorithm.shaping.overlong_tokens, or leave it out"
        },
    );
    let sampled =
        |domain: Domain<'_>| u64::from(domain.environment.max_turns()) * u64::from(domain.max_new_tokens);
    let most = spec.parts().map(sampled).max().unwrap_or(0);
    let from = u64::from(s.overlong_tokens).saturating_sub(u64::from(s.overlong_buffer));
    checks.require(
        !asked || from < most,
        "algorithm.shaping.overlong_tokens",
        s.overlong_tokens,
        format!(
            "a rollout samples at most {most} tokens, so that none is ever penalised; choose at most that"
        ),
    );
    checks.require(
        s.overlong_buffer <= s.overlong_tokens,
        "algorithm.shaping.overlong_buffer",
        s.overlong_buffer,
        "it lies before algorithm.shaping.overlong_tokens; choose at most that",
    );
}
