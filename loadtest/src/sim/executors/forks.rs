//! Environments of runs with forks: a turn at times follows an earlier turn than the last, or none, as the calls of an
//! agent with sub-agents do.

use std::sync::Arc;

use async_trait::async_trait;
use millrace_schemas::{OutcomeBody, Task, TaskKey};
use millrace_workers::env_step::EnvStep;
use millrace_workers::{Executor, Verdict};
use tokio_util::sync::CancellationToken;

use crate::sim::world::World;

/// Of so many observations one follows the last turn, as all do in other runs.
const LINEAR: u8 = 3;

/// The real executor, whose observations say what they follow.
pub(super) struct Forks {
    pub(super) inner: EnvStep,
    pub(super) world: Arc<World>,
}

#[async_trait]
impl Executor for Forks {
    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict {
        let (run, key) = (task.run.clone(), task.key);
        let mut verdict = self.inner.execute(task, cancel).await;
        if let Verdict::Done(OutcomeBody::EnvStep(done), _) = &mut verdict
            && let TaskKey::EnvStep { turn, .. } = key
            && self.world.has_forks(&run)
        {
            let [coin, follows, ..] = self.world.lot(format_args!("{run} {key}"));
            let follows = u32::from(follows) % (turn + 1);
            done.follows = (!coin.is_multiple_of(LINEAR)).then_some(follows);
        }
        verdict
    }
}
