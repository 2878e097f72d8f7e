//! `--agents`: whether a worker hosts agents.

use std::sync::Arc;

use anyhow::Context;
use millrace_gateway::{AgentsSettings, Plain};
use millrace_queue::Broker;
use millrace_schemas::env_step::AGENT;
use millrace_schemas::{Stage, WorkerId};

use crate::agent::AgentSteps;
use crate::runtime::{PolicyTable, PoolSettings};

/// Tasks of agents in flight at most. Each waits for its agent, and those of agents that there is no
/// room for must not keep the others from being pulled.
const CONCURRENCY: u32 = 4_096;

/// The program that outlives an agent, beside the worker's.
const GUARD: &str = "millrace-agent-guard";

/// Adds the pool of agents where the stage is served and agents are hosted.
pub(super) fn add_pool(pools: &mut Vec<PoolSettings>, hosts: bool) {
    let is_agents = |pool: &PoolSettings| pool.stage == Stage::EnvStep && pool.pool.as_str() == AGENT;
    let serves = pools.iter().any(|pool| pool.stage == Stage::EnvStep);
    if hosts && serves && !pools.iter().any(is_agents) {
        let pool = AGENT.parse().expect("a built-in name is a pool's name");
        pools.push(PoolSettings { stage: Stage::EnvStep, pool, concurrency: CONCURRENCY });
    }
}

/// Starts what agents need, where they are hosted.
pub(super) async fn start(
    most: Option<usize>,
    pools: &[PoolSettings],
    (broker, worker, policies): (&Broker, &WorkerId, &PolicyTable),
) -> anyhow::Result<Option<Arc<AgentSteps>>> {
    let Some(most) = most.filter(|_| pools.iter().any(|pool| pool.stage == Stage::EnvStep)) else {
        return Ok(None);
    };
    let guard = std::env::current_exe().context("failed to find this program")?.with_file_name(GUARD);
    anyhow::ensure!(
        guard.is_file(),
        "path={} is missing; it belongs beside millrace-worker",
        guard.display()
    );
    let walls = Arc::new(Plain { guard: vec![guard.to_string_lossy().into_owned()] });
    tracing::warn!("agents run as this user, without a sandbox: host those that you trust");
    let settings = AgentsSettings { most: most.max(1), ..AgentsSettings::new(walls) };
    let agents = AgentSteps::start(broker.clone(), worker.clone(), policies.clone(), settings).await;
    Ok(Some(Arc::new(agents.context("failed to start the gateway for agents")?)))
}
