//! Trains by script: a step reads its input from the object store and writes its output there. The
//! rendezvous of a gang's ranks uses keys of the queue, as in production. A step without all its
//! ranks is void.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millrace_objects::delta::encode_at_any_size;
use millrace_policy::{NoPast, Place, Share, TrainStep, Trainer};
use millrace_queue::{Broker, BrokerError, ObjectError};
use millrace_schemas::envelope::decode;
use millrace_schemas::train_shard::{
    Batch, DeltaRef, FileRef, StepVoid, TrainShardDone, TrainShardTask, TrainWork,
};
use millrace_schemas::{BlobRef, OutcomeBody, PolicyVersion, RunId, Task, TaskBody};
use millrace_workers::model::versions::{Files, VersionStore};
use millrace_workers::policy::scripted::{ScriptedTrainer, rendezvous_key};
use millrace_workers::runtime::TimeDivision;
use millrace_workers::train_shard::for_all_ranks;
use millrace_workers::{Executor, Failure, Retry, Verdict};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::sim::scenario::FaultKind;
use crate::sim::world::World;

/// Poll interval for the other ranks.
const LOOK: Duration = Duration::from_millis(20);

/// Trains by script.
pub(super) struct Train {
    pub(super) world: Arc<World>,
    pub(super) broker: Broker,
    pub(super) versions: VersionStore,
    /// The device, where generating shares it.
    pub(super) device: Option<TimeDivision>,
}

impl Train {
    async fn train(
        &self,
        run: &RunId,
        shard: &TrainShardTask,
        cancel: CancellationToken,
    ) -> Result<OutcomeBody, Failure> {
        // Dropped with this future: generating continues after the step, however it ends.
        let mut _device = None;
        // Files that the new version may be stored as changes of; none where it is stored whole.
        let mut base_files = Vec::new();
        let trained = match &shard.work {
            TrainWork::Initialise { model, seed } => ScriptedTrainer.initialise(model, *seed),
            TrainWork::Step { base, manifest, batch: blob, algorithm, checkpoint, delta, .. } => {
                let bytes = self.versions.objects().get_blob(run, blob).await;
                let bytes = bytes.map_err(Failure::soon)?;
                let mut batch: Batch = decode("batch", &bytes).map_err(Failure::impossible)?;
                let place = Place { rank: shard.rank, world: shard.world };
                let share = Share::of(&batch, algorithm, place);
                let own = share.rollouts(&mut batch);
                self.broker.resolve_rollouts(run, own).await.map_err(Failure::soon)?;
                let loaded = self.versions.fetch(run, *base, *manifest, Files::All).await?;
                if *delta {
                    base_files.clone_from(&loaded.manifest.files);
                }
                if let Some(device) = &self.device {
                    let begun = device.begin_step().await;
                    _device = Some(begun.map_err(|error| Failure::Retry(Retry::Restart, error.to_string()))?);
                    self.hang_at_times(shard).await;
                }
                if let Some(reason) = self.misses_others(run, shard, *base, *blob, &cancel).await {
                    return Ok(OutcomeBody::Void(StepVoid { reason }));
                }
                // All files of the base are here, and the ranks have met: nothing is left to wait for.
                let (assignment, reference, past, checkpoint) = (None, None, &NoPast, *checkpoint);
                let step = TrainStep {
                    batch: &batch,
                    blob: *blob,
                    algorithm,
                    reference,
                    assignment,
                    checkpoint,
                    past,
                };
                ScriptedTrainer.step(&loaded, &step)
            }
        };
        let mut trained = trained?;
        if shard.rank > 0 {
            // The first rank writes what all of them hold.
            trained.files.clear();
        }
        let mut files = Vec::new();
        for (name, content) in trained.files {
            let base = base_files.iter().find(|file| file.name == name);
            let stored = store(&self.versions, run, name, content, base);
            files.push(stored.await.map_err(Failure::soon)?);
        }
        Ok(OutcomeBody::TrainShard(TrainShardDone { files, metrics: trained.metrics }))
    }

    /// Hangs in the middle of a step, with the device. That is one rank's fault: the others find it
    /// out.
    async fn hang_at_times(&self, shard: &TrainShardTask) {
        let has_others = shard.world > 1 && shard.rank + 1 == shard.world;
        if has_others && self.world.strikes(FaultKind::Hang) {
            std::future::pending::<()>().await;
        }
        sleep(self.world.time(1, 400)).await;
    }

    /// Waits until all ranks are at this step. Returns why one of them is missing.
    async fn misses_others(
        &self,
        run: &RunId,
        shard: &TrainShardTask,
        base: PolicyVersion,
        batch: BlobRef,
        cancel: &CancellationToken,
    ) -> Option<String> {
        let gang = format!("{run}.{}", shard.gang);
        let key = |rank| rendezvous_key(&gang, base, batch, rank);
        let meet = async {
            self.broker.leave_for_gang(&key(shard.rank), b"here").await?;
            for rank in (0..shard.world).filter(|rank| *rank != shard.rank) {
                while self.broker.left_for_gang(&key(rank)).await?.is_none() {
                    sleep(LOOK).await;
                }
            }
            Ok::<(), BrokerError>(())
        };
        let patience = Duration::from_millis(shard.timeout_ms);
        match cancel.run_until_cancelled(timeout(patience, meet)).await {
            Some(Ok(Ok(()))) => None,
            Some(Ok(Err(error))) => Some(error.to_string()),
            Some(Err(_)) => Some("a member of the gang is lost".to_owned()),
            None => Some("told to leave the gang".to_owned()),
        }
    }
}

/// Stores a file as what changed since its base's anchor, although such small ones are not worth it.
async fn store(
    versions: &VersionStore,
    run: &RunId,
    name: String,
    content: Bytes,
    base: Option<&FileRef>,
) -> Result<FileRef, ObjectError> {
    if let Some(anchor) = base.map(FileRef::anchor) {
        let from = versions.blobs().fetch(run, anchor).await?;
        if let Some(changes) = encode_at_any_size(&from, &content) {
            let changes = versions.blobs().store(run, changes.into()).await?;
            let delta = Some(DeltaRef { anchor, changes });
            return Ok(FileRef { name, blob: BlobRef::of(&content), delta });
        }
    }
    Ok(FileRef::whole(name, versions.blobs().store(run, content).await?))
}

#[async_trait]
impl Executor for Train {
    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict {
        let TaskBody::TrainShard(shard) = &task.body else {
            return Failure::misrouted(&task).into();
        };
        for_all_ranks(shard.world, self.train(&task.run, shard, cancel).await)
    }

    fn is_well(&self) -> bool {
        self.device.as_ref().is_none_or(TimeDivision::is_well)
    }

    fn gate(&self) -> Option<watch::Receiver<bool>> {
        self.device.as_ref().map(TimeDivision::may_train)
    }
}
