//! A worker of the fleet and the GPUs on it: executors whose work is a time that passes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millrace_queue::Broker;
use millrace_schemas::envelope::decode;
use millrace_schemas::generate::{Finish, GenerateDone};
use millrace_schemas::reward::RewardDone;
use millrace_schemas::train_shard::{Batch, TrainShardTask, TrainWork};
use millrace_schemas::{OutcomeBody, PolicyVersion, RolloutId, RunId, Stage, Task, TaskBody, TaskKey};
use millrace_workers::runtime::{Tenant, TimeDivision};
use millrace_workers::{Cost, Executor, Failure, PolicyTable, Retry, Verdict};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::engine::{Engine, EngineUse};
use super::plant::Plant;
use crate::bench::lives::outcome;
use crate::virtual_run::gate;

/// What a worker is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Generate,
    Train,
    /// Both, in turn.
    Both,
    /// Environments and rewards; it has no GPU.
    Play,
}

/// A worker's machine.
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) division: Option<TimeDivision>,
    plant: Arc<Plant>,
    broker: Broker,
    engines: Vec<Arc<Engine>>,
    /// The engine of each prompt, where its samples stay together.
    pins: Mutex<BTreeMap<u64, usize>>,
    running: Vec<JoinHandle<()>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.running.iter().for_each(JoinHandle::abort);
    }
}

impl Node {
    pub(super) fn new(kind: Kind, plant: Arc<Plant>, broker: Broker) -> Arc<Self> {
        let division = (kind == Kind::Both).then(TimeDivision::default);
        if let Some(division) = &division {
            division.set_engine(Arc::new(Switch(Duration::from_secs_f64(plant.device.switch_s))));
        }
        let generates = matches!(kind, Kind::Generate | Kind::Both);
        let machine =
            if plant.fleet.is_central() { plant.fleet.generators() } else { plant.device.gpus_per_worker };
        let count = if generates { machine } else { 0 };
        let reload = Duration::from_secs_f64(plant.device.reload_s);
        let slots = plant.fleet.slots as usize;
        let engines: Vec<_> = (0..count).map(|_| Engine::new(plant.device.decode, slots, reload)).collect();
        let running = engines.iter().map(|engine| tokio::spawn(engine.clone().run())).collect();
        Arc::new(Self { kind, division, plant, broker, engines, pins: Mutex::default(), running })
    }

    /// Stages, and tasks of each in flight.
    pub(super) fn stages(&self) -> Vec<(Stage, u32)> {
        let fleet = &self.plant.fleet;
        // Where one scheduler has all engines, they keep the queue.
        let generate =
            if fleet.is_central() { 65_536 } else { fleet.slots * self.plant.device.gpus_per_worker };
        let train = [(Stage::TrainShard, 1), (Stage::PublishWeights, 1)];
        match self.kind {
            Kind::Generate => vec![(Stage::Generate, generate)],
            Kind::Train => train.into(),
            Kind::Both => [vec![(Stage::Generate, generate)], train.into()].concat(),
            Kind::Play => vec![(Stage::EnvStep, 65_536), (Stage::Reward, fleet.reward_slots)],
        }
    }

    /// From when to when each of its GPUs decoded.
    pub(super) fn spans(&self) -> impl Iterator<Item = Vec<(Instant, Instant)>> {
        self.engines.iter().map(|engine| engine.spans())
    }

    /// Over all GPUs.
    pub(super) fn used(&self) -> EngineUse {
        self.engines.iter().map(|engine| engine.used()).sum()
    }

    pub(super) fn executor(self: &Arc<Self>, stage: Stage, policies: &PolicyTable) -> Arc<dyn Executor> {
        Arc::new(Stages { stage, node: self.clone(), policies: policies.clone() })
    }

    /// The engine with the least to do, or the one that the prompt's other samples are on.
    fn engine(&self, group: u64) -> &Engine {
        let idlest = || {
            let loads = self.engines.iter().enumerate().map(|(at, engine)| (engine.load(), at));
            loads.min().map_or(0, |(_, at)| at)
        };
        let at = if self.plant.fleet.pinned {
            let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
            // By prompts, as a scheduler that does not know their lengths does.
            let next = pins.len() % self.engines.len();
            *pins.entry(group).or_insert(next)
        } else {
            idlest()
        };
        &self.engines[at]
    }
}

/// Weights and state that change places.
struct Switch(Duration);

#[async_trait]
impl Tenant for Switch {
    async fn leave(&self) -> Result<(), String> {
        sleep(self.0).await;
        Ok(())
    }

    fn come_back(&self) {}
}

