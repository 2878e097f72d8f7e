//! Groups within groups.

use std::collections::BTreeMap;

use millrace_schemas::submit::Parameters;

use super::{Scored, chunk, grpo::grpo, rewards};

/// GiGPO: the rollout's advantage among its group, plus `turn_weight` times that of each turn's
/// discounted return among the turns of the group in the same state; both as [`grpo`]
/// normalises. Turns are never compared across groups. Feng et al., "Group-in-Group Policy
/// Optimization", 2025, equations 3 to 8.
#[must_use]
pub fn gi_gpo(parameters: &Parameters, group: &[Scored<'_>]) -> Vec<Vec<f64>> {
    let whole = grpo(&rewards(group));
    let mut advantages: Vec<Vec<f64>> =
        group.iter().zip(&whole).map(|(rollout, a)| vec![*a; rollout.turns.len()]).collect();
    let mut states: BTreeMap<&[u32], Vec<(usize, usize, f64)>> = BTreeMap::new();
    for (index, rollout) in group.iter().enumerate() {
        let returns = chunk::returns(parameters.discount, &rollout.turn_rewards());
        for (turn, (scored, value)) in rollout.turns.iter().zip(returns).enumerate() {
            states.entry(scored.state).or_default().push((index, turn, value));
        }
    }
    for members in states.values() {
        let returns: Vec<f64> = members.iter().map(|(.., value)| *value).collect();
        for ((index, turn, _), a) in members.iter().zip(grpo(&returns)) {
            advantages[*index][*turn] += parameters.turn_weight * a;
        }
    }
    advantages
}
