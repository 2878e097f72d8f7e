//! `train_shard`: one rank's share of an optimiser step. The trainer lives on a thread of its own and may keep
//! its state from step to step; what a step depends on is only the version it trains on, the batch and the
//! algorithm. Its files are in the object store before the outcome says so.

use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use millrace_queue::ObjectError;
use millrace_schemas::blob::Sha;
use millrace_schemas::envelope::decode;
use millrace_schemas::submit::Algorithm;
use millrace_schemas::train_shard::{Batch, FileRef, TrainShardDone, TrainShardTask, TrainWork};
use millrace_schemas::{BlobRef, OutcomeBody, PolicyVersion, RunId, Task, TaskBody};
use tokio_util::sync::CancellationToken;

use crate::executor::{Cost, Executor, Verdict};
use crate::policy::{PolicyError, Trained};
use crate::weights::{FILES_IN_FLIGHT, Files, Weights};
use thread::{Job, TrainerThread};

mod thread;

/// For how long a step is given back that met a failing store or a lack of memory.
const RETRY: Duration = Duration::from_secs(2);
/// For how long a step is given back that this build cannot do.
const ELSEWHERE: Duration = Duration::from_secs(5);

/// Does `train_shard` tasks, one at a time.
#[derive(Debug)]
pub struct TrainShard {
    weights: Weights,
    thread: TrainerThread,
}

impl TrainShard {
    /// Starts the trainer's thread. It ends with this value.
    #[must_use]
    pub fn new(weights: Weights) -> Self {
        Self { weights, thread: TrainerThread::start() }
    }

    async fn train(&self, run: &RunId, task: &TrainShardTask) -> Result<TrainShardDone, Verdict> {
        let job = match &task.work {
            TrainWork::Initialise { model, seed } => Job::Initialise { model: model.clone(), seed: *seed },
            TrainWork::Step { base, manifest, batch, algorithm, .. } => {
                self.step(run, (*base, *manifest), *batch, algorithm).await?
            }
        };
        let trained = self.thread.train(run.clone(), job).await.map_err(|error| verdict(&error))?;
        if let Some((name, value)) = trained.metrics.iter().find(|(_, value)| !value.is_finite()) {
            return Err(Verdict::Poison(format!("the step gave {name}={value}; its weights are of no use")));
        }
        self.store(run, trained).await.map_err(|error| object_verdict(&error))
    }

    /// Gathers what a step depends on.
    async fn step(
        &self,
        run: &RunId,
        (version, manifest): (PolicyVersion, Sha),
        blob: BlobRef,
        algorithm: &Algorithm,
    ) -> Result<Job, Verdict> {
        let bytes = self.weights.objects().get_blob(run, &blob).await.map_err(|e| object_verdict(&e))?;
        let batch: Batch = decode("batch", &bytes).map_err(|error| Verdict::Poison(error.to_string()))?;
        if batch.run != *run || batch.base != version || batch.manifest != manifest {
            let (of, base) = (&batch.run, batch.base);
            return Err(Verdict::Poison(format!(
                "its batch is of run={of} base={base}, or of other weights"
            )));
        }
        let base = self.weights.fetch(run, version, manifest, Files::All).await;
        let base = base.map_err(|error| error.verdict())?;
        Ok(Job::Step { base: Box::new(base), batch: Box::new(batch), blob, algorithm: algorithm.clone() })
    }

    async fn store(&self, run: &RunId, trained: Trained) -> Result<TrainShardDone, ObjectError> {
        let files = futures::stream::iter(trained.files)
            .map(async |(name, content)| Ok(FileRef { name, blob: self.weights.store(run, content).await? }))
            .buffered(FILES_IN_FLIGHT)
            .try_collect()
            .await?;
        Ok(TrainShardDone { files, metrics: trained.metrics })
    }
}

#[async_trait]
impl Executor for TrainShard {
    async fn execute(&self, task: Task, _cancel: CancellationToken) -> Verdict {
        let TaskBody::TrainShard(shard) = &task.body else { return Verdict::misrouted(&task) };
        let TrainShardTask { rank, world, .. } = shard;
        if *world != 1 || *rank != 0 {
            let reason = format!("rank={rank} of world={world}: this build trains with a gang of one");
            return Verdict::Poison(reason);
        }
        match self.train(&task.run, shard).await {
            Ok(done) => Verdict::Done(OutcomeBody::TrainShard(done), Cost::default()),
            Err(verdict) => verdict,
        }
    }
}

fn verdict(error: &PolicyError) -> Verdict {
    match error {
        PolicyError::Temporary(reason) | PolicyError::Void(reason) => {
            Verdict::RetryAfter(RETRY, reason.clone())
        }
        PolicyError::Unsupported(reason) => Verdict::RetryAfter(ELSEWHERE, reason.clone()),
        PolicyError::Impossible(reason) => Verdict::Poison(reason.clone()),
    }
}

/// An object that is not there stays away; a damaged one may have been read badly.
fn object_verdict(error: &ObjectError) -> Verdict {
    match error {
        ObjectError::NotFound { .. } | ObjectError::Location { .. } | ObjectError::Refused { .. } => {
            Verdict::Poison(error.to_string())
        }
        ObjectError::Corrupt { .. } | ObjectError::Unavailable { .. } => {
            Verdict::RetryAfter(RETRY, error.to_string())
        }
    }
}

#[cfg(test)]
mod tests;
