//! `train_shard`: one rank's share of an optimiser step. The trainer has a thread of its own and
//! may keep its state from step to step. The result depends only on the version, the batch and the
//! algorithm. Its files are stored before the outcome that names them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use millrace_policy::gang::{MemoryRendezvous, RankAssignment, Rendezvous};
use millrace_policy::{LoadedVersion, Place, PolicyError, Trained, is_for_training};
use millrace_queue::{Broker, ObjectError};
use millrace_schemas::blob::Sha;
use millrace_schemas::envelope::decode;
use millrace_schemas::train_shard::{Batch, FileRef, StepVoid, TrainShardDone, TrainShardTask, TrainWork};
use millrace_schemas::{BlobRef, OutcomeBody, PolicyVersion, RunId, Task, TaskBody};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::model::versions::{FILES_IN_FLIGHT, Files, VersionStore};
use crate::runtime::{Cost, Executor, Failure, Verdict};
use past::StoredPast;
use thread::{Job, StepJob, TrainerThread};

mod key_rendezvous;
mod past;
mod shared_device;
mod thread;

pub use key_rendezvous::KeyRendezvous;
pub use shared_device::SharedDevice;

/// Executes `train_shard` tasks, one at a time.
#[derive(Debug)]
pub struct TrainShard {
    versions: VersionStore,
    rendezvous: Arc<dyn Rendezvous>,
    thread: TrainerThread,
    /// Reads the trajectories that batches name; `None` where all batches contain them.
    broker: Option<Broker>,
    /// The device, where an engine of this worker shares it.
    device: Option<SharedDevice>,
    /// The version that this worker made last, whose state its trainer has.
    made: Mutex<Option<(RunId, PolicyVersion)>>,
}

impl TrainShard {
    /// Starts the trainer's thread, which ends with this value. The rendezvous of a gang is within
    /// this process, unless [`Self::with_rendezvous`] sets another.
    #[must_use]
    pub fn new(versions: VersionStore) -> Self {
        let rendezvous = Arc::new(MemoryRendezvous::default());
        Self {
            versions,
            rendezvous,
            thread: TrainerThread::start(),
            broker: None,
            device: None,
            made: Mutex::default(),
        }
    }

    /// The same, with a broker that reads the trajectories that batches name.
    #[must_use]
    pub fn reading(self, broker: Option<Broker>) -> Self {
        Self { broker, ..self }
    }

    /// The same, on a device that an engine uses in turn.
    #[must_use]
    pub fn sharing(self, device: Option<SharedDevice>) -> Self {
        Self { device, ..self }
    }

    /// The same, with another rendezvous for the members of a gang.
    #[must_use]
    pub fn with_rendezvous(self, rendezvous: Arc<dyn Rendezvous>) -> Self {
        Self { rendezvous, ..self }
    }

    async fn train(
        &self,
        run: &RunId,
        task: &TrainShardTask,
        cancel: CancellationToken,
    ) -> Result<OutcomeBody, Failure> {
        // Files that no step changes: the tokenizer, for example.
        let mut carried = Vec::new();
        let mut may_delta = false;
        let job = match &task.work {
            TrainWork::Initialise { model, seed } => Job::Initialise { model: model.clone(), seed: *seed },
            TrainWork::Step { base, manifest, batch, algorithm, checkpoint, delta, reference } => {
                let assignment = self.assignment(run, task, cancel).map_err(Failure::Impossible)?;
                let (base, mut batch, blob) = self.step(run, (*base, *manifest), *batch).await?;
                let place = Place { rank: task.rank, world: task.world };
                let own = past::resolve(self.broker.as_ref(), &mut batch, algorithm, place);
                own.await.map_err(Failure::soon)?;
                if task.rank == 0 {
                    carried.clone_from(&base.manifest.files);
                    may_delta = *delta;
                }
                let (algorithm, checkpoint, past) = (algorithm.clone(), *checkpoint, self.past(run));
                let reference = self.reference(run, *reference).await?;
                Job::Step(Box::new(StepJob {
                    base,
                    batch,
                    blob,
                    algorithm,
                    reference,
                    assignment,
                    checkpoint,
                    past,
                }))
            }
        };
        let made = (run.clone(), task.work.makes());
        let device = match &self.device {
            Some(device) => Some(device.begin_step(run, &job).await?),
            None => None,
        };
        let trained = match self.thread.train(run.clone(), job, device).await {
            Ok(trained) => trained,
            Err(PolicyError::Void(reason)) => return Ok(OutcomeBody::Void(StepVoid { reason })),
            Err(error) => {
                self.has_made(None);
                return Err(error.into());
            }
        };
        self.has_made(Some(made));
        if let Some((name, value)) = trained.metrics.iter().find(|(_, value)| !value.is_finite()) {
            return Err(Failure::impossible(format!(
                "the step gave {name}={value}; its weights are useless"
            )));
        }
        Ok(OutcomeBody::TrainShard(self.store(run, trained, carried, may_delta).await?))
    }

