//! `env_step`: an environment resets or takes one action. Microseconds of pure computation, done in place; an
//! environment that speaks text first needs the tokenizer of the run's model.

use async_trait::async_trait;
use millrace_schemas::{OutcomeBody, Task, TaskBody};
use tokio_util::sync::CancellationToken;

use crate::envs;
use crate::executor::{Cost, Executor, Verdict};
use crate::text::Codecs;

/// Does `env_step` tasks. By default only those of environments that speak tokens.
#[derive(Debug, Clone, Default)]
pub struct EnvStep {
    codecs: Option<Codecs>,
}

impl EnvStep {
    /// Environments that speak text do so by these.
    #[must_use]
    pub const fn speaking(codecs: Codecs) -> Self {
        Self { codecs: Some(codecs) }
    }
}

#[async_trait]
impl Executor for EnvStep {
    async fn execute(&self, task: Task, _cancel: CancellationToken) -> Verdict {
        let TaskBody::EnvStep(step) = &task.body else { return Verdict::misrouted(&task) };
        let codec = match &self.codecs {
            Some(codecs) if step.environment.speaks_text() => match codecs.of(&task.run).await {
                Ok(codec) => Some(codec),
                Err(verdict) => return verdict,
            },
            _ => None,
        };
        match envs::answer(step, codec.as_deref()) {
            Ok(done) => Verdict::Done(OutcomeBody::EnvStep(done), Cost::default()),
            Err(error) => Verdict::Poison(error.to_string()),
        }
    }
}
