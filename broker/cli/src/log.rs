//! `millrace log`: the log and its segments as a dataset.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use millrace_queue::{Broker, Logged};
use millrace_schemas::{Event, RunId};
use serde::Serialize;

use super::connect::ConnectionArgs;
use super::term::{is_closed_pipe, say};
use super::up::reopen::Asks;
use parquet::ParquetRows;

mod parquet;

/// Entries per read and write.
const AT_ONCE: usize = 1_024;

/// Arguments of `millrace log`.
#[derive(Debug, clap::Args)]
pub(super) struct LogArgs {
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Debug, clap::Subcommand)]
enum LogCommand {
    /// Write the entries of the log, those in its segments too, oldest first
    Export(ExportArgs),
}

#[derive(Debug, clap::Args)]
struct ExportArgs {
    /// Export this run only, without ticks and memberships, which belong to all runs
    #[arg(long)]
    run: Option<RunId>,
    /// Position of the first entry
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Position of the last entry; without it, the newest
    #[arg(long)]
    to: Option<u64>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Jsonl)]
    format: Format,
    /// The file to write; without it, standard output, for JSONL
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A JSON object on each line
    Jsonl,
    /// Columns, compressed; `event` is JSON in a text column
    Parquet,
}

/// An entry as it is written.
#[derive(Debug, Serialize)]
struct Row {
    /// Position in the log.
    seq: u64,
    /// When the server stored it, in nanoseconds since 1970.
    stored_ns: u64,
    /// The run, or `all`.
    run: String,
    /// Kind of the event; `unreadable` if it cannot be parsed.
    kind: &'static str,
    /// The task, for an outcome or a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    /// The event, in the form of `millrace schema event`; the reason if it is unreadable.
    event: serde_json::Value,
}

impl Row {
    fn of(logged: Logged) -> Result<Self> {
        let Logged { seq, stored_ns, run, event, .. } = logged;
        let task = event.as_ref().ok().and_then(Event::task).map(|key| key.to_string());
        let kind = event.as_ref().map_or("unreadable", Event::kind);
        let event = match &event {
            Ok(event) => serde_json::to_value(event)?,
            Err(error) => serde_json::Value::String(error.to_string()),
        };
        Ok(Self { seq, stored_ns, run, kind, task, event })
    }
}

impl ExportArgs {
    fn check(&self) -> Result<()> {
        match self.to {
            Some(to) if to < self.from => {
                bail!(
                    "--to {to}: it is before --from {}; give the last position, no less than the first",
                    self.from
                )
            }
            _ => Ok(()),
        }
    }
}

/// The output of rows.
enum Rows {
    Jsonl(Box<dyn Write + Send>),
    Parquet(Box<ParquetRows<File>>),
}

impl Rows {
    fn open(args: &ExportArgs) -> Result<Self> {
        let file = args.output.as_ref().map(|path| {
            File::create(path).with_context(|| format!("failed to write path={}", path.display()))
        });
        Ok(match (args.format, file.transpose()?) {
            (Format::Jsonl, Some(file)) => Self::Jsonl(Box::new(BufWriter::new(file))),
            (Format::Jsonl, None) => Self::Jsonl(Box::new(BufWriter::new(io::stdout()))),
            (Format::Parquet, Some(file)) => Self::Parquet(Box::new(ParquetRows::new(file)?)),
            (Format::Parquet, None) => bail!("--format parquet needs --output FILE"),
        })
    }

    fn write(&mut self, rows: &[Row]) -> Result<()> {
        match self {
            Self::Jsonl(out) => {
                for row in rows {
                    serde_json::to_writer(&mut *out, row)?;
                    out.write_all(b"\n")?;
                }
                Ok(())
            }
            Self::Parquet(out) => Ok(out.write(rows)?),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Jsonl(mut out) => Ok(out.flush()?),
            Self::Parquet(out) => Ok(out.finish()?),
        }
    }
}

impl LogArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let LogCommand::Export(args) = self.command;
        args.check()?;
        let broker = connection.reading(Asks::Queue).await?.with_objects(connection.open_objects()?);
        let rows = Rows::open(&args)?;
        let written = match export(&broker, &args, rows).await {
            // The reader closed the pipe.
            Err(error) if is_closed_pipe(&error) => return Ok(ExitCode::SUCCESS),
            written => written?,
        };
        if let Some(path) = &args.output {
            say(format_args!("{written} entries are in {}", path.display()));
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn export(broker: &Broker, args: &ExportArgs, mut rows: Rows) -> Result<u64> {
    let end = broker.queue().log_end().await?;
    let last = args.to.map_or(end, |to| to.min(end));
    let mut next = args.from.max(broker.log_start().await?);
    let (mut log, mut written) = (broker.read_log(next).await?, 0);
    while next <= last {
        let entries = log.next(AT_ONCE).await?;
        next = entries.last().map_or(next, |entry| entry.seq + 1);
        let wanted = |entry: &Logged| {
            entry.seq <= last && args.run.as_ref().is_none_or(|run| entry.run == run.as_str())
        };
        let taken: Vec<Row> = entries.into_iter().filter(wanted).map(Row::of).collect::<Result<_>>()?;
        rows.write(&taken)?;
        written += taken.len() as u64;
    }
    rows.finish()?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        log: LogArgs,
    }

    #[test]
    fn an_export_that_ends_before_it_begins_is_refused() {
        let check = |range: &[&str]| {
            let words = [&["log", "export"][..], range].concat();
            let LogCommand::Export(args) = Options::try_parse_from(words).unwrap().log.command;
            args.check().map_err(|e| e.to_string())
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["--from", "10", "--to", "10"]), Ok(()));
        let said = check(&["--from", "10", "--to", "5"]).unwrap_err();
        assert!(said.starts_with("--to 5: it is before --from 10; give "), "{said}");
    }
}
