//! The `millrace-worker` command: parses the command line and starts a worker, which serves until
//! it must leave.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use millrace_queue::{Broker, ConnectArgs, JetStream, Objects};
use millrace_schemas::reward::RewardRule;
use millrace_schemas::{Stage, WorkerId};
use millrace_telemetry::TelemetryArgs;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::machine::MachineArgs;
use crate::program::Program;
use crate::rewards::Tools;
use crate::rewards::tools::ToolArgs;
use crate::runtime::{Departure, Executor, PoolSettings, Signals, StandBy, Worker, WorkerSettings};
use crate::stages::Executors;
use crate::torch::TorchArgs;
use crate::train_shard::KeyRendezvous;
use arguments::cache::CacheArgs;
use arguments::engine::EngineArgs;
use arguments::time_division::TimeDivisionArgs;
use arguments::{PoolArg, StageArg, pools};

use agents::AgentArgs;
use baselines::Baselines;
use check_data::CheckData;
use check_model::CheckModel;
use check_sandbox::CheckSandbox;
use mcp_args::McpArgs;

pub mod arguments;
mod again;
mod worker_name;
mod agents;
mod baselines;
mod check_data;
mod check_model;
mod check_sandbox;
mod mcp_args;

/// Executes the tasks of some stages. Stateless: start as many as you like, and stop them when you
/// like
#[derive(Debug, Parser)]
#[command(name = "millrace-worker", version)]
#[command(
    after_help = "`millrace-worker check-model DIR` reports what is wrong with a model directory, `check-data` with a file of rows, \
                  `check-sandbox` with this machine's sandbox; `baselines` plays rules that learn nothing."
)]
struct Arguments {
    /// Address of the queue; several servers of a cluster with commas
    #[arg(long, env = "NATS_URL", hide_env_values = true, default_value = "nats://127.0.0.1:4222")]
    nats: String,
    #[command(flatten)]
    connect: ConnectArgs,
    /// The object store: a folder, or s3://bucket/prefix
    #[arg(long, env = "MILLRACE_OBJECTS")]
    objects: String,
    #[command(flatten)]
    cache: CacheArgs,
    /// Stages: generate, env_step, reward, train_shard, publish_weights. With `:64` at most 64
    /// tasks of each pool are in flight
    #[arg(long, env = "MILLRACE_STAGES", required = true, value_delimiter = ',')]
    stages: Vec<StageArg>,
    /// Only these pools, as stage/pool: env_step/frozen_lake. Default: all that this build can
    /// serve
    #[arg(long, env = "MILLRACE_POOLS", value_delimiter = ',')]
    pools: Vec<PoolArg>,
    /// A program of your own, run by the shell, for environments and rewards that Millrace does not
    /// have. It speaks over its standard input and output. See python/ for one in Python
    #[arg(long, env = "MILLRACE_EXEC", value_name = "COMMAND")]
    exec: Option<String>,
    /// Copies of that program that run at once. Default: one per processor
    #[arg(long, env = "MILLRACE_EXEC_COPIES", value_name = "N")]
    exec_copies: Option<usize>,
    #[command(flatten)]
    mcp: McpArgs,
    #[command(flatten)]
    agents: AgentArgs,
    /// This worker's name: a-z, 0-9, '-' and '_'. Default: the machine's name and this process's
    /// number on it, the same after a restart
    #[arg(long, env = "MILLRACE_WORKER_ID")]
    id: Option<WorkerId>,
    /// Seconds to finish the tasks in flight when the worker must leave; the rest returns to the
    /// queue. Default: 20
    #[arg(long, env = "MILLRACE_GRACE", default_value_t = 20.0)]
    grace: f64,
    /// Seconds that it stands by, not ready, after it left at the coordinator's request. Then, or when the
    /// coordinator recalls it, it serves again; a signal ends it. For a place that restarts what ends, and
    /// ends first what is not ready: Kubernetes
    #[arg(long, env = "MILLRACE_LINGER", value_name = "SECONDS", default_value_t = 0.0)]
    linger: f64,
    /// The pool of workers that it belongs to, by its name in the scaling file. Default: the pool that
    /// serves the same stages
    #[arg(long, env = "MILLRACE_POOL", value_name = "NAME")]
    member_of: Option<String>,
    #[command(flatten)]
    time_division: TimeDivisionArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    tools: ToolArgs,
    #[command(flatten)]
    torch: TorchArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

/// Executes the command line of the process.
///
/// # Errors
/// What failed, and the remedy.
pub fn main() -> anyhow::Result<()> {
    if let Some(checked) = checked() {
        return checked;
    }
    let signals = noted()?;
    let next = Runtime::new()?.block_on(serve(Arguments::parse(), &signals, |_, executor| executor))?;
    // The runtime and all that it started are gone.
    match next {
        Next::ServeAgain if !signals.hold()? => again::again(),
        Next::ServeAgain | Next::End => Ok(()),
    }
}

/// What the process does after it left.
#[derive(Debug)]
enum Next {
    End,
    /// It is needed again, unless something ends it.
    ServeAgain,
}

/// Serves as the command line `arguments` say, its program first, with what `wrapped` makes of each
/// stage's executor. For measurements on workers that are slower than this machine.
///
/// # Errors
/// What failed, and the remedy.
pub fn serve_with(
    arguments: impl IntoIterator<Item = OsString>,
    wrapped: impl Fn(Stage, Arc<dyn Executor>) -> Arc<dyn Executor>,
) -> anyhow::Result<()> {
    let signals = noted()?;
    Runtime::new()?.block_on(serve(Arguments::parse_from(arguments), &signals, wrapped)).map(drop)
}

/// First of all, before the runtime has threads: process 1 of a container never sees a signal that came before.
fn noted() -> anyhow::Result<Signals> {
    Signals::note().context("failed to listen to signals")
}

/// Executes the command line of the process if it asks for anything but to serve. A signal ends it.
fn checked() -> Option<anyhow::Result<()>> {
    if let Some(check) = CheckModel::asked(std::env::args_os()) {
        return Some(to_its_end(async move { check.run() }));
    }
    if let Some(check) = CheckData::asked(std::env::args_os()) {
        return Some(to_its_end(async move { check.run().await }));
    }
    if let Some(baselines) = Baselines::asked(std::env::args_os()) {
        return Some(to_its_end(async move { baselines.run() }));
    }
    let check = CheckSandbox::asked(std::env::args_os())?;
    Some(to_its_end(async move { check.run().await }))
}

fn to_its_end(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    Runtime::new()?.block_on(work)
}

async fn serve(
    arguments: Arguments,
    signals: &Signals,
    wrapped: impl Fn(Stage, Arc<dyn Executor>) -> Arc<dyn Executor>,
) -> anyhow::Result<Next> {
    let start = Instant::now();
    let departure = Departure::default();
    signals.heed(departure.clone()).context("failed to listen to signals")?;
    let telemetry = arguments.telemetry.start("millrace-worker").await?;
    arguments.torch.apply(&arguments.nats).map_err(anyhow::Error::msg)?;
    let program = start_program(arguments.exec.as_deref(), arguments.exec_copies).await?;
    let offers = |stage| program.as_ref().map_or(&[][..], |program| program.pools(stage));
    let mut pools = pools(&arguments.stages, &arguments.pools, offers)?;
    arguments.mcp.add_pool(&mut pools);
    // Agents have a concurrency of their own, so their pool comes last.
    agents::add_pool(&mut pools, &arguments.agents);
    let server = arguments.engine.server()?;
    let device = arguments.time_division.device(&pools, server.is_some())?;
    let tools = arguments.tools.tools().context("failed to read --judge-key-file")?;
    warn_without_sandbox(&tools, &pools).await;
    let agents = arguments.agents.settings(tools.code().program(), &pools).await?;
    let servers = arguments.mcp.start_for(&pools).await.context("failed to start --mcp")?;
    let id = arguments.id.unwrap_or_else(worker_name::default_name);
    let objects = Objects::open(&arguments.objects)?;
    let folder = arguments.cache.folder()?;
    let connect = JetStream::connect(&arguments.nats, id.as_str(), arguments.connect.options()?);
    let Some(queue) = departure.requested().run_until_cancelled(connect).await else {
        tracing::info!(%id, settled = true, "left");
        return Ok(Next::End);
    };
    let broker = Broker::new(queue?, objects.clone());

    let (of_machine, machine) = watch::channel(None);
    let watched = arguments.machine.watch(departure.clone(), of_machine)?;
    let grace = Duration::try_from_secs_f64(arguments.grace).context("failed to read --grace")?;
    let linger = Duration::try_from_secs_f64(arguments.linger).context("failed to read --linger")?;
    let rendezvous = KeyRendezvous::new(broker.clone(), Handle::current());
    let (tracer, member_of) = (telemetry.tracer.clone(), arguments.member_of);
    let stages = pools.iter().map(|pool| pool.stage).collect();
    let stand_by =
        StandBy { broker: broker.clone(), worker: id.clone(), member_of: member_of.clone(), stages, start };
    let time_division = device.as_ref().map(|device| device.division().clone());
    let settings = WorkerSettings {
        grace,
        machine,
        member_of,
        tracer,
        time_division,
        ..WorkerSettings::new(id.clone())
    };
    let worker = Worker::start(broker.clone(), settings);
    let executors = Executors::new(objects, worker.policies().clone());
    let executors = executors.with_rendezvous(Arc::new(rendezvous)).asking(program).generating_at(server);
    let executors = executors.scoring_with(tools).reading(broker.clone()).sharing(device);
    let hosted = agents::start(agents, (&broker, &id, worker.policies())).await?;
    let executors = executors.hosting(hosted).calling(servers).keeping_weights_in(folder);
    tracing::info!(%id, pools = pools.len(), "serving");
    let executor = |stage| wrapped(stage, executors.executor(stage));
    let settled = worker.serve(pools, executor, telemetry.health, departure.clone()).await;
    telemetry.tracer.finish().await;
    tracing::info!(%id, settled, "left");
    if stand_by.is_needed(&departure, linger).await {
        tracing::info!(%id, "needed again; starting again");
        return Ok(Next::ServeAgain);
    }
    if let Some(watched) = watched {
        watched.left().await;
    }
    Ok(Next::End)
}

/// Starts the user's program, if there is one.
async fn start_program(command: Option<&str>, copies: Option<usize>) -> anyhow::Result<Option<Arc<Program>>> {
    let Some(command) = command else { return Ok(None) };
    let copies = copies.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    Ok(Some(Arc::new(Program::start(command, copies).await?)))
}

/// Warns at the start about what this machine lacks for the reward `code`. A task that needs it
/// would report that much later.
async fn warn_without_sandbox(tools: &Tools, pools: &[PoolSettings]) {
    let serves =
        |pool: &PoolSettings| pool.stage == Stage::Reward && pool.pool.as_str() == RewardRule::Code.name();
    if !pools.iter().any(serves) {
        return;
    }
    match tools.code().probe().await {
        Ok(()) => tracing::debug!(program = ?tools.code().program(), "the sandbox works"),
        Err(error) => {
            tracing::warn!(%error, "answers of the reward \"code\" cannot run here; its tasks will return to the queue");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arguments of one id share their values.
    #[test]
    fn answers_read_no_folders_of_the_agents() {
        let words =
            "millrace-worker --objects o --stages reward --sandbox-read /answers --agents-read /agents";
        let arguments = Arguments::try_parse_from(words.split(' ')).expect("they are valid");
        let tools = arguments.tools.tools().expect("there is no key to read");
        assert_eq!(tools.code().read(), [std::path::Path::new("/answers")]);
    }
}
