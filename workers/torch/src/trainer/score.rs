//! Advantages and corrections of sampled tokens: rewards are shaped and become advantages, and
//! tokens of another policy than the old one are corrected.

use std::collections::BTreeMap;

use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::{Algorithm, Critic, Kl, KlPlace, RewardNorm, Shaping};
use millrace_schemas::train_shard::{Batch, BatchRollout};
use tch::Tensor;

use super::exchange::ObservationDigest;
use super::per_token::{Aim, Looked, PerToken, Row, ScoredTokens};
use crate::math::advantage::gae::{gae, token_rewards};
use crate::math::advantage::grpo::grpo;
use crate::math::advantage::normalise::{Moments, normalise, whiten};
use crate::math::advantage::shaping::shaped;
use crate::math::advantage::{Scored, ScoredTurn, advantages};
use crate::math::correction::{Corrected, correct};
use crate::math::kl::{self, LastStep, kl};

/// The advantages of a rollout's sampled tokens, R of them.
#[derive(Debug)]
struct Credit {
    /// `[R]`
    advantage: Vec<f32>,
    /// What the critic should predict. `[R]`, or `None` without a critic.
    returns: Option<Vec<f32>>,
    /// The rollout was cut off, and the run masks such rollouts.
    masked: bool,
}

/// Gives the rows of `batch` their advantages, weights and masks. Rows and `observations` come from
/// `exchange`. `coefficient` is that of the KL penalty, and `base` the version trained on. Returns
/// the metrics, too.
pub(super) fn score(
    (rows, observations): (Vec<Row<Looked>>, &[Vec<ObservationDigest>]),
    batch: &Batch,
    algorithm: &Algorithm,
    coefficient: f64,
    base: &Manifest,
) -> (Vec<Row<ScoredTokens>>, BTreeMap<String, f64>) {
    let in_reward = algorithm.kl.filter(|kl| kl.place == KlPlace::Reward);
    let mut groups =
        shaped_rewards((&rows, observations), batch, algorithm, in_reward.map(|kl| (kl, coefficient)));
    let mut metrics = BTreeMap::new();
    if in_reward.is_some() || algorithm.shaping != Shaping::default() {
        let mean =
            groups.iter().flatten().map(|scored| scored.reward).sum::<f64>() / rows.len().max(1) as f64;
        metrics.insert("shaped_reward".to_owned(), mean);
    }
    if algorithm.reward_norm != RewardNorm::default() {
        // They are in the version's manifest, so that a step that is redone by any gang continues
        // from the same.
        let running = normalise(algorithm.reward_norm, &mut groups, Moments::read(&base.metrics));
        metrics.extend(running.iter().flat_map(Moments::metrics));
    }
    let mut credits = if algorithm.advantage.has_critic() {
        let (credits, seen) = by_token(&rows, &groups, &algorithm.critic);
        metrics.extend(seen);
        credits
    } else {
        by_turn(&rows, &groups, algorithm)
    };
    metrics.insert("groups_without_signal".to_owned(), silent_share(&credits, &groups));
    if algorithm.mask_truncated {
        metrics.insert("truncated_share".to_owned(), mask_truncated(&mut credits, batch));
    }
    scale(&mut credits, algorithm);
    let rollouts = batch.groups.iter().flat_map(|group| &group.rollouts);
    let scored = rows.into_iter().zip(credits).zip(rollouts);
    let scored = scored.map(|((row, credit), rollout)| scored_row(row, credit, rollout.success, algorithm));
    (scored.collect(), metrics)
}

/// Shaped rewards of a batch. `penalty` is the KL penalty that is part of the reward, and its
/// coefficient.
fn shaped_rewards<'a>(
    (rows, observations): (&[Row<Looked>], &'a [Vec<ObservationDigest>]),
    batch: &Batch,
    algorithm: &Algorithm,
    penalty: Option<(Kl, f64)>,
) -> Vec<Vec<Scored<'a>>> {
    let mut each = rows.iter().zip(observations);
    let mut groups = Vec::new();
    for group in &batch.groups {
        let mut scored = Vec::new();
        for (rollout, (row, observed)) in group.rollouts.iter().zip(each.by_ref()) {
            let losses = penalty.map_or_else(Vec::new, |(kl, coefficient)| {
                distances(&kl, row).iter().map(|distance| coefficient * distance).collect()
            });
            scored.push(of_rollout(&algorithm.shaping, rollout, (row.sampled(), observed), &losses));
        }
        groups.push(scored);
    }
    groups
}

