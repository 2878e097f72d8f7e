//! `millrace dead`: dead letters.

use std::process::ExitCode;

use anyhow::Result;
use millrace_queue::DeadLetter;

use super::connect::ConnectionArgs;
use super::term::say;
use super::up::reopen::Asks;

/// Arguments of `millrace dead`.
#[derive(Debug, clap::Args)]
pub(super) struct DeadArgs {
    #[command(subcommand)]
    command: DeadCommand,
}

#[derive(Debug, clap::Subcommand)]
enum DeadCommand {
    /// List dead letters, oldest first
    Ls {
        /// Start at this number
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// List at most this many
        #[arg(long, default_value_t = 100)]
        limit: u16,
    },
    /// Requeue a dead letter
    Requeue {
        /// Its number in the list
        seq: u64,
    },
}

impl DeadArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        match self.command {
            DeadCommand::Ls { from, limit } => {
                let broker = connection.reading(Asks::Queue).await?.broker();
                let limit = usize::from(limit.max(1));
                let letters = broker.dead_letters_from(from, limit).await?;
                if letters.is_empty() {
                    say("no dead letters");
                }
                letters.iter().map(line).for_each(say);
                if let Some(last) = letters.last().filter(|_| letters.len() == limit) {
                    say(format_args!("there may be more: `millrace dead ls --from {}`", last.seq + 1));
                }
            }
            DeadCommand::Requeue { seq } => {
                connection.api().await?.broker().requeue_dead(seq).await?;
                say(format_args!("{seq} is requeued"));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn line(letter: &DeadLetter) -> String {
    let bytes = letter.payload.len();
    let what = letter
        .task
        .as_ref()
        .map_or_else(|| letter.subject.clone(), |(run, key)| format!("{run} {} {key}", key.stage()));
    let refusal = letter.refusal.as_ref().map(|refusal| format!("  (cannot be requeued: {refusal})"));
    format!("{:>6}  {what}  {bytes} bytes  {}{}", letter.seq, letter.reason, refusal.unwrap_or_default())
}
