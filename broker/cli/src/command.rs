//! The command line.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;

use crate::connect::At;
use crate::{
    bucket, cancel, check, completions, coordinator, dead, doctor, drain, env, init_auth, ledger, list, log,
    objects, pause, plan, release, rollouts, scale, schema, status, submit, tied, up, watch, weights,
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
    /// Check run files: every mistake with its remedy, and what a run would need; starts nothing
    Check(check::CheckArgs),
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
    /// Ask a worker to finish or return its tasks and to end
    Drain(At<drain::DrainArgs>),
    /// Find how many GPUs should generate and how many train, and at which async ratio
    Plan(Box<At<plan::PlanArgs>>),
    /// Explain what the autoscaler decided
    Scale(At<scale::ScaleArgs>),
    /// Archive a run that is over: its versions are kept, and its name cannot be reused
    Rm(At<pause::RunArgs>),
    /// List all runs
    List(At<list::ListArgs>),
    /// Show a run's books: every rollout is trained, dropped with a reason, or in flight
    Ledger(At<ledger::LedgerArgs>),
    /// Show what the environment and the model said in rollouts, with rewards and what became of them
    Rollouts(At<rollouts::RolloutsArgs>),
    /// List a run's versions, or export one as a model directory
    Weights(At<weights::WeightsArgs>),
    /// List dead letters, or requeue one
    Dead(At<dead::DeadArgs>),
    /// Write the log as a dataset: JSONL or Parquet
    Log(At<log::LogArgs>),
    /// Check that every referenced object exists; remove those that nothing refers to
    Objects(At<objects::ObjectsArgs>),
    /// Create and check the object store's bucket
    Bucket(At<bucket::BucketArgs>),
    /// Store, list and remove images of sandboxes
    Env(At<env::EnvArgs>),
    /// Print the JSON Schema of a document
    Schema(schema::SchemaArgs),
    /// Show what is missing on this machine, and how to get it
    Doctor(At<doctor::DoctorArgs>),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
    /// Create keys, certificates and a nats-server configuration that limits each role to its own
    /// work
    InitAuth(init_auth::InitAuthArgs),
    /// Make the bundle from which instances install themselves, and upload it
    Release(release::ReleaseArgs),
    /// Run a coordinator
    Coordinator(At<coordinator::CoordinatorArgs>),
    /// Run a program that is killed when its parent dies
    #[command(hide = true)]
    Tied(tied::TiedArgs),
}

/// Parses the command line and runs its command.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = Runtime::new().map_err(Into::into).and_then(|runtime| runtime.block_on(cli.run()));
    done.unwrap_or_else(|error: anyhow::Error| {
        // Without a backtrace: the message is for the user.
        let _ = writeln!(std::io::stderr(), "Error: {error:#}");
        ExitCode::FAILURE
    })
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// The command failed. The message names the remedy.
    async fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Up(args) => args.run().await,
            Command::Submit(At { args, connection }) => args.run(&connection).await,
            Command::Check(args) => args.run().await,
            Command::Status(At { args, connection }) => args.run(&connection).await,
            Command::Watch(At { args, connection }) => args.run(&connection).await,
            Command::Pause(At { args, connection }) => args.pause(&connection).await,
            Command::Resume(At { args, connection }) => args.resume(&connection).await,
            Command::Cancel(At { args, connection }) => args.run(&connection).await,
            Command::Drain(At { args, connection }) => args.run(&connection).await,
            Command::Plan(at) => {
                let At { args, connection } = *at;
                args.run(&connection).await
            }
            Command::Scale(At { args, connection }) => args.run(&connection).await,
            Command::Rm(At { args, connection }) => args.remove(&connection).await,
            Command::List(At { args, connection }) => args.run(&connection).await,
            Command::Ledger(At { args, connection }) => args.run(&connection).await,
            Command::Rollouts(At { args, connection }) => args.run(&connection).await,
            Command::Weights(At { args, connection }) => args.run(&connection).await,
            Command::Dead(At { args, connection }) => args.run(&connection).await,
            Command::Log(At { args, connection }) => args.run(&connection).await,
            Command::Objects(At { args, connection }) => args.run(&connection).await,
            Command::Bucket(At { args, connection }) => args.run(&connection).await,
            Command::Env(At { args, connection }) => args.run(&connection).await,
            Command::Schema(args) => args.run(),
            Command::Completions(args) => args.run(),
            Command::Doctor(At { args, connection }) => args.run(&connection).await,
            Command::InitAuth(args) => args.run(),
            Command::Release(args) => args.run().await,
            Command::Coordinator(At { args, connection }) => args.run(&connection).await,
            Command::Tied(args) => args.run(),
        }
    }
}
