//! Advantages and corrections of sampled tokens: rewards are shaped and become advantages, and
//! tokens of another policy than the old one are corrected.

use std::collections::BTreeMap;

use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::{Algorithm, Critic, Kl, KlPlace, RewardNorm, Shaping};
use millrace_schemas::train_shard::{Batch, BatchRollout};
use tch::Tensor;

use super::samples::{Sample, State};
use crate::math::advantage::gae::{gae, token_rewards};
use crate::math::advantage::grpo::grpo;
use crate::math::advantage::normalise::{Moments, normalise, whiten};
use crate::math::advantage::shaping::shaped;
use crate::math::advantage::{Scored, ScoredTurn, advantages};
use crate::math::correction::correct;
use crate::math::kl::{self, LastStep, kl};

/// Sets advantages, weights and masks of the rows of `batch`. `old`, `reference` and `values` must
/// be final, and what other members compute known as far as it matters here (`exchange`). `coefficient` is that of the KL penalty, and `base` the version trained on. Returns
/// the metrics.
pub(super) fn score(
    rows: &mut [Sample],
    batch: &Batch,
    algorithm: &Algorithm,
    coefficient: f64,
    base: &Manifest,
) -> BTreeMap<String, f64> {
    let in_reward = algorithm.kl.filter(|kl| kl.place == KlPlace::Reward);
    let states: Vec<Vec<State>> = rows.iter_mut().map(|row| std::mem::take(&mut row.states)).collect();
    let mut each = rows.iter().zip(&states);
    let mut groups = Vec::new();
    for group in &batch.groups {
        let mut scored = Vec::new();
        for (rollout, (row, states)) in group.rollouts.iter().zip(each.by_ref()) {
            let distances = in_reward.map_or_else(Vec::new, |kl| distances(&kl, row));
            let losses: Vec<f64> = distances.iter().map(|distance| coefficient * distance).collect();
            scored.push(of_rollout(&algorithm.shaping, rollout, (row, states), &losses));
        }
        groups.push(scored);
    }
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
    if algorithm.advantage.has_critic() {
        metrics.extend(by_token(rows, &groups, &algorithm.critic));
    } else {
        by_turn(rows, &groups, algorithm);
    }
    metrics.insert("groups_without_signal".to_owned(), silent_share(rows, &groups));
    if algorithm.mask_truncated {
        metrics.insert("truncated_share".to_owned(), mask_truncated(rows, batch));
    }
    scale(rows, algorithm);
    if algorithm.imitation > 0.0 {
        let rollouts = batch.groups.iter().flat_map(|group| &group.rollouts);
        for (row, rollout) in rows.iter_mut().zip(rollouts) {
            row.reached = vec![f32::from(u8::from(rollout.success)); row.logit_positions.len()];
        }
    }
    if !algorithm.correction.is_off() {
        rows.iter_mut().filter(|row| row.is_here()).for_each(|row| correct_row(row, algorithm));
    }
    metrics
}

