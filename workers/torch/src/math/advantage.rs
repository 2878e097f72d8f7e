//! How rewards become advantages: shaped rewards of a whole batch in, one number for each turn out.

use millrace_schemas::submit::{Advantage, Parameters};

pub mod chunk;
pub mod gae;
pub mod gi_gpo;
pub mod grpo;
pub mod lite_ppo;
pub mod max_rl;
pub mod normalise;
pub mod raft;
pub mod reinforce_plus_plus;
pub mod rloo;
pub mod shaping;

/// A divisor (standard deviation or mean) at or below this counts as 0: the group has no signal.
pub const NO_SPREAD: f64 = 1e-6;

/// One rollout as its advantage sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored<'a> {
    /// The whole reward.
    pub reward: f64,
    /// Its turns in order. `[K]`
    pub turns: Vec<ScoredTurn<'a>>,
}

/// One turn of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredTurn<'a> {
    /// The turn's own part of the reward; those of all turns add up to the rollout's.
    pub reward: f64,
    /// Its observation: turns of a group with the same observation are in one state.
    pub state: &'a [u32],
}

/// The advantage of each turn of each rollout of each group: as `groups`, `[B][G]`, with `[K]` for
/// each rollout. Rewards are finite.
///
/// # Panics
/// With `gae`, which needs the critic's value of each token: [`gae::gae`].
#[must_use]
pub fn advantages(
    kind: Advantage,
    parameters: &Parameters,
    groups: &[Vec<Scored<'_>>],
) -> Vec<Vec<Vec<f64>>> {
    let by_group = |of: fn(&[f64]) -> Vec<f64>| {
        let each = groups.iter().map(|group| spread(group, &of(&rewards(group))));
        each.collect()
    };
    match kind {
        Advantage::Grpo => by_group(grpo::grpo),
        Advantage::DrGrpo => by_group(grpo::dr_grpo),
        Advantage::Rloo => by_group(rloo::rloo),
        Advantage::MaxRl => by_group(max_rl::max_rl),
        Advantage::Raft => by_group(raft::raft),
        Advantage::Reinforce => by_group(<[f64]>::to_vec),
        Advantage::LitePpo => {
            let all: Vec<Vec<f64>> = groups.iter().map(|group| rewards(group)).collect();
            groups.iter().zip(lite_ppo::lite_ppo(&all)).map(|(group, of)| spread(group, &of)).collect()
        }
        Advantage::ReinforcePlusPlus => {
            let all: Vec<f64> = groups.iter().flat_map(|group| rewards(group)).collect();
            let mut normal = reinforce_plus_plus::reinforce_plus_plus(&all).into_iter();
            let each = groups
                .iter()
                .map(|group| spread(group, &normal.by_ref().take(group.len()).collect::<Vec<_>>()));
            each.collect()
        }
        Advantage::Chunk => {
            let of = |rollout: &Scored<'_>| chunk::returns(parameters.discount, &rollout.turn_rewards());
            groups.iter().map(|group| group.iter().map(of).collect()).collect()
        }
        Advantage::Gae => unreachable!("gae goes by tokens"),
        Advantage::GiGpo => groups.iter().map(|group| gi_gpo::gi_gpo(parameters, group)).collect(),
    }
}

impl Scored<'_> {
    /// Each turn's own part of the reward. `[K]`
    #[must_use]
    pub fn turn_rewards(&self) -> Vec<f64> {
        self.turns.iter().map(|turn| turn.reward).collect()
    }
}

fn rewards(group: &[Scored<'_>]) -> Vec<f64> {
    group.iter().map(|rollout| rollout.reward).collect()
}

/// Each rollout's number, for each of its turns.
fn spread(group: &[Scored<'_>], advantages: &[f64]) -> Vec<Vec<f64>> {
    group.iter().zip(advantages).map(|(rollout, advantage)| vec![*advantage; rollout.turns.len()]).collect()
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

#[cfg(test)]
mod tests;
