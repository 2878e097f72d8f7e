//! `--agents`: whether a worker hosts agents, and behind which walls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use millrace_gateway::{AgentsSettings, Plain, Sandboxed, Walls};
use millrace_queue::Broker;
use millrace_sandbox::egress::rules::{Private, Rule};
use millrace_sandbox::egress::{Egress, EgressSettings};
use millrace_schemas::env_step::AGENT;
use millrace_schemas::{Stage, WorkerId};

use crate::agent::AgentSteps;
use crate::runtime::{PolicyTable, PoolSettings};

/// Tasks of agents in flight at most. Each waits for its agent, and those of agents that there is no
/// room for must not keep the others from being pulled.
const CONCURRENCY: u32 = 4_096;

/// What to do where agents cannot be sandboxed.
const REMEDY: &str = "agents need a sandbox, and it does not work on this machine; --agents-without-sandbox \
    hosts those that you trust, as this user";

/// Agents of a worker.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct AgentArgs {
    /// Run the programs of runs with environment.name = agent, each in a sandbox of its own, and serve
    /// their pool. With a number, at most as many agents run at once
    #[arg(long, env = "MILLRACE_AGENTS", value_name = "N", num_args = 0..=1, default_missing_value = "64")]
    agents: Option<usize>,
    #[command(flatten)]
    walls: WallArgs,
}

/// What agents run in.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct WallArgs {
    /// Folders of this machine that agents may read at the same place, besides /usr, /bin and /lib*, a
    /// Python environment for example; all users must be able to read them. A folder bin in one of
    /// them is on the agents' PATH
    #[arg(long = "agents-read", env = "MILLRACE_AGENTS_READ", value_name = "PATH", value_delimiter = ',')]
    read: Vec<PathBuf>,
    /// Hosts that runs may open for their agents by environment.network: pypi.org:443, or
    /// *.pythonhosted.org:443 for all names below one. Without it agents reach none
    #[arg(
        long = "agents-network",
        env = "MILLRACE_AGENTS_NETWORK",
        value_name = "HOST:PORT",
        value_delimiter = ','
    )]
    network: Vec<Rule>,
    /// Private addresses that these hosts may have, a mirror within your network for example; other
    /// private addresses are refused, and metadata services always
    #[arg(
        long = "agents-network-private",
        env = "MILLRACE_AGENTS_NETWORK_PRIVATE",
        value_name = "ADDRESS:PORT",
        value_delimiter = ',',
        requires = "network"
    )]
    network_private: Vec<Private>,
    /// Run agents as this user, with nothing between them and this machine. A client that may submit a
    /// run may then do here whatever this user may
    #[arg(long = "agents-without-sandbox", env = "MILLRACE_AGENTS_WITHOUT_SANDBOX", conflicts_with_all = ["read", "network"])]
    is_bare: bool,
}

/// The program that outlives an agent, beside the worker's.
const GUARD: &str = "millrace-agent-guard";

/// Adds the pool of agents where the stage is served and agents are hosted.
pub(super) fn add_pool(pools: &mut Vec<PoolSettings>, args: &AgentArgs) {
    let is_agents = |pool: &PoolSettings| pool.stage == Stage::EnvStep && pool.pool.as_str() == AGENT;
    let serves = pools.iter().any(|pool| pool.stage == Stage::EnvStep);
    if args.agents.is_some() && serves && !pools.iter().any(is_agents) {
        let pool = AGENT.parse().expect("a built-in name is a pool's name");
        pools.push(PoolSettings { stage: Stage::EnvStep, pool, concurrency: CONCURRENCY });
    }
}

impl AgentArgs {
    /// How agents are hosted; `None` where they are not. `sandbox` is the program of the sandbox.
    ///
    /// # Errors
    /// There are no walls, and they were not renounced; the remedy.
    pub(super) async fn settings(
        &self,
        sandbox: Option<&Path>,
        pools: &[PoolSettings],
    ) -> anyhow::Result<Option<AgentsSettings>> {
        let Some(most) = self.agents.filter(|_| pools.iter().any(|pool| pool.stage == Stage::EnvStep)) else {
            return Ok(None);
        };
        let walls: Arc<dyn Walls> = match self.walls.is_bare {
            true => Arc::new(bare()?),
            false => Arc::new(self.walls.sandboxed(sandbox).await?),
        };
        Ok(Some(AgentsSettings { most: most.max(1), ..AgentsSettings::new(walls) }))
    }
}

/// Starts what agents need, where they are hosted.
pub(super) async fn start(
    settings: Option<AgentsSettings>,
    (broker, worker, policies): (&Broker, &WorkerId, &PolicyTable),
) -> anyhow::Result<Option<Arc<AgentSteps>>> {
    let Some(settings) = settings else { return Ok(None) };
    let agents = AgentSteps::start(broker.clone(), worker.clone(), policies.clone(), settings).await;
    Ok(Some(Arc::new(agents.context("failed to start the gateway for agents")?)))
}

impl WallArgs {
    /// Sandboxes, tried.
    ///
    /// # Errors
    /// A wall is missing; the remedy.
    pub(super) async fn sandboxed(&self, program: Option<&Path>) -> anyhow::Result<Sandboxed> {
        let program = program.context("millrace-sandbox is not beside this program; name it by --sandbox");
        let program = program.context(REMEDY)?.to_owned();
        let allowed = self.network.iter().cloned().collect();
        let network = EgressSettings::new(allowed, self.network_private.clone(), "--agents-network");
        let walls = Sandboxed::open(program, self.read.clone()).await.context(REMEDY)?;
        Ok(walls.with_network(Egress::new(network)))
    }
}

fn bare() -> anyhow::Result<Plain> {
    let guard = std::env::current_exe().context("failed to find this program")?.with_file_name(GUARD);
    anyhow::ensure!(
        guard.is_file(),
        "path={} is missing; it belongs beside millrace-worker",
        guard.display()
    );
    tracing::warn!("agents run as this user, without a sandbox: host those that you trust");
    Ok(Plain { guard: vec![guard.to_string_lossy().into_owned()] })
}
