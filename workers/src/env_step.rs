//! `env_step`: an environment resets or takes one action. Microseconds of pure computation, done in place.

use async_trait::async_trait;
use millrace_schemas::{OutcomeBody, Task, TaskBody};
use tokio_util::sync::CancellationToken;

use crate::envs;
use crate::executor::{Cost, Executor, Verdict};

/// Does `env_step` tasks.
#[derive(Debug, Clone, Copy, Default)]
pub struct EnvStep;

#[async_trait]
impl Executor for EnvStep {
    async fn execute(&self, task: Task, _cancel: CancellationToken) -> Verdict {
        let TaskBody::EnvStep(step) = &task.body else { return Verdict::misrouted(&task) };
        match envs::answer(step) {
            Ok(done) => Verdict::Done(OutcomeBody::EnvStep(done), Cost::default()),
            Err(error) => Verdict::Poison(error.to_string()),
        }
    }
}
