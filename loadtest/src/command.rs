//! The `millrace-loadtest` command: parse, run, exit code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::{bench, chaos, headlines, results, sim};

/// Measures Millrace from outside.
#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Times parts of the system beside what they are built on
    #[command(subcommand)]
    Bench(Bench),
    /// Kills, pauses and cuts off real processes in the middle of runs, and checks that nothing was lost
    Chaos(chaos::Args),
    /// Reproduces published results that scheduling decides, on simulated GPUs in virtual time
    Headlines(headlines::Args),
    /// Answers `millrace plan`: which split of the GPUs makes a run's steps shortest
    Plan(headlines::plan::PlanArgs),
    /// Every table and picture, into one folder with an index
    Results(results::Args),
    /// Plays the whole system in virtual time, with faults, and checks what it left
    Sim(sim::Args),
    /// A worker whose tasks take their time, for `bench scale --real`
    #[command(hide = true)]
    SlowWorker(bench::scale::SlowWorkerArgs),
}

#[derive(Subcommand)]
enum Bench {
    /// The whole life of a task, beside raw put, pull and ack on the same server
    Queue(bench::queue::Args),
    /// Tasks a second and latency beside Ray, Celery, plain JetStream and TransferQueue
    Peers(bench::peers::Args),
    /// Durable rollouts a second, beside a buffer in memory and the bare disk; what kill -9 loses
    #[cfg(millrace_torch)]
    Durable(bench::durable::Args),
    /// What the gateway adds to a call of an agent, plain and from a sandbox
    Gateway(bench::gateway::Args),
    /// What one coordinator and one nats-server bear: lives a second, how late, memory, a take-over, a replay
    Limits(bench::limits::Args),
    /// What the coordinator's state costs with many rollouts in flight, long contexts and large gangs
    State(bench::state::Args),
    /// The same run under several algorithms, bounds on staleness and seeds
    Recipes(bench::recipes::Args),
    /// The shipped examples over several seeds, beside rules that learn nothing; fails where one did not learn
    Learn(bench::learn::Args),
    /// A fleet that is scaled, beside a static one and KEDA's rule; and one that is interrupted
    Scale(bench::scale::Args),
    /// What a drain costs, of each role in the middle of its tasks; fails where one lost something
    #[cfg(millrace_torch)]
    Drain(bench::drain::Args),
    /// Time division on 128 devices, beside static splits into devices that generate and devices that train
    Division(bench::division::Args),
    /// Redundant groups, asynchrony and dynamic sampling, each with and without
    Mechanisms(bench::mechanisms::Args),
    /// An optimiser step on a language model, beside a plain PyTorch and transformers loop
    #[cfg(millrace_torch)]
    Train(bench::train::Args),
    /// What a version of the weights costs on its way: as changes, whole, and to many workers at once
    #[cfg(millrace_torch)]
    Weights(bench::weights::Args),
    /// Tokens that our engine samples, beside transformers and llama.cpp on the same model
    #[cfg(millrace_torch)]
    Generate(bench::generate::Args),
}

/// Runs the command of the command line.
///
/// # Errors
/// The command failed; the error has the reason.
pub fn main() -> anyhow::Result<ExitCode> {
    let command = Args::parse().command;
    if let Command::SlowWorker(args) = &command {
        // It says what it does as a worker.
        return bench::scale::slow_worker(args).map(|()| ExitCode::SUCCESS);
    }
    // Simulated faults and hand-backs make every process warn all the time; findings name the seed.
    let default = if matches!(command, Command::Sim(_) | Command::Headlines(_) | Command::Plan(_)) {
        "off"
    } else {
        "warn,async_nats=off,millrace_queue::jetstream::topology=error"
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match command {
        Command::Bench(bench) => measure(&bench).map(|()| ExitCode::SUCCESS),
        Command::Chaos(args) => in_real_time(chaos::run(args)),
        Command::Headlines(args) => headlines::run(&args),
        Command::Plan(args) => headlines::plan::run(&args),
        Command::Results(args) => results::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::SlowWorker(_) => unreachable!("it is served above"),
    }
}

fn measure(what: &Bench) -> anyhow::Result<()> {
    match what {
        Bench::Queue(args) => in_real_time(bench::queue::run(args)),
        Bench::Peers(args) => in_real_time(bench::peers::run(args)),
        #[cfg(millrace_torch)]
        Bench::Durable(args) => in_real_time(bench::durable::run(args)),
        Bench::Gateway(args) => in_real_time(bench::gateway::run(args)),
        Bench::Limits(args) => in_real_time(bench::limits::run(args)),
        Bench::State(args) => bench::state::run(args),
        Bench::Recipes(args) => bench::recipes::run(args),
        Bench::Learn(args) => bench::learn::run(args),
        Bench::Scale(args) => bench::scale::run(args),
        #[cfg(millrace_torch)]
        Bench::Drain(args) => in_real_time(bench::drain::run(args)),
        Bench::Division(args) => bench::division::run(args),
        Bench::Mechanisms(args) => bench::mechanisms::run(args),
        #[cfg(millrace_torch)]
        Bench::Train(args) => bench::train::run(args),
        #[cfg(millrace_torch)]
        Bench::Weights(args) => bench::weights::run(args),
        #[cfg(millrace_torch)]
        Bench::Generate(args) => bench::generate::run(args),
    }
}

fn in_real_time<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Runtime::new()?.block_on(command)
}