    fn has_made(&self, made: Option<(RunId, PolicyVersion)>) {
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = made;
    }

    /// `None` for a gang of one.
    fn assignment(
        &self,
        run: &RunId,
        task: &TrainShardTask,
        cancel: CancellationToken,
    ) -> Result<Option<RankAssignment>, String> {
        let TrainShardTask { rank, world, gang, timeout_ms, .. } = *task;
        if rank >= world {
            return Err(format!("rank={rank} is not below world={world}"));
        }
        let assignment = || RankAssignment {
            gang: format!("{run}.{gang}"),
            rank,
            world,
            timeout: Duration::from_millis(timeout_ms),
            cancel,
            rendezvous: self.rendezvous.clone(),
        };
        Ok((world > 1).then(assignment))
    }

    fn past(&self, run: &RunId) -> StoredPast {
        let (versions, broker) = (self.versions.clone(), self.broker.clone());
        StoredPast { run: run.clone(), versions, broker, runtime: Handle::current() }
    }

    /// Fetches the batch and the base version of a step. Of the version only `config.json`: the
    /// trainer may have the rest.
    async fn step(
        &self,
        run: &RunId,
        (version, manifest): (PolicyVersion, Sha),
        blob: BlobRef,
    ) -> Result<(LoadedVersion, Batch, BlobRef), Failure> {
        let bytes = self.versions.objects().get_blob(run, &blob).await?;
        let batch: Batch = decode("batch", &bytes).map_err(Failure::impossible)?;
        if batch.run != *run || batch.base != version || batch.manifest != manifest {
            let (of, base) = (&batch.run, batch.base);
            return Err(Failure::impossible(format!(
                "its batch is of run={of} base={base}, or of other weights"
            )));
        }
        let base = self.versions.fetch(run, version, manifest, Files::Config).await;
        Ok((base?, batch, blob))
    }

    /// Version 0. Of its files only `config.json`: the trainer may have the rest.
    async fn reference(&self, run: &RunId, manifest: Option<Sha>) -> Result<Option<LoadedVersion>, Failure> {
        let Some(manifest) = manifest else { return Ok(None) };
        let version = self.versions.fetch(run, PolicyVersion(0), manifest, Files::Config).await;
        Ok(Some(version?))
    }

    /// Stores the trained files. The other files of the base version are added by reference, so
    /// that every version is a whole model directory. Files that only training needs belong to one
    /// version alone. Trained files that the base version has too may become deltas.
    async fn store(
        &self,
        run: &RunId,
        trained: Trained,
        mut carried: Vec<FileRef>,
        may_delta: bool,
    ) -> Result<TrainShardDone, ObjectError> {
        carried.retain(|file| !is_for_training(&file.name));
        let base = |name: &str| carried.iter().find(|file| may_delta && file.name == name);
        let mut files: Vec<FileRef> = futures::stream::iter(trained.files)
            .map(async |(name, content)| self.versions.files().store(run, &name, content, base(&name)).await)
            .buffered(FILES_IN_FLIGHT)
            .try_collect()
            .await?;
        carried.retain(|file| files.iter().all(|trained| trained.name != file.name));
        files.extend(carried);
        Ok(TrainShardDone { files, metrics: trained.metrics })
    }
}

#[async_trait]
impl Executor for TrainShard {
    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict {
        let TaskBody::TrainShard(shard) = &task.body else { return Failure::misrouted(&task).into() };
        for_all_ranks(shard.world, self.train(&task.run, shard, cancel).await)
    }

    /// A step alone whose base another worker made: that one has the optimiser's state in memory,
    /// where this one would read a checkpoint and redo the steps since.
    fn passes_on(&self, task: &Task) -> bool {
        let TaskBody::TrainShard(TrainShardTask { world: 1, work, .. }) = &task.body else { return false };
        let TrainWork::Step { base, .. } = work else { return false };
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let has_state = made.as_ref().is_some_and(|(run, made)| run == &task.run && made == base);
        *base > PolicyVersion(0) && !has_state
    }

    fn is_well(&self) -> bool {
        self.thread.is_well() && self.device.as_ref().is_none_or(SharedDevice::is_well)
    }

    fn gate(&self) -> Option<watch::Receiver<bool>> {
        self.device.as_ref().map(|device| device.division().may_train())
    }
}

/// The verdict on a share of a step that `world` ranks make. If one rank must retry later, the
/// others would wait in vain, so the step is void and restarts for all of them.
#[must_use]
pub fn for_all_ranks(world: u32, share: Result<OutcomeBody, Failure>) -> Verdict {
    match share {
        Err(Failure::Retry(_, reason)) if world > 1 => {
            Ok((OutcomeBody::Void(StepVoid { reason }), Cost::default())).into()
        }
        share => share.map(|outcome| (outcome, Cost::default())).into(),
    }
}

#[cfg(test)]
mod tests;
