//! What each sampled token of a batch is worth: rewards are shaped and become advantages, and what was sampled by
//! another policy than the old one is corrected.

use std::collections::BTreeMap;

use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::{Algorithm, Kl, KlPlace, Shaping};
use millrace_schemas::train_shard::{Batch, BatchRollout};
use tch::Tensor;

use super::samples::Sample;
use crate::math::advantage::shaping::shaped;
use crate::math::advantage::{Scored, ScoredTurn, advantages};
use crate::math::correction::correct;
use crate::math::kl::{self, Held, kl};

/// Gives the rows of `batch` their advantages, weights and masks. `old` and `reference` are what they will be, and
/// `coefficient` is that of the distance from the reference. Says what can be said of it.
pub(super) fn score(
    rows: &mut [Sample],
    batch: &Batch,
    algorithm: &Algorithm,
    coefficient: f64,
) -> BTreeMap<String, f64> {
    let in_reward = algorithm.kl.filter(|kl| kl.place == KlPlace::Reward);
    let mut each = rows.iter();
    let mut groups = Vec::new();
    for group in &batch.groups {
        let mut scored = Vec::new();
        for (rollout, row) in group.rollouts.iter().zip(each.by_ref()) {
            let distances = in_reward.map_or_else(Vec::new, |kl| distances(&kl, row));
            let losses: Vec<f64> = distances.iter().map(|distance| coefficient * distance).collect();
            scored.push(of_rollout(&algorithm.shaping, rollout, row.wanted.len(), &losses));
        }
        groups.push(scored);
    }
    let values = advantages(algorithm.advantage, &algorithm.parameters, &groups);
    let silent = values.iter().filter(|group| group.iter().flatten().all(|a| *a == 0.0)).count();
    let mut metrics =
        BTreeMap::from([("groups_without_signal".to_owned(), silent as f64 / values.len().max(1) as f64)]);
    if in_reward.is_some() || algorithm.shaping != Shaping::default() {
        let mean =
            groups.iter().flatten().map(|scored| scored.reward).sum::<f64>() / rows.len().max(1) as f64;
        metrics.insert("shaped_reward".to_owned(), mean);
    }
    for (row, turns) in rows.iter_mut().zip(values.into_iter().flatten()) {
        let tokens = row.turns.iter().zip(&turns);
        row.advantage = tokens.flat_map(|(&tokens, &a)| std::iter::repeat_n(a as f32, tokens)).collect();
        if !algorithm.correction.is_off() {
            correct_row(row, algorithm);
        }
    }
    metrics
}

/// A rollout's reward, shaped, and what of it each turn brought. What the environment did not give turn by turn came
/// with the last. `losses` are what each turn loses by its distance, or nothing.
fn of_rollout<'a>(shaping: &Shaping, rollout: &'a BatchRollout, tokens: usize, losses: &[f64]) -> Scored<'a> {
    let reward = shaped(shaping, rollout.reward, tokens) - losses.iter().sum::<f64>();
    let (mut turns, mut seen) = (Vec::new(), 0);
    for (index, turn) in rollout.turns.iter().enumerate() {
        let lost = losses.get(index).copied().unwrap_or_default();
        let at = turn.at as usize;
        turns.push(ScoredTurn { reward: turn.reward - lost, state: &rollout.tokens[seen..at] });
        seen = at + turn.logprobs.len();
    }
    let brought: f64 = turns.iter().map(|turn| turn.reward).sum();
    if let Some(last) = turns.last_mut() {
        last.reward += reward - brought;
    }
    Scored { reward, turns }
}

/// The distance of the old policy from the reference in each turn, added up over its tokens.
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
}

/// What the distance from the reference weighs in the step on the version `base`; 0 where there is none.
pub(super) fn coefficient(algorithm: &Algorithm, base: &Manifest) -> f64 {
    let held = || {
        let of = |name: &str| base.metrics.get(name).copied();
        Some(Held { coefficient: of("kl_coefficient")?, distance: of("kl")?, rollouts: of("rollouts")? })
    };
    algorithm.kl.map_or(0.0, |kl| kl::coefficient(&kl, held()))
}