/// Every token of a turn has the turn's advantage.
fn by_turn(rows: &mut [Sample], groups: &[Vec<Scored<'_>>], algorithm: &Algorithm) {
    let values = advantages(algorithm.advantage, &algorithm.parameters, groups);
    for (row, turns) in rows.iter_mut().zip(values.into_iter().flatten()) {
        let tokens = row.turns.iter().zip(&turns);
        row.advantage = tokens.flat_map(|(&tokens, &a)| std::iter::repeat_n(a as f32, tokens)).collect();
    }
}

/// Whitens and clips advantages, as the run has it. Masked rollouts do not count in the mean.
fn scale(rows: &mut [Sample], algorithm: &Algorithm) {
    if algorithm.whiten_advantages {
        let counted = rows.iter_mut().filter(|row| !row.masked);
        whiten(counted.flat_map(|row| &mut row.advantage));
    }
    if algorithm.advantage_clip > 0.0 {
        let most = algorithm.advantage_clip as f32;
        rows.iter_mut().flat_map(|row| &mut row.advantage).for_each(|a| *a = a.clamp(-most, most));
    }
}

/// Advantages per token from the critic's values, normalised over all tokens of the batch. Metrics:
/// `value` is the mean of the values, `explained_variance` the share of the returns' variance that
/// they predict.
fn by_token(rows: &mut [Sample], groups: &[Vec<Scored<'_>>], critic: &Critic) -> Vec<(String, f64)> {
    let (mut values, mut all) = (Vec::new(), Vec::new());
    for (row, scored) in rows.iter().zip(groups.iter().flatten()) {
        let expected: Vec<f64> = row.values.iter().map(|&value| f64::from(value)).collect();
        let rewards = token_rewards(&row.turns, &scored.turn_rewards());
        all.extend(gae(critic.discount, critic.lambda, &rewards, &expected));
        values.extend(expected);
    }
    let returns: Vec<f64> = all.iter().zip(&values).map(|(advantage, value)| advantage + value).collect();
    let (mut normal, mut aims) = (grpo(&all).into_iter(), returns.iter());
    for row in rows {
        let tokens = row.values.len();
        row.advantage = normal.by_ref().take(tokens).map(|a| a as f32).collect();
        row.returns = aims.by_ref().take(tokens).map(|aim| *aim as f32).collect();
    }
    let foreseen = 1.0 - variance(&all) / variance(&returns);
    let mut metrics = vec![("value".to_owned(), values.iter().sum::<f64>() / values.len().max(1) as f64)];
    metrics.extend(foreseen.is_finite().then(|| ("explained_variance".to_owned(), foreseen)));
    metrics
}

fn variance(numbers: &[f64]) -> f64 {
    let count = numbers.len().max(1) as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count
}

/// The share of groups in which every advantage is 0.
fn silent_share(rows: &[Sample], groups: &[Vec<Scored<'_>>]) -> f64 {
    let mut rows = rows.iter();
    let mut silent = 0;
    for group in groups {
        let spoke = rows.by_ref().take(group.len()).filter(|row| row.advantage.iter().any(|a| *a != 0.0));
        silent += usize::from(spoke.count() == 0);
    }
    silent as f64 / groups.len().max(1) as f64
}

/// A rollout's shaped reward, by turn. What the environment did not give by turn belongs to the
/// last one. `losses` are subtracted by turn for the KL penalty; empty without one.
fn of_rollout<'a>(
    shaping: &Shaping,
    rollout: &BatchRollout,
    (row, states): (&Sample, &'a [State]),
    losses: &[f64],
) -> Scored<'a> {
    let reward = shaped(shaping, rollout.reward, row.logit_positions.len()) - losses.iter().sum::<f64>();
    let mut turns = Vec::new();
    for (index, turn) in rollout.turns.iter().enumerate() {
        let lost = losses.get(index).copied().unwrap_or_default();
        let state = states.get(index).map_or(&[][..], |state| state);
        turns.push(ScoredTurn { reward: turn.reward - lost, state });
    }
    let brought: f64 = turns.iter().map(|turn| turn.reward).sum();
    if let Some(last) = turns.last_mut() {
        last.reward += reward - brought;
    }
    Scored { reward, turns }
}

/// The KL divergence of the old policy from the reference, by turn, summed over its tokens.
fn distances(of: &Kl, row: &Sample) -> Vec<f64> {
    let distances = kl(of.estimator, &numbers(&row.old), &numbers(&row.reference));
    let distances = Vec::<f64>::try_from(&distances).expect("one axis of f64");
    let mut each = distances.into_iter();
    row.turns.iter().map(|&tokens| each.by_ref().take(tokens).sum()).collect()
}

fn numbers(of: &[f32]) -> Tensor {
    Tensor::from_slice(of).to_kind(tch::Kind::Double)
}

fn correct_row(row: &mut Sample, algorithm: &Algorithm) {
    let pairs = row.old.iter().zip(&row.behaviour);
    let log_ratios: Vec<f64> =
        pairs.map(|(old, behaviour)| f64::from(*old) - f64::from(*behaviour)).collect();
    let corrected = correct(&algorithm.correction, &log_ratios, &row.turns);
    row.weight = corrected.weights.into_iter().map(|weight| weight as f32).collect();
    row.kept = corrected.kept;
    if row.masked {
        row.kept.fill(false);
    }
}

/// Masks rollouts that were cut off: Yu et al., "DAPO", 2025, section 3.4, overlong filtering.
/// Returns their share.
fn mask_truncated(rows: &mut [Sample], batch: &Batch) -> f64 {
    let rollouts = batch.groups.iter().flat_map(|group| &group.rollouts);
    let mut masked = 0;
    for (row, _) in rows.iter_mut().zip(rollouts).filter(|(_, rollout)| rollout.truncated) {
        row.masked = true;
        row.kept = vec![false; row.logit_positions.len()];
        masked += 1;
    }
    f64::from(masked) / rows.len().max(1) as f64
}

/// The coefficient of the KL penalty in the step on `base`; 0 without one.
pub(super) fn coefficient(algorithm: &Algorithm, base: &Manifest) -> f64 {
    let last = || {
        let of = |name: &str| base.metrics.get(name).copied();
        Some(LastStep { coefficient: of("kl_coefficient")?, distance: of("kl")?, rollouts: of("rollouts")? })
    };
    algorithm.kl.map_or(0.0, |kl| kl::coefficient(&kl, last()))
}
