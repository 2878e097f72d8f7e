//! The `millrace` command: one file per command.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;

mod connect;
mod data;
mod worker;
mod term;
mod signals;

mod up;
mod submit;
mod status;
mod watch;
mod pause;
mod cancel;
mod list;
mod ledger;
mod weights;
mod dead;
mod log;
mod objects;
mod schema;
mod doctor;
mod init_auth;
mod coordinator;
pub mod tied;

mod follow;
mod busy;
mod waits;
mod domains;
mod evaluation;
mod live;
mod curve;
mod report;
#[cfg(test)]
mod sample;

/// Trains language-model agents by reinforcement learning, asynchronously, as a job queue.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    place: connect::Place,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run everything on this machine: queue, object store, coordinator and workers
    Up(up::UpArgs),
    /// Hand in a run file
    Submit(submit::SubmitArgs),
    /// Tell how a run stands
    Status(status::StatusArgs),
    /// Show a run live until it is over
    Watch(watch::WatchArgs),
    /// Stop a run until it is resumed; nothing is lost
    Pause(pause::RunArgs),
    /// Let a paused run go on
    Resume(pause::RunArgs),
    /// End a run
    Cancel(cancel::CancelArgs),
    /// Archive a run that is over: its versions stay, its name stays taken
    Rm(pause::RunArgs),
    /// Tell of all runs
    List(list::ListArgs),
    /// Show a run's books: every rollout is trained, dropped with a reason, or in flight
    Ledger(ledger::LedgerArgs),
    /// List a run's versions, or export one as a model directory
    Weights(weights::WeightsArgs),
    /// List the tasks that nobody could do, or try one again
    Dead(dead::DeadArgs),
    /// Write the log as a dataset: JSONL or Parquet
    Log(log::LogArgs),
    /// Say whether all that is referred to is in the object store, and remove what nothing leads to
    Objects(objects::ObjectsArgs),
    /// Print the JSON Schema of a document
    Schema(schema::SchemaArgs),
    /// Say what is missing on this machine, and how to get it
    Doctor(doctor::DoctorArgs),
    /// Make keys, certificates and a nats-server's configuration in which each role may do its own work only
    InitAuth(init_auth::InitAuthArgs),
    /// Run a coordinator
    Coordinator(coordinator::CoordinatorArgs),
    /// Run a program that is killed when its parent dies
    #[command(hide = true)]
    Tied(tied::TiedArgs),
}

/// Does what the process was asked on its command line.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = Runtime::new().map_err(Into::into).and_then(|runtime| runtime.block_on(cli.run()));
    done.unwrap_or_else(|error: anyhow::Error| {
        // In words, without a backtrace: what is wrong is the user's to mend.
        let _ = writeln!(std::io::stderr(), "Error: {error:#}");
        ExitCode::FAILURE
    })
}

impl Cli {
    /// Does what was asked.
    ///
    /// # Errors
    /// Says what failed and what to do about it.
    pub async fn run(self) -> Result<ExitCode> {
        let place = &self.place;
        match self.command {
            Command::Up(args) => args.run(place).await,
            Command::Submit(args) => args.run(place).await,
            Command::Status(args) => args.run(place).await,
            Command::Watch(args) => args.run(place).await,
            Command::Pause(args) => args.pause(place).await,
            Command::Resume(args) => args.resume(place).await,
            Command::Cancel(args) => args.run(place).await,
            Command::Rm(args) => args.remove(place).await,
            Command::List(args) => args.run(place).await,
            Command::Ledger(args) => args.run(place).await,
            Command::Weights(args) => args.run(place).await,
            Command::Dead(args) => args.run(place).await,
            Command::Log(args) => args.run(place).await,
            Command::Objects(args) => args.run(place).await,
            Command::Schema(args) => args.run(),
            Command::Doctor(args) => args.run(place).await,
            Command::InitAuth(args) => args.run(place.dir.as_deref()),
            Command::Coordinator(args) => args.run(place).await,
            Command::Tied(args) => args.run(),
        }
    }
}
