//! The rules that score a finished rollout. A rule that cannot score returns an error, never 0.

use millrace_sandbox::SandboxError;
use millrace_schemas::limits::MAX_REASON_BYTES;
use millrace_schemas::reward::settings::{RuleSettings, WrongSetting, read};
use millrace_schemas::reward::{RewardDone, RewardRule, RewardTask};
use millrace_schemas::text::cut;

use crate::policy::openai::ServerError;
use crate::runtime::{Failure, Retry};

mod answer;
mod code;
mod env_return;
mod format;
mod instructions;
mod judge;
pub mod math;
mod success;
pub mod tools;

pub use tools::Tools;

/// All rules; their names are their pools' too.
pub const RULES: [RewardRule; RewardRule::BUILT_IN.len()] = RewardRule::BUILT_IN;

/// Why a rollout has no score.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RewardError {
    /// It has no turns.
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
    /// It is no built-in rule.
    #[error("this rule is answered by a program of its own; start workers with --exec")]
    Foreign,
    /// The score itself is none: the turns' rewards were too large to add up.
    #[error("failed to score: score={0} is not finite")]
    Score(f64),
    /// The rule reads text, and the rollout has no turn of the policy as text.
    #[error("failed to score by words: the rollout has none; its environment must speak text")]
    NoWords,
    /// The settings of the run file are impossible.
    #[error("failed to read rewards.settings: {0}")]
    Settings(String),
    /// The prompt's row lacks what the rule needs, or has it in another form.
    #[error("failed to read field={field} of the row: {reason}")]
    Row {
        /// The field.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The comparison did not come to its end.
    #[error("failed to compare answers: {0}")]
    Ended(String),
    /// There was no sandbox.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// This worker has no judge.
    #[error("no judge is named; start this worker with --judge-url")]
    NoJudge,
    /// The judge's server did not answer.
    #[error("failed to ask the judge: {0}")]
    Judge(#[from] ServerError),
    /// The judge's reply has no verdict.
    #[error("failed to read the judge's verdict: {0}")]
    Verdict(String),
}

impl From<RewardError> for Failure {
    /// A machine's failure is retried elsewhere; a rollout's defect is the same everywhere.
    fn from(error: RewardError) -> Self {
        match &error {
            RewardError::Judge(ServerError::Busy { after, .. }) => {
                Self::Retry(Retry::After(*after), error.to_string())
            }
            RewardError::Judge(ServerError::Away(_)) => Self::Retry(Retry::Away, error.to_string()),
            RewardError::Sandbox(_)
            | RewardError::Ended(_)
            | RewardError::NoJudge
            | RewardError::Verdict(_)
            | RewardError::Judge(
                ServerError::Failed(_) | ServerError::Unfit(_) | ServerError::OtherWeights(_),
            ) => Self::soon(error),
            RewardError::Judge(ServerError::Refused(_))
            | RewardError::NoTurns
            | RewardError::TurnReward { .. }
            | RewardError::Foreign
            | RewardError::Score(_)
            | RewardError::NoWords
            | RewardError::Settings(_)
            | RewardError::Row { .. } => Self::impossible(error),
        }
    }
}

/// A rule's settings.
///
/// # Errors
/// They cannot work: submit refuses such.
fn settings<T: RuleSettings>(task: &RewardTask) -> Result<T, RewardError> {
    let one = |wrong: &WrongSetting| format!("{} = {}: {}", wrong.field, wrong.value, wrong.remedy);
    read(&task.settings)
        .map_err(|wrong| RewardError::Settings(wrong.iter().map(one).collect::<Vec<_>>().join("; ")))
}

/// The score of a rollout, finite.
///
/// # Errors
/// The rollout cannot be scored.
pub async fn score(task: &RewardTask, tools: &Tools) -> Result<RewardDone, RewardError> {
    if task.turns.is_empty() {
        return Err(RewardError::NoTurns);
    }
    if let Some(at) = task.turns.iter().position(|turn| !turn.reward.is_finite()) {
        return Err(RewardError::TurnReward { turn: at + 1, reward: task.turns[at].reward });
    }
    let mut done = match task.rule {
        RewardRule::EnvReturn => plain(env_return::score(task)),
        RewardRule::Success => plain(success::score(task)),
        RewardRule::Format => format::score(task)?,
        RewardRule::Instructions => instructions::score(task)?,
        RewardRule::Math => math(task.clone()).await?,
        RewardRule::Code => code::score(task, tools.code()).await?,
        RewardRule::Judge => judge::score(task, tools.judge()).await?,
        RewardRule::Custom => return Err(RewardError::Foreign),
    };
    done.reason.truncate(cut(&done.reason, MAX_REASON_BYTES).len());
    if done.score.is_finite() { Ok(done) } else { Err(RewardError::Score(done.score)) }
}

/// The score of `math`, beside the runtime's threads: heartbeats go on, however long an answer takes to compare.
async fn math(task: RewardTask) -> Result<RewardDone, RewardError> {
    let scored = tokio::task::spawn_blocking(move || math::score(&task)).await;
    scored.unwrap_or_else(|ended| Err(RewardError::Ended(ended.to_string())))
}

/// A score that needs no words.
const fn plain(score: f64) -> RewardDone {
    RewardDone { score, reason: String::new() }
}

#[cfg(test)]
mod tests;
