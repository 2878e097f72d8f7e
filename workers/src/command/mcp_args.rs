//! `--mcp`: servers of tools beside a worker, and the pool that it serves with them.

use millrace_schemas::Stage;
use millrace_schemas::env_step::DATASET_TOOLS_POOL;

use crate::mcp::{McpArg, McpError, McpServers};
use crate::runtime::PoolSettings;

/// Servers of tools.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct McpArgs {
    /// An MCP server whose tools the policy of a run may call, by the name that run files give it, and
    /// its command line, run by the shell: calculator="python3 calc.py". Several by repeating it, or a
    /// line each in the variable. It speaks over its standard input and output, and gets few variables
    /// of this environment: set others before the program, calculator="KEY=value python3 calc.py"
    #[arg(long = "mcp", env = "MILLRACE_MCP", value_name = "NAME=COMMAND", value_delimiter = '\n')]
    mcp: Vec<McpArg>,
}

impl McpArgs {
    /// Starts them.
    ///
    /// # Errors
    /// One does not start.
    pub(super) async fn start(&self) -> Result<McpServers, McpError> {
        McpServers::start(&self.mcp).await
    }

    /// Starts them if the worker serves the stage that calls them.
    ///
    /// # Errors
    /// One does not start.
    pub(super) async fn start_for(&self, pools: &[PoolSettings]) -> Result<McpServers, McpError> {
        let is_served = pools.iter().any(|pool| pool.stage == Stage::EnvStep);
        if is_served { self.start().await } else { Ok(McpServers::default()) }
    }

    /// Adds the pool of runs with tools where the stage is served and there are some.
    pub(super) fn add_pool(&self, pools: &mut Vec<PoolSettings>) {
        let is_ours =
            |pool: &PoolSettings| pool.stage == Stage::EnvStep && pool.pool.as_str() == DATASET_TOOLS_POOL;
        let served = pools.iter().filter(|pool| pool.stage == Stage::EnvStep);
        let concurrency = served.map(|pool| pool.concurrency).max();
        if let Some(concurrency) = concurrency.filter(|_| !self.mcp.is_empty() && !pools.iter().any(is_ours))
        {
            let pool = DATASET_TOOLS_POOL.parse().expect("a built-in name is a pool's name");
            pools.push(PoolSettings { stage: Stage::EnvStep, pool, concurrency });
        }
    }
}
