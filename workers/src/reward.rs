//! `reward`: a finished rollout gets one score from one rule. Our own are computed in place; a program of one's own is
//! asked.

use std::sync::Arc;

use async_trait::async_trait;
use millrace_schemas::reward::{RewardDone, RewardRule, RewardTask};
use millrace_schemas::{OutcomeBody, PoolName, Task, TaskBody};
use tokio_util::sync::CancellationToken;

use crate::executor::{Cost, Executor, Verdict};
use crate::program::{Answer, Program, Question};
use crate::rewards::{self, RewardError};

/// Does `reward` tasks.
#[derive(Debug, Clone, Default)]
pub struct Reward {
    program: Option<Arc<Program>>,
}

impl Reward {
    /// With rules that `program` answers for.
    #[must_use]
    pub const fn asking(program: Option<Arc<Program>>) -> Self {
        Self { program }
    }

    async fn score(&self, pool: &PoolName, task: &RewardTask) -> Result<f64, Verdict> {
        let poison = |error: RewardError| Verdict::Poison(error.to_string());
        let program = match (task.rule, &self.program) {
            (RewardRule::Custom, Some(program)) => program,
            _ => return rewards::score(task).map_err(poison),
        };
        let RewardTask { settings, turns, success, conversation, row, .. } = task;
        let question =
            Question::Score { reward: pool, settings, turns, success: *success, conversation, row };
        match program.ask(&question).await.map_err(|error| Program::verdict(&error))? {
            Answer::Score(score) => Ok(score),
            Answer::Refused(refusal) => Err(refusal.verdict()),
            Answer::Step(_) => Err(Verdict::Poison("the program answered with a step".to_owned())),
        }
    }
}

#[async_trait]
impl Executor for Reward {
    async fn execute(&self, task: Task, _cancel: CancellationToken) -> Verdict {
        let TaskBody::Reward(reward) = &task.body else { return Verdict::misrouted(&task) };
        match self.score(&task.pool, reward).await {
            Ok(score) => Verdict::Done(OutcomeBody::Reward(RewardDone { score }), Cost::default()),
            Err(verdict) => verdict,
        }
    }
}