/// Does the tasks of one stage.
struct Stages {
    stage: Stage,
    node: Arc<Node>,
    policies: PolicyTable,
}

impl Stages {
    async fn sample(&self, id: RolloutId, turn: u32, version: PolicyVersion, cancel: &CancellationToken) {
        let plant = &self.node.plant;
        if let Some(lockstep) = &plant.lockstep {
            lockstep.others().await;
        }
        let of_step = self.node.division.as_ref().map(TimeDivision::begin_turn);
        {
            let _works = plant.lockstep.as_ref().map(|lockstep| lockstep.works());
            let sampling = self.node.engine(id.group).sample(plant.tokens(id, turn), version.0);
            match &of_step {
                Some(turn) => {
                    if turn.hand_back().run_until_cancelled(sampling).await.is_none() {
                        // What is left when a synchronous batch is full belongs to no step.
                        cancel.cancel();
                        return std::future::pending().await;
                    }
                }
                None => sampling.await,
            }
        }
        drop(of_step);
        if let Some(lockstep) = &plant.lockstep {
            lockstep.others().await;
        }
    }

    async fn step_environment(&self, id: RolloutId, turn: u32) {
        let plant = &self.node.plant;
        let _works = plant.lockstep.as_ref().map(|lockstep| lockstep.works());
        if turn == 0 {
            if plant.hangs(id) {
                return std::future::pending().await;
            }
            plant.begin(id);
        }
        sleep(plant.env(id, turn)).await;
    }

    async fn train(&self, run: &RunId, shard: &TrainShardTask) -> Result<(), Failure> {
        let TrainWork::Step { base, batch, .. } = &shard.work else { return Ok(()) };
        let plant = &self.node.plant;
        if shard.rank == 0 {
            let bytes = self.node.broker.objects().get_blob(run, batch).await.map_err(Failure::soon)?;
            let batch: Batch = decode("batch", &bytes).map_err(Failure::impossible)?;
            let rollouts = batch.groups.iter().flat_map(|group| &group.rollouts).map(|rollout| rollout.id);
            plant.journal().trained.insert(base.next().0, rollouts.collect());
        }
        let _step = match &self.node.division {
            Some(division) => {
                let begun = division.begin_step().await;
                Some(begun.map_err(|error| Failure::Retry(Retry::Restart, error.to_string()))?)
            }
            None => None,
        };
        let began = Instant::now();
        sleep(Duration::from_secs_f64(plant.train_s())).await;
        let mut journal = plant.journal();
        journal.trained_s += began.elapsed().as_secs_f64() / f64::from(shard.world);
        if shard.rank == 0 {
            journal.train_spans.push((began, Instant::now()));
        }
        Ok(())
    }

    async fn score(&self, id: RolloutId) -> OutcomeBody {
        let plant = &self.node.plant;
        let took = plant.reward(id);
        let _works = plant.lockstep.as_ref().map(|lockstep| lockstep.works());
        sleep(took).await;
        plant.journal().rewards_s += took.as_secs_f64();
        OutcomeBody::Reward(RewardDone { score: plant.score(id), ..RewardDone::default() })
    }
}

#[async_trait]
impl Executor for Stages {
    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict {
        let version = self.policies.get(&task.run).map_or(task.version, |policy| policy.version);
        let done = match (task.key, task.body) {
            (TaskKey::Generate { rollout, turn }, TaskBody::Generate(mut generate)) => {
                self.sample(rollout, turn, version, &cancel).await;
                let mut done = GenerateDone { finish: Finish::Length, ..generate.turn_so_far() };
                done.push(1, -0.5, version);
                OutcomeBody::Generate(done)
            }
            (TaskKey::EnvStep { rollout, turn }, body) => {
                self.step_environment(rollout, turn).await;
                outcome(body, self.node.plant.turns(rollout))
            }
            (TaskKey::Reward { rollout, .. }, TaskBody::Reward(_)) => self.score(rollout).await,
            (_, TaskBody::TrainShard(shard)) => match self.train(&task.run, &shard).await {
                Ok(()) => outcome(TaskBody::TrainShard(shard), 1),
                Err(failure) => return failure.into(),
            },
            (TaskKey::PublishWeights { version, .. }, body) => {
                self.node.plant.journal().published.entry(version).or_insert_with(Instant::now);
                outcome(body, 1)
            }
            (_, body) => outcome(body, 1),
        };
        Verdict::Done(done, Cost::default())
    }

    fn gate(&self) -> Option<watch::Receiver<bool>> {
        gate(self.node.division.as_ref(), self.stage)
    }
}
