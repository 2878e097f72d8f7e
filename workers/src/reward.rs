//! `reward`: a finished rollout gets one score from one rule. Done in place.

use async_trait::async_trait;
use millrace_schemas::reward::RewardDone;
use millrace_schemas::{OutcomeBody, Task, TaskBody};
use tokio_util::sync::CancellationToken;

use crate::executor::{Cost, Executor, Verdict};
use crate::rewards;

/// Does `reward` tasks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reward;

#[async_trait]
impl Executor for Reward {
    async fn execute(&self, task: Task, _cancel: CancellationToken) -> Verdict {
        let TaskBody::Reward(reward) = &task.body else { return Verdict::misrouted(&task) };
        match rewards::score(reward) {
            Ok(score) => Verdict::Done(OutcomeBody::Reward(RewardDone { score }), Cost::default()),
            Err(error) => Verdict::Poison(error.to_string()),
        }
    }
}
