//! The rules that score a finished rollout. A rule that cannot tell says so; it never says 0.

use millrace_schemas::reward::{RewardRule, RewardTask};

mod env_return;
mod format;
mod success;

/// All rules; their names are their pools' too.
pub const RULES: [RewardRule; 3] = RewardRule::BUILT_IN;

/// Why a rollout has no score.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RewardError {
    /// Nothing happened in it.
    #[error("failed to score a rollout without turns")]
    NoTurns,
    /// A turn's reward is no number.
    #[error("failed to score: reward={reward} of turn={turn} is not finite")]
    TurnReward {
        /// The turn, from 1.
        turn: usize,
        /// Its reward.
        reward: f64,
    },
    /// It is none of Millrace's own.
    #[error("this rule is answered by a program of its own; start workers with --exec")]
    Foreign,
    /// The score itself is none: the turns' rewards were too large to add up.
    #[error("failed to score: score={0} is not finite")]
    Score(f64),
}

/// The score of a rollout, finite.
///
/// # Errors
/// The rollout cannot be scored.
pub fn score(task: &RewardTask) -> Result<f64, RewardError> {
    if task.turns.is_empty() {
        return Err(RewardError::NoTurns);
    }
    if let Some(at) = task.turns.iter().position(|turn| !turn.reward.is_finite()) {
        return Err(RewardError::TurnReward { turn: at + 1, reward: task.turns[at].reward });
    }
    let score = match task.rule {
        RewardRule::EnvReturn => env_return::score(task),
        RewardRule::Success => success::score(task),
        RewardRule::Format => format::score(task),
        RewardRule::Custom => return Err(RewardError::Foreign),
    };
    if score.is_finite() { Ok(score) } else { Err(RewardError::Score(score)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_schemas::env_step::Settings;
    use millrace_schemas::reward::TurnResult;

    fn task(rule: RewardRule, rewards: &[f64], success: bool) -> RewardTask {
        let turn = |(i, reward): (usize, &f64)| TurnResult { reward: *reward, valid: i != 0, tokens: 1 };
        let turns = rewards.iter().enumerate().map(turn).collect();
        RewardTask {
            rule,
            turns,
            success,
            settings: Settings::new(),
            conversation: Vec::new(),
            row: [].into(),
        }
    }

    #[test]
    fn each_rule_scores_as_it_says() {
        let rewards = [0.25, 0.0, 1.0, -0.5];
        assert_eq!(score(&task(RewardRule::EnvReturn, &rewards, true)), Ok(0.75));
        assert_eq!(score(&task(RewardRule::Success, &rewards, true)), Ok(1.0));
        assert_eq!(score(&task(RewardRule::Success, &rewards, false)), Ok(0.0));
        assert_eq!(score(&task(RewardRule::Format, &rewards, true)), Ok(-0.25));
    }

    #[test]
    fn what_is_no_number_is_no_reward() {
        for rule in RULES {
            for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let error = score(&task(rule, &[0.0, wrong], true)).unwrap_err();
                assert!(matches!(error, RewardError::TurnReward { turn: 2, .. }), "{rule:?} {error}");
            }
            assert_eq!(score(&task(rule, &[], true)), Err(RewardError::NoTurns));
        }
        let huge = task(RewardRule::EnvReturn, &[f64::MAX, f64::MAX], true);
        assert_eq!(score(&huge), Err(RewardError::Score(f64::INFINITY)));
    }
}