/// Every token of a turn has the turn's advantage.
fn by_turn(rows: &[Row<Looked>], groups: &[Vec<Scored<'_>>], algorithm: &Algorithm) -> Vec<Credit> {
    let values = advantages(algorithm.advantage, &algorithm.parameters, groups);
    let credit = |(row, turns): (&Row<Looked>, Vec<f64>)| {
        let tokens = row.turns.iter().zip(&turns);
        let advantage = tokens.flat_map(|(&tokens, &a)| std::iter::repeat_n(a as f32, tokens)).collect();
        Credit { advantage, returns: None, masked: false }
    };
    rows.iter().zip(values.into_iter().flatten()).map(credit).collect()
}

/// Whitens and clips advantages, as the run has it. Masked rollouts do not count in the mean.
fn scale(credits: &mut [Credit], algorithm: &Algorithm) {
    if algorithm.whiten_advantages {
        let counted = credits.iter_mut().filter(|credit| !credit.masked);
        whiten(counted.flat_map(|credit| &mut credit.advantage));
    }
    if algorithm.advantage_clip > 0.0 {
        let most = algorithm.advantage_clip as f32;
        credits.iter_mut().flat_map(|credit| &mut credit.advantage).for_each(|a| *a = a.clamp(-most, most));
    }
}

/// Advantages per token from the critic's values, normalised over all tokens of the batch. Metrics:
/// `value` is the mean of the values, `explained_variance` the share of the returns' variance that
/// they predict.
fn by_token(
    rows: &[Row<Looked>],
    groups: &[Vec<Scored<'_>>],
    critic: &Critic,
) -> (Vec<Credit>, Vec<(String, f64)>) {
    let (mut values, mut all) = (Vec::new(), Vec::new());
    for (row, scored) in rows.iter().zip(groups.iter().flatten()) {
        let expected: Vec<f64> = row.values.values.iter().flatten().map(|&value| f64::from(value)).collect();
        let rewards = token_rewards(&row.turns, &scored.turn_rewards());
        all.extend(gae(critic.discount, critic.lambda, &rewards, &expected));
        values.extend(expected);
    }
    let returns: Vec<f64> = all.iter().zip(&values).map(|(advantage, value)| advantage + value).collect();
    let normal = grpo(&all);
    let mut from = 0;
    let credit = |row: &Row<Looked>| {
        let tokens = from..from + row.sampled();
        from = tokens.end;
        let part = |of: &[f64]| of[tokens.clone()].iter().map(|&x| x as f32).collect();
        Credit { advantage: part(&normal), returns: Some(part(&returns)), masked: false }
    };
    let credits = rows.iter().map(credit).collect();
    let foreseen = 1.0 - variance(&all) / variance(&returns);
    let mut metrics = vec![("value".to_owned(), values.iter().sum::<f64>() / values.len().max(1) as f64)];
    metrics.extend(foreseen.is_finite().then(|| ("explained_variance".to_owned(), foreseen)));
    (credits, metrics)
}

fn variance(numbers: &[f64]) -> f64 {
    let count = numbers.len().max(1) as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count
}

/// The share of groups in which every advantage is 0.
fn silent_share(credits: &[Credit], groups: &[Vec<Scored<'_>>]) -> f64 {
    let mut credits = credits.iter();
    let mut silent = 0;
    for group in groups {
        let spoke =
            credits.by_ref().take(group.len()).filter(|credit| credit.advantage.iter().any(|a| *a != 0.0));
        silent += usize::from(spoke.count() == 0);
    }
    silent as f64 / groups.len().max(1) as f64
}

/// A rollout's shaped reward, by turn. What the environment did not give by turn belongs to the
/// last one. `losses` are subtracted by turn for the KL penalty; empty without one.
fn of_rollout<'a>(
    shaping: &Shaping,
    rollout: &BatchRollout,
    (tokens, observed): (usize, &'a [ObservationDigest]),
    losses: &[f64],
) -> Scored<'a> {
    let reward = shaped(shaping, rollout.reward, tokens) - losses.iter().sum::<f64>();
    let mut turns = Vec::new();
    for (index, turn) in rollout.turns.iter().enumerate() {
        let lost = losses.get(index).copied().unwrap_or_default();
        let state = observed.get(index).map_or(&[][..], |digest| digest);
        turns.push(ScoredTurn { reward: turn.reward - lost, state });
    }
    let brought: f64 = turns.iter().map(|turn| turn.reward).sum();
    if let Some(last) = turns.last_mut() {
        last.reward += reward - brought;
    }
    Scored { reward, turns }
}

/// The KL divergence of the old policy from the reference, by turn, summed over its tokens.
fn distances(of: &Kl, row: &Row<Looked>) -> Vec<f64> {
    let reference = row.values.reference.as_deref().unwrap_or_default();
    let distances = kl(of.estimator, &numbers(&row.values.old), &numbers(reference));
    let distances = Vec::<f64>::try_from(&distances).expect("one axis of f64");
    let mut each = distances.into_iter();
    row.turns.iter().map(|&tokens| each.by_ref().take(tokens).sum()).collect()
}

fn numbers(of: &[f32]) -> Tensor {
    Tensor::from_slice(of).to_kind(tch::Kind::Double)
}

/// A row with all that the loss reads. `reached` is whether its rollout reached the goal.
fn scored_row(row: Row<Looked>, credit: Credit, reached: bool, algorithm: &Algorithm) -> Row<ScoredTokens> {
    let corrected = (row.is_here() && !algorithm.correction.is_off()).then(|| correct_row(&row, algorithm));
    let tokens = row.sampled();
    let Credit { advantage, returns, masked } = credit;
    let flag = |on: bool| f32::from(u8::from(on));
    let mask = match &corrected {
        Some(corrected) if !masked => corrected.kept.iter().map(|&kept| flag(kept)).collect(),
        _ => vec![flag(!masked); tokens],
    };
    row.map(|Looked { sampled, old, reference, values }| ScoredTokens {
        tokens: PerToken {
            behaviour: sampled.behaviour,
            old,
            reference,
            advantage,
            aim: values.zip(returns).map(|(values, returns)| Aim { values, returns }),
            weight: corrected.map(|of| of.weights.into_iter().map(|weight| weight as f32).collect()),
            mask,
            reached: (algorithm.imitation > 0.0).then(|| vec![flag(reached); tokens]),
            on_policy: sampled.on_policy,
        },
        masked,
    })
}

fn correct_row(row: &Row<Looked>, algorithm: &Algorithm) -> Corrected {
    let pairs = row.values.old.iter().zip(&row.values.sampled.behaviour);
    let log_ratios: Vec<f64> =
        pairs.map(|(old, behaviour)| f64::from(*old) - f64::from(*behaviour)).collect();
    correct(&algorithm.correction, &log_ratios, &row.turns)
}

/// Masks rollouts that were cut off: Yu et al., "DAPO", 2025, section 3.4, overlong filtering.
/// Returns their share.
fn mask_truncated(credits: &mut [Credit], batch: &Batch) -> f64 {
    let rollouts = batch.groups.iter().flat_map(|group| &group.rollouts);
    let mut masked = 0;
    for (credit, _) in credits.iter_mut().zip(rollouts).filter(|(_, rollout)| rollout.truncated) {
        credit.masked = true;
        masked += 1;
    }
    f64::from(masked) / credits.len().max(1) as f64
}

/// The coefficient of the KL penalty in the step on `base`; 0 without one.
pub(super) fn coefficient(algorithm: &Algorithm, base: &Manifest) -> f64 {
    let last = || {
        let of = |name: &str| base.metrics.get(name).copied();
        Some(LastStep { coefficient: of("kl_coefficient")?, distance: of("kl")?, rollouts: of("rollouts")? })
    };
    algorithm.kl.map_or(0.0, |kl| kl::coefficient(&kl, last()))
}
