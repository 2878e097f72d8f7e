//! How simulated workers do their tasks: the real executors, but for those that own threads. Those two sample
//! and train by script in place, with the real weights from the object store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millrace_policy::{Engine, EngineRequest, LoadedVersion, Ticket};
use millrace_queue::Broker;
use millrace_schemas::limits::DEVICE_RELEASE_MS;
use millrace_schemas::policy::Policy;
use millrace_schemas::{OutcomeBody, PolicyVersion, RunId, Stage, Task, TaskBody, TaskKey};
use millrace_workers::env_step::EnvStep;
use millrace_workers::model::versions::{Files, VersionStore};
use millrace_workers::policy::scripted::ScriptedWeights;
use millrace_workers::publish_weights::PublishWeights;
use millrace_workers::reward::Reward;
use millrace_workers::runtime::{Tenant, TimeDivision};
use millrace_workers::{Cost, Executor, Failure, PolicyTable, Verdict};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::link::Link;
use super::scenario::FaultKind;
use super::world::World;
use agents::Agents;
use forks::Forks;
use train::Train;

pub(super) mod agents;
mod forks;
mod train;

/// Poll interval of the policies.
const LOOK: Duration = Duration::from_millis(20);
/// How long a turn waits for weights, as in the real executor.
const WEIGHTS_WAIT: Duration = Duration::from_secs(60);
/// Of this many rollouts one is cursed while poison is about.
const CURSED: u8 = 11;

/// The executor of a stage, in a process at the end of `link`. `device` is the one that generating and
/// training share, if they do.
pub(super) fn executor(
    stage: Stage,
    link: &Link,
    broker: &Broker,
    policies: &PolicyTable,
    device: Option<&TimeDivision>,
) -> Arc<dyn Executor> {
    let objects = broker.objects();
    let versions = VersionStore::new(objects.clone());
    let inner: Arc<dyn Executor> = match stage {
        Stage::Generate => {
            if let Some(device) = device {
                device.set_engine(Arc::new(SlowEngine { world: link.world.clone() }));
            }
            Arc::new(Generate {
                link: link.clone(),
                policies: policies.clone(),
                versions,
                device: device.cloned().unwrap_or_default(),
                is_shared: device.is_some(),
            })
        }
        Stage::EnvStep => {
            let linear = Forks { inner: EnvStep::default(), world: link.world.clone() };
            Arc::new(Agents::new(linear, link))
        }
        Stage::Reward => Arc::new(Reward::default()),
        Stage::TrainShard => {
            let (world, broker, device) = (link.world.clone(), broker.clone(), device.cloned());
            Arc::new(Train { world, broker, versions, device })
        }
        Stage::PublishWeights => Arc::new(PublishWeights::new(objects.clone())),
        Stage::Submit => unreachable!("submit has no tasks"),
    };
    Arc::new(Troubled { inner, link: link.clone() })
}

/// Work that takes time, hangs, or cannot be done.
struct Troubled {
    inner: Arc<dyn Executor>,
    link: Link,
}

#[async_trait]
impl Executor for Troubled {
    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict {
        let world = &self.link.world;
        let most = if task.stage() == Stage::TrainShard { 400 } else { 40 };
        sleep(world.time(1, most)).await;
        self.link.awake().await;
        if world.strikes(FaultKind::Hang) && task.stage() != Stage::TrainShard {
            world.hangs(task.stage());
            std::future::pending::<()>().await;
        }
        if task.stage() == Stage::Reward && world.befalls(FaultKind::RewardFails, task.run.as_str()) {
            return Verdict::Poison("the rule divides by zero".to_owned());
        }
        if world.has(FaultKind::Poison) && is_cursed(world, &task) {
            return Verdict::Poison("it is cursed".to_owned());
        }
        let verdict = self.inner.execute(task, cancel).await;
        self.link.awake().await;
        verdict
    }

    fn hand_back(&self) -> bool {
        self.inner.hand_back()
    }

    fn gate(&self) -> Option<watch::Receiver<bool>> {
        self.inner.gate()
    }

    fn is_well(&self) -> bool {
        self.inner.is_well()
    }
}

/// An engine that takes a while to release its device, and at times longer than is waited for.
struct SlowEngine {
    world: Arc<World>,
}

#[async_trait]
impl Tenant for SlowEngine {
    async fn leave(&self) -> Result<(), String> {
        let most = if self.world.strikes(FaultKind::Hang) { 3 * DEVICE_RELEASE_MS } else { 200 };
        sleep(self.world.time(1, most)).await;
        Ok(())
    }

