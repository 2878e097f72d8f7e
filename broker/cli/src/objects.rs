//! `millrace objects`: checks that all referenced objects exist, and removes unreferenced ones.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use millrace_queue::Broker;
use millrace_schemas::limits::COLLECT_AGE_MS;

use super::connect::ConnectionArgs;
use super::term::{say, thousands};
use millrace_coordinator::shell::collect::{Known, ObjectCount, Survey, collect, damaged, survey};
use millrace_coordinator::shell::journal;

const AGE: Duration = Duration::from_millis(COLLECT_AGE_MS);
/// Findings that are shown.
const SHOWN: usize = 20;

/// Arguments of `millrace objects`.
#[derive(Debug, clap::Args)]
pub(super) struct ObjectsArgs {
    #[command(subcommand)]
    command: ObjectsCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ObjectsCommand {
    /// Check that every referenced object exists, and count those that nothing refers to; changes
    /// nothing
    Check {
        /// Read every referenced object, and compare it with its hash
        #[arg(long)]
        content: bool,
    },
    /// Remove objects that nothing has referred to for a day, as the coordinator does every half
    /// hour
    Collect {
        /// Only report what would be removed
        #[arg(long)]
        dry_run: bool,
    },
}

impl ObjectsArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let broker = connection.api().await?.with_objects(connection.open_objects()?);
        let state = journal::current(&broker).await.context("failed to fold the log")?;
        let mut found = survey(&broker, &Known::of(&state), AGE).await?;
        match self.command {
            ObjectsCommand::Check { content } => {
                if content {
                    found.wrong.extend(damaged(&broker, &found).await?);
                }
                lines(&found, content).iter().for_each(say);
            }
            ObjectsCommand::Collect { dry_run: true } => {
                found.unreferenced.iter().map(|object| &object.path).for_each(say);
                say(format_args!("{} would be removed", words(collectable(&found))));
            }
            ObjectsCommand::Collect { dry_run: false } => remove(&broker, &found).await?,
        }
        Ok(if found.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

async fn remove(broker: &Broker, found: &Survey) -> Result<()> {
    let gone = collect(broker, found, || true).await?;
    say(format_args!(
        "{} removed, of {} that nothing has referred to for a day",
        words(gone),
        words(collectable(found))
    ));
    Ok(())
}

fn collectable(found: &Survey) -> ObjectCount {
    let bytes = found.unreferenced.iter().map(|object| object.bytes).sum();
    ObjectCount { objects: found.unreferenced.len() as u64, bytes }
}

/// `1,204 objects, 3.2 MB`.
fn words(count: ObjectCount) -> String {
    let objects =
        if count.objects == 1 { "1 object".into() } else { format!("{} objects", thousands(count.objects)) };
    format!("{objects}, {:.1} MB", count.bytes as f64 / 1e6)
}

fn lines(found: &Survey, content: bool) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = |label: &str, words: String| lines.push(format!("{label:<12} {words}"));
    for (of, count) in &found.kept {
        line(of.name(), words(*count));
    }
    line("young", format!("{}: nothing refers to them yet", words(found.young)));
    line("collectable", format!("{}: nothing has referred to them for a day", words(collectable(found))));
    if found.foreign.objects > 0 {
        line("foreign", format!("{}: not Millrace's, never removed", words(found.foreign)));
    }
    let checked = if content { "exists with its content" } else { "exists" };
    match found.wrong.len() {
        0 => line("sound", format!("every referenced object {checked}")),
        count => line("WRONG", format!("{count}; restore the object store from a backup")),
    }
    found.wrong.iter().take(SHOWN).for_each(|wrong| line("", wrong.clone()));
    lines
}
