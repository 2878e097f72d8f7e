//! `millrace-loadtest`: parse, run, exit code.

use clap::{Parser, Subcommand};
use millrace_loadtest::bench;

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
}

#[derive(Subcommand)]
enum Bench {
    /// The whole life of a task, beside raw put, pull and ack on the same server
    Queue(bench::queue::Args),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new("warn"))
        .with_writer(std::io::stderr)
        .init();
    match Args::parse().command {
        Command::Bench(Bench::Queue(args)) => bench::queue::run(&args).await,
    }
}
