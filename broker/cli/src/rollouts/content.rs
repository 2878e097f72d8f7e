//! The content of one rollout: its outcomes, from the log, its segments and the object store.

use std::collections::BTreeMap;

use anyhow::Result;
use millrace_queue::Broker;
use millrace_schemas::env_step::EnvStepDone;
use millrace_schemas::generate::GenerateDone;
use millrace_schemas::reward::RewardDone;
use millrace_schemas::{Event, OutcomeBody, RunId, TaskKey};

use super::replay::Played;

/// Entries that are fetched at once.
const AT_ONCE: usize = 256;

/// What an environment or the policy contributed, in the order of the log.
#[derive(Debug)]
pub(super) enum Part {
    /// The environment's step; 0 is the reset.
    Environment { step: u32, done: EnvStepDone },
    /// A turn of the policy, from 1.
    Policy { turn: u32, done: GenerateDone },
}

/// The content of a rollout.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) parts: Vec<Part>,
    /// How many of the parts are of the rollout that it continues.
    pub(super) inherited: usize,
    /// Scores with their remarks, by reward.
    pub(super) scores: BTreeMap<u32, RewardDone>,
    /// Why entries cannot be read.
    pub(super) missing: Vec<String>,
}

/// Fetches the content of a rollout.
///
/// # Errors
/// The queue or the object store fails. What is lost there is no error.
pub(super) async fn fetch(broker: &Broker, run: &RunId, played: &Played) -> Result<Content> {
    let mut content = Content::default();
    content.add(broker, run, &played.inherited).await?;
    content.inherited = content.parts.len();
    content.add(broker, run, &played.entries).await?;
    Ok(content)
}

impl Content {
    async fn add(&mut self, broker: &Broker, run: &RunId, seqs: &[u64]) -> Result<()> {
        for seqs in seqs.chunks(AT_ONCE) {
            for (seq, logged) in seqs.iter().zip(broker.entries(seqs).await?) {
                match logged {
                    Some(logged) if logged.run == run.as_str() => match logged.event {
                        Ok(event) => self.take(event),
                        Err(error) => self.missing.push(format!("log entry seq={seq}: {error}")),
                    },
                    Some(_) | None => {
                        self.missing.push(format!("log entry seq={seq} is in no log and in no segment"));
                    }
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event) {
        let Event::Outcome(outcome) = event else { return };
        match (outcome.key, outcome.body) {
            (TaskKey::EnvStep { turn: step, .. }, OutcomeBody::EnvStep(done)) => {
                self.parts.push(Part::Environment { step, done });
            }
            (TaskKey::Generate { turn, .. }, OutcomeBody::Generate(done)) => {
                self.parts.push(Part::Policy { turn, done });
            }
            (TaskKey::Reward { reward, .. }, OutcomeBody::Reward(done)) => {
                self.scores.insert(reward, done);
            }
            _ => {}
        }
    }
}