    fn come_back(&self) {}
}

/// Whether nobody can do a task of this rollout. The same rollout is cursed everywhere.
fn is_cursed(world: &World, task: &Task) -> bool {
    let Some(id) = task.key.rollout() else { return false };
    world.lot(format_args!("{} {id}", task.run))[0].is_multiple_of(CURSED)
}

/// Samples by script, under the policy of the moment: a turn may begin under one version and end under the
/// next.
struct Generate {
    link: Link,
    policies: PolicyTable,
    versions: VersionStore,
    /// Ends turns with what was sampled when the worker leaves or trains.
    device: TimeDivision,
    is_shared: bool,
}

impl Generate {
    async fn policy(&self, run: &RunId, version: PolicyVersion) -> Result<Policy, Failure> {
        let ready = async {
            loop {
                match self.policies.get(run) {
                    Some(policy) if policy.version >= version => return policy,
                    // The seed does not determine the order in which waiters for a change wake.
                    Some(_) | None => sleep(LOOK).await,
                }
            }
        };
        let late = |_| Failure::soon(format!("weights of {version} did not come in time"));
        timeout(WEIGHTS_WAIT, ready).await.map_err(late)
    }

    async fn load(&self, run: &RunId, policy: &Policy) -> Result<LoadedVersion, Failure> {
        Ok(self.versions.fetch(run, policy.version, policy.manifest, Files::Model).await?)
    }

    async fn sample(
        &self,
        task: Task,
        hand_back: &CancellationToken,
        cancel: &CancellationToken,
    ) -> Result<(OutcomeBody, Cost), Failure> {
        let started = Instant::now();
        let (TaskBody::Generate(body), TaskKey::Generate { rollout, .. }) = (task.body, task.key) else {
            return Err(Failure::impossible("it is not for this stage"));
        };
        let (run, from) = (task.run, body.min_version);
        let oldest = body.oldest_version();
        let begun = body.sampled.as_ref().map_or(0, |sampled| sampled.tokens.len());
        let Some(policy) = hand_back.run_until_cancelled(self.policy(&run, from)).await else {
            return Err(give_up(cancel).await);
        };
        let mut policy = policy?;
        let mut engine = ScriptedWeights::read(&self.load(&run, &policy).await?)?.engine();
        engine.admit(EngineRequest { ticket: Ticket(0), rollout, task: body });
        loop {
            sleep(self.link.world.time(1, 30)).await;
            let newer = self.policies.get(&run).filter(|newer| newer.version > policy.version);
            if let Some(newer) = newer
                && let Ok(loaded) = self.load(&run, &newer).await
            {
                engine.swap(Box::new(ScriptedWeights::read(&loaded)?))?;
                policy = newer;
            }
            let ends = hand_back.is_cancelled();
            let part = if ends { engine.abandon(Ticket(0)) } else { None };
            let done = match part.filter(|done| done.tokens.len() > begun) {
                Some(part) => part,
                None if ends => return Err(give_up(cancel).await),
                None => match engine.step()?.pop() {
                    Some(finished) => finished.result?,
                    None => continue,
                },
            };
            let checked = done.check().and_then(|()| done.check_versions(oldest, policy.version));
            checked.map_err(Failure::soon)?;
            let cost = Cost { busy: Some(started.elapsed()), tokens: done.tokens.len() as u64 };
            return Ok((OutcomeBody::Generate(done), cost));
        }
    }
}

/// Returns the task of a turn of which nothing was sampled to the queue, as the real executor does.
async fn give_up(cancel: &CancellationToken) -> Failure {
    cancel.cancel();
    std::future::pending().await
}

#[async_trait]
impl Executor for Generate {
    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict {
        let turn = self.device.begin_turn();
        let hand_back = turn.hand_back().clone();
        let sampled = self.sample(task, &hand_back, &cancel);
        let ended = tokio::select! {
            biased;
            sampled = sampled => Some(sampled),
            // From here on the process waits for its cancellation, without the device.
            () = cancel.cancelled() => None,
            () = turn.abandon().cancelled() => None,
        };
        drop(turn);
        match ended {
            Some(sampled) => sampled.into(),
            None => give_up(&cancel).await.into(),
        }
    }

    fn hand_back(&self) -> bool {
        self.device.leave();
        true
    }

    fn gate(&self) -> Option<watch::Receiver<bool>> {
        self.is_shared.then(|| self.device.may_generate())
    }
}
