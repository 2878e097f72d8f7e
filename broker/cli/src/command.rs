//! The command line.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;

use crate::connect::At;
use crate::{
    cancel, completions, coordinator, dead, doctor, init_auth, ledger, list, log, objects, pause, schema,
    status, submit, tied, up, watch, weights,
};

/// Trains language-model agents by reinforcement learning, asynchronously, as a job queue.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run everything on this machine: queue, object store, coordinator and workers
    Up(up::UpArgs),
    /// Submit a run file
    Submit(At<submit::SubmitArgs>),
    /// Show the status of a run
    Status(At<status::StatusArgs>),
    /// Show a run live until it is over
    Watch(At<watch::WatchArgs>),
    /// Pause a run until it is resumed; nothing is lost
    Pause(At<pause::RunArgs>),
    /// Resume a paused run
    Resume(At<pause::RunArgs>),
    /// End a run
    Cancel(At<cancel::CancelArgs>),
    /// Archive a run that is over: its versions stay, its name stays taken
    Rm(At<pause::RunArgs>),
    /// List all runs
    List(At<list::ListArgs>),
    /// Show a run's books: every rollout is trained, dropped with a reason, or in flight
    Ledger(At<ledger::LedgerArgs>),
    /// List a run's versions, or export one as a model directory
    Weights(At<weights::WeightsArgs>),
    /// List dead letters, or requeue one
    Dead(At<dead::DeadArgs>),
    /// Write the log as a dataset: JSONL or Parquet
    Log(At<log::LogArgs>),
    /// Check that every referenced object exists; remove those that nothing refers to
    Objects(At<objects::ObjectsArgs>),
    /// Print the JSON Schema of a document
    Schema(schema::SchemaArgs),
    /// Show what this machine lacks, and how to get it
    Doctor(At<doctor::DoctorArgs>),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
    /// Create keys, certificates and a nats-server configuration that limits each role to its own work
    InitAuth(init_auth::InitAuthArgs),
    /// Run a coordinator
    Coordinator(At<coordinator::CoordinatorArgs>),
    /// Run a program that is killed when its parent dies
    #[command(hide = true)]
    Tied(tied::TiedArgs),
}

/// Runs the command that the command line names.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = Runtime::new().map_err(Into::into).and_then(|runtime| runtime.block_on(cli.run()));
    done.unwrap_or_else(|error: anyhow::Error| {
        // Without a backtrace: the user can repair what is wrong.
        let _ = writeln!(std::io::stderr(), "Error: {error:#}");
        ExitCode::FAILURE
    })
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// What failed, and what to do about it.
    async fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Up(args) => args.run().await,
            Command::Submit(At { args, place }) => args.run(&place).await,
            Command::Status(At { args, place }) => args.run(&place).await,
            Command::Watch(At { args, place }) => args.run(&place).await,
            Command::Pause(At { args, place }) => args.pause(&place).await,
            Command::Resume(At { args, place }) => args.resume(&place).await,
            Command::Cancel(At { args, place }) => args.run(&place).await,
            Command::Rm(At { args, place }) => args.remove(&place).await,
            Command::List(At { args, place }) => args.run(&place).await,
            Command::Ledger(At { args, place }) => args.run(&place).await,
            Command::Weights(At { args, place }) => args.run(&place).await,
            Command::Dead(At { args, place }) => args.run(&place).await,
            Command::Log(At { args, place }) => args.run(&place).await,
            Command::Objects(At { args, place }) => args.run(&place).await,
            Command::Schema(args) => args.run(),
            Command::Completions(args) => args.run(),
            Command::Doctor(At { args, place }) => args.run(&place).await,
            Command::InitAuth(args) => args.run(),
            Command::Coordinator(At { args, place }) => args.run(&place).await,
            Command::Tied(args) => args.run(),
        }
    }
}
