//! Which executor does which stage, and which pools a worker serves if it is not told.

use std::sync::Arc;

use millrace_queue::{Broker, Objects};
use millrace_schemas::{PoolName, Stage, subjects};

use crate::envs::datasets::Datasets;
use crate::gang::{MemoryRendezvous, Rendezvous};
use crate::generate::Generate;
use crate::model::text_codec::Codecs;
use crate::model::versions::VersionStore;
use crate::policy::openai::ServerSettings;
use crate::program::Program;
use crate::publish_weights::PublishWeights;
use crate::rewards::Tools;
use crate::runtime::{Executor, PolicyTable, PoolSettings};
use crate::train_shard::TrainShard;
use crate::{env_step, envs, reward, rewards};

/// The real executors.
#[derive(Debug, Clone)]
pub struct Executors {
    policies: PolicyTable,
    versions: VersionStore,
    rendezvous: Arc<dyn Rendezvous>,
    program: Option<Arc<Program>>,
    server: Option<ServerSettings>,
    tools: Arc<Tools>,
    broker: Option<Broker>,
}

impl Executors {
    /// Executors that share one cache of weights. The members of a gang meet within this process, unless
    /// [`Self::with_rendezvous`] says otherwise.
    #[must_use]
    pub fn new(objects: Objects, policies: PolicyTable) -> Self {
        let (versions, rendezvous) = (VersionStore::new(objects), Arc::new(MemoryRendezvous::default()));
        Self {
            policies,
            versions,
            rendezvous,
            program: None,
            server: None,
            tools: Arc::default(),
            broker: None,
        }
    }

    /// The same, with a trainer that reads the trajectories of its batches by `broker`.
    #[must_use]
    pub fn reading(self, broker: Broker) -> Self {
        Self { broker: Some(broker), ..self }
    }

    /// The same, with members that meet at `rendezvous`.
    #[must_use]
    pub fn with_rendezvous(self, rendezvous: Arc<dyn Rendezvous>) -> Self {
        Self { rendezvous, ..self }
    }

    /// The same, with a program that answers for environments and rewards of one's own.
    #[must_use]
    pub fn asking(self, program: Option<Arc<Program>>) -> Self {
        Self { program, ..self }
    }

    /// The same, with a server elsewhere that generates, if there is one.
    #[must_use]
    pub fn generating_at(self, server: Option<ServerSettings>) -> Self {
        Self { server, ..self }
    }

    /// The same, with what rewards need besides their tasks.
    #[must_use]
    pub fn scoring_with(self, tools: Tools) -> Self {
        Self { tools: Arc::new(tools), ..self }
    }

    /// The executor of a stage. An engine's or trainer's thread starts with it.
    ///
    /// # Panics
    /// For [`Stage::Submit`], which has no tasks.
    #[must_use]
    pub fn executor(&self, stage: Stage) -> Arc<dyn Executor> {
        match stage {
            Stage::Generate => {
                let (policies, versions) = (self.policies.clone(), self.versions.clone());
                Arc::new(match &self.server {
                    Some(server) => Generate::by_server(policies, versions, server.clone()),
                    None => Generate::new(policies, versions),
                })
            }
            Stage::EnvStep => {
                let codecs = Codecs::new(self.policies.clone(), self.versions.clone());
                let datasets = Datasets::new(self.versions.blobs().clone());
                Arc::new(env_step::EnvStep::speaking(codecs, datasets).asking(self.program.clone()))
            }
            Stage::Reward => Arc::new(reward::Reward::asking(self.program.clone()).with(self.tools.clone())),
            Stage::TrainShard => {
                let trainer = TrainShard::new(self.versions.clone()).reading(self.broker.clone());
                Arc::new(trainer.with_rendezvous(self.rendezvous.clone()))
            }
            Stage::PublishWeights => Arc::new(PublishWeights::new(self.versions.objects().clone())),
            Stage::Submit => unreachable!("submit has no tasks"),
        }
    }
}

/// Tasks in hand of each of a stage's pools, if not told otherwise. An engine batches what is in hand; steps
/// of an environment wait for the log, not for the processor; a trainer does one step at a time.
#[must_use]
pub const fn default_concurrency(stage: Stage) -> u32 {
    match stage {
        Stage::Generate => 256,
        Stage::EnvStep | Stage::Reward => 64,
        Stage::TrainShard | Stage::PublishWeights | Stage::Submit => 1,
    }
}

/// The pools of a stage, if not told otherwise: all that this build can serve.
///
/// # Panics
/// Never: the names are within the bounds of a pool's name.
#[must_use]
pub fn default_pools(stage: Stage) -> Vec<PoolName> {
    let names: Vec<&str> = match stage {
        Stage::Generate => vec![subjects::GENERATE_POOL],
        Stage::EnvStep => envs::NAMES.to_vec(),
        Stage::Reward => rewards::RULES.map(|rule| rule.name()).to_vec(),
        Stage::TrainShard => vec![subjects::TRAIN_POOL],
        Stage::PublishWeights => vec![subjects::PUBLISH_POOL],
        Stage::Submit => Vec::new(),
    };
    names.into_iter().map(|name| name.parse().expect("built-in names are pool names")).collect()
}

/// All default pools of a stage, `concurrency` tasks in hand each.
#[must_use]
pub fn default_settings(stage: Stage, concurrency: u32) -> Vec<PoolSettings> {
    default_pools(stage).into_iter().map(|pool| PoolSettings { stage, pool, concurrency }).collect()
}
