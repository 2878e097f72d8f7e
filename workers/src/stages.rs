//! The executor of each stage, and the pools that a worker serves by default.

use std::sync::Arc;

use millrace_policy::gang::{MemoryRendezvous, Rendezvous};
use millrace_queue::{Broker, Objects};
use millrace_schemas::{PoolName, Stage, subjects};

use crate::agent::AgentSteps;
use crate::envs::datasets::Datasets;
use crate::generate::Generate;
use crate::mcp::McpServers;
use crate::model::codecs::Codecs;
use crate::model::folder::Folder;
use crate::model::versions::VersionStore;
use crate::policy::openai::ServerSettings;
use crate::program::Program;
use crate::publish_weights::PublishWeights;
use crate::rewards::Tools;
use crate::runtime::{Executor, PolicyTable, PoolSettings};
use crate::train_shard::{SharedDevice, TrainShard};
use crate::{env_step, envs, reward, rewards};

/// Makes the executors of a worker. They share one cache of versions.
#[derive(Clone)]
pub struct Executors {
    policies: PolicyTable,
    versions: VersionStore,
    rendezvous: Arc<dyn Rendezvous>,
    program: Option<Arc<Program>>,
    server: Option<ServerSettings>,
    tools: Arc<Tools>,
    broker: Option<Broker>,
    device: Option<SharedDevice>,
    agents: Option<Arc<AgentSteps>>,
    servers: Arc<McpServers>,
}

impl Executors {
    /// The rendezvous of a gang is within this process, unless [`Self::with_rendezvous`] sets
    /// another.
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
            device: None,
            agents: None,
            servers: Arc::default(),
        }
    }

    /// The same, with a broker that reads the trajectories of a trainer's batches.
    #[must_use]
    pub fn reading(self, broker: Broker) -> Self {
        Self { broker: Some(broker), ..self }
    }

    /// The same, with agents.
    #[must_use]
    pub fn hosting(self, agents: Option<Arc<AgentSteps>>) -> Self {
        Self { agents, ..self }
    }

    /// The same, with servers of tools that the policy may call.
    #[must_use]
    pub fn calling(self, servers: McpServers) -> Self {
        Self { servers: Arc::new(servers), ..self }
    }

    /// The same, with another rendezvous for the members of a gang.
    #[must_use]
    pub fn with_rendezvous(self, rendezvous: Arc<dyn Rendezvous>) -> Self {
        Self { rendezvous, ..self }
    }

    /// The same, with a user's program for environments and rewards.
    #[must_use]
    pub fn asking(self, program: Option<Arc<Program>>) -> Self {
        Self { program, ..self }
    }

    /// The same, with an inference server instead of an engine, if there is one.
    #[must_use]
    pub fn generating_at(self, server: Option<ServerSettings>) -> Self {
        Self { server, ..self }
    }

    /// The same, with a device that generating and training use in turn, if they share one.
    #[must_use]
    pub fn sharing(self, device: Option<SharedDevice>) -> Self {
        Self { device, ..self }
    }

    /// The same, with a folder in which the workers of this machine share weights, if they have one.
    #[must_use]
    pub(crate) fn keeping_weights_in(self, folder: Option<Arc<Folder>>) -> Self {
        Self { versions: self.versions.sharing(folder), ..self }
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
                let generate = match &self.server {
                    Some(server) => Generate::by_server(policies, versions, server.clone()),
                    None => Generate::new(policies, versions),
                };
                Arc::new(match &self.device {
                    Some(device) => generate.sharing(device.division().clone()),
                    None => generate,
                })
            }
            Stage::EnvStep => {
                let codecs = Codecs::new(self.policies.clone(), self.versions.clone());
                let datasets = Datasets::new(self.versions.blobs().clone());
                let env_step = env_step::EnvStep::speaking(codecs, datasets).asking(self.program.clone());
                Arc::new(env_step.hosting(self.agents.clone()).calling(self.servers.clone()))
            }
            Stage::Reward => Arc::new(reward::Reward::asking(self.program.clone()).with(self.tools.clone())),
            Stage::TrainShard => {
                let trainer = TrainShard::new(self.versions.clone()).reading(self.broker.clone());
                Arc::new(trainer.with_rendezvous(self.rendezvous.clone()).sharing(self.device.clone()))
            }
            Stage::PublishWeights => Arc::new(PublishWeights::new(self.versions.objects().clone())),
            Stage::Submit => unreachable!("submit has no tasks"),
        }
    }
}

/// Tasks in flight of each pool by default. An engine batches the tasks in flight; steps of an
/// environment wait for the log, not for the processor; a trainer makes one step at a time.
#[must_use]
pub const fn default_concurrency(stage: Stage) -> u32 {
    match stage {
        Stage::Generate => 256,
        Stage::EnvStep | Stage::Reward => 64,
        Stage::TrainShard | Stage::PublishWeights | Stage::Submit => 1,
    }
}

/// The pools of a stage by default: all that this build can serve.
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

/// All default pools of a stage, `concurrency` tasks in flight each.
#[must_use]
pub fn default_settings(stage: Stage, concurrency: u32) -> Vec<PoolSettings> {
    default_pools(stage).into_iter().map(|pool| PoolSettings { stage, pool, concurrency }).collect()
}
