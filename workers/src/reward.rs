//! `reward`: a finished rollout gets one score from one rule. Built-in rules score it here; a
//! user's program gets a request.

use std::sync::Arc;

use async_trait::async_trait;
use millrace_schemas::reward::{RewardDone, RewardRule, RewardTask};
use millrace_schemas::{OutcomeBody, PoolName, Task, TaskBody};
use tokio_util::sync::CancellationToken;

use crate::program::{Answer, Program, ProgramRequest};
use crate::rewards::{self, Tools};
use crate::runtime::{Cost, Executor, Failure, Verdict};

/// Executes `reward` tasks.
#[derive(Debug, Clone, Default)]
pub struct Reward {
    program: Option<Arc<Program>>,
    tools: Arc<Tools>,
}

impl Reward {
    /// With the rules of `program`.
    #[must_use]
    pub fn asking(program: Option<Arc<Program>>) -> Self {
        Self { program, ..Self::default() }
    }

    /// The same, with what rules need besides the task.
    #[must_use]
    pub fn with(self, tools: Arc<Tools>) -> Self {
        Self { tools, ..self }
    }

    async fn score(&self, pool: &PoolName, task: &RewardTask) -> Result<RewardDone, Failure> {
        let program = match (task.rule, &self.program) {
            (RewardRule::Custom, Some(program)) => program,
            _ => return Ok(rewards::score(task, &self.tools).await?),
        };
        let RewardTask { settings, turns, success, conversation, row, .. } = task;
        let request =
            ProgramRequest::Score { reward: pool, settings, turns, success: *success, conversation, row };
        match program.ask(&request).await? {
            Answer::Score(score) => Ok(RewardDone { score, reason: String::new() }),
            Answer::Refused(refusal) => Err(refusal.into()),
            Answer::Step(_) => Err(Failure::impossible("the program answered with a step")),
        }
    }
}

#[async_trait]
impl Executor for Reward {
    async fn execute(&self, task: Task, _cancel: CancellationToken) -> Verdict {
        let TaskBody::Reward(reward) = &task.body else { return Failure::misrouted(&task).into() };
        let scored = self.score(&task.pool, reward).await;
        if let Ok(done) = &scored {
            tracing::debug!(task = %task.key, score = done.score, reason = done.reason, "scored");
        }
        scored.map(|done| (OutcomeBody::Reward(done), Cost::default())).into()
    }
}
