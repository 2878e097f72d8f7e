//! `millrace init-auth`: keys for the roles, certificates, and a nats-server's configuration with
//! the rights.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use millrace_auth::Guarded;
use millrace_schemas::Stage;

use super::term::say;
use millrace_coordinator::shell::clock::unix_ms;

/// Arguments of `millrace init-auth`.
#[derive(Debug, clap::Args)]
pub(super) struct InitAuthArgs {
    /// Folder for the files
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// A name or address of the server, for its certificate; localhost is always among them
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Stages that one worker serves together, as `env_step,reward`: they get one user with the
    /// rights of all
    #[arg(long, value_name = "STAGES")]
    combine: Vec<String>,
    /// Where the server listens
    #[arg(long, default_value = "0.0.0.0:4222", value_name = "ADDR:PORT")]
    listen: String,
    /// Path of the folder on the server's machine [default: the path given here]
    #[arg(long, value_name = "DIR")]
    place: Option<PathBuf>,
    /// How often the server syncs to disk: `always` loses no acknowledged write with one server
    #[arg(long, default_value = "always", value_name = "INTERVAL")]
    sync: String,
    /// Recreate everything: earlier keys become invalid
    #[arg(long)]
    again: bool,
    /// Recreate nats-server.conf for the existing keys, for example after an upgrade; give the
    /// other options as before
    #[arg(long, conflicts_with = "again")]
    update: bool,
}

impl InitAuthArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let folder = std::path::absolute(&self.dir).context("failed to resolve --dir")?;
        let guarded = Guarded {
            together: self.combine.iter().map(|words| stages(words)).collect::<Result<_>>()?,
            hosts: self.host,
            listen: self.listen,
            place: self.place.unwrap_or_else(|| folder.clone()),
            sync: self.sync,
            unix_ms: unix_ms(),
        };
        let files = if self.update { guarded.update(&folder)? } else { guarded.make()? };
        millrace_auth::write(&folder, &files, self.again || self.update)?;
        say(format_args!("keys/, tls/ and nats-server.conf are in {}", folder.display()));
        say(format_args!("  the server: nats-server -c {}/nats-server.conf", guarded.place.display()));
        say("  a process:  --nats-nkey keys/ROLE.nk --nats-tls-ca tls/ca.pem");
        Ok(ExitCode::SUCCESS)
    }
}

fn stages(words: &str) -> Result<Vec<Stage>> {
    let stages: Result<Vec<Stage>, _> = words.split(',').map(str::parse).collect();
    stages.with_context(|| format!("failed to read --combine value={words:?}"))
}
