//! `millrace-loadtest`: parse, run, exit code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use millrace_loadtest::{bench, chaos};

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
}

#[derive(Subcommand)]
enum Bench {
    /// The whole life of a task, beside raw put, pull and ack on the same server
    Queue(bench::queue::Args),
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,async_nats=off")),
        )
        .with_writer(std::io::stderr)
        .init();
    match Args::parse().command {
        Command::Bench(Bench::Queue(args)) => bench::queue::run(&args).await.map(|()| ExitCode::SUCCESS),
        Command::Chaos(args) => chaos::run(args).await,
    }
}
