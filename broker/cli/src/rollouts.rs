//! `millrace rollouts`: what the environment and the model said in a run's rollouts, as text.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use millrace_queue::Broker;
use millrace_schemas::{PolicyVersion, RunId};

use super::connect::ConnectionArgs;
use super::term::{is_closed_pipe, remark};
use super::up::reopen::Asks;
use chosen::{Chosen, Order, Wanted};
use games::Game;
use replay::{Replayed, replay};
use words::Words;

mod chosen;
mod replay;
mod content;
mod games;
mod words;
mod print;
mod json;

/// Arguments of `millrace rollouts`.
#[derive(Debug, clap::Args)]
pub(super) struct RolloutsArgs {
    /// The run; may be left out where there is only one
    run: Option<RunId>,
    /// Only rollouts of which this version sampled tokens
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    /// Only this group: the rollouts of one prompt
    #[arg(long, value_name = "N")]
    group: Option<u64>,
    /// Those with the highest reward; without --best or --worst the newest
    #[arg(long, conflicts_with = "worst")]
    best: bool,
    /// Those with the lowest reward
    #[arg(long)]
    worst: bool,
    /// Rollouts of evaluations in place of those for training
    #[arg(long)]
    evaluation: bool,
    /// Only those that were dropped, also before they had a reward
    #[arg(long)]
    dropped: bool,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    limit: u16,
    /// A JSON object on each line, with token ids and log-probabilities; nothing is cut
    #[arg(long)]
    json: bool,
    /// Cut neither long texts nor long rollouts
    #[arg(long)]
    full: bool,
    /// A model directory whose tokenizer makes text of tokens; without it, that of the run's version 0
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
}

impl RolloutsArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let objects = connection.open_objects()?;
        let broker = connection.reading(Asks::Queue).await?.with_objects(objects.clone());
        let replayed = replay(&broker, self.run.clone(), Chosen::new(self.wanted())).await?;
        let words = Words::of(&replayed.spec, &objects, self.model.as_deref()).await?;
        if let Some(lacks) = words.lacks(&replayed.spec) {
            remark(lacks);
        }
        if replayed.chosen.is_empty() {
            remark(format_args!("{} has no such rollout that ended", replayed.spec.name));
        }
        match self.show(&broker, &replayed, &words).await {
            // The reader closed the pipe.
            Err(error) if is_closed_pipe(&error) => {}
            shown => shown?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            order: match (self.best, self.worst) {
                (true, _) => Order::Best,
                (_, true) => Order::Worst,
                _ => Order::Newest,
            },
            limit: self.limit.into(),
            version: self.version.map(PolicyVersion),
            group: self.group,
            evaluation: self.evaluation,
            dropped: self.dropped,
            of_any_run: self.run.is_none(),
        }
    }

    /// Fetches and writes one rollout after the other.
    async fn show(&self, broker: &Broker, replayed: &Replayed, words: &Words) -> Result<()> {
        let Replayed { spec, chosen } = replayed;
        for (played, at) in chosen.iter().zip(0..) {
            let content = content::fetch(broker, &spec.name, played).await?;
            let game = Game::of(spec.part(played.domain).environment);
            let texts = words.texts(game, &content.parts);
            let mut out = io::stdout().lock();
            if self.json {
                writeln!(out, "{}", json::line(spec, played, &content, &texts)?)?;
            } else {
                let gap = if at == 0 { "" } else { "\n" };
                write!(out, "{gap}{}", print::lines(spec, played, &content, &texts, self.full))?;
            }
        }
        Ok(())
    }
}
