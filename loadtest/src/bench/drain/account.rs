//! What was done and what of it was lost, from the outcomes of the log.

use std::collections::{BTreeMap, BTreeSet};

use millrace_schemas::brief::TurnBrief;
use millrace_schemas::{Outcome, OutcomeBody, TaskKey};
use serde::Serialize;

/// How the engine's message on tokens that nobody took begins their number.
const DROPPED: &str = "dropped_tokens";

/// An outcome, as far as it matters here.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    /// The task.
    pub key: TaskKey,
    /// What came of it.
    pub what: What,
}

/// What came of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A turn to its end: all of its tokens, where the log has them beside their number.
    Turn(u32, Option<Vec<u32>>),
    /// The part of a turn that was sampled, the same way; nothing of a task that was not begun.
    HandedBack(u32, Option<Vec<u32>>),
    /// Something else, to its end.
    Other,
    /// Nothing that anybody keeps: a void attempt of a step, or an environment that is gone.
    Void,
}

impl Done {
    /// Of an outcome.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Self {
        let what = match &outcome.body {
            OutcomeBody::Generate(done) => What::Turn(done.tokens.len() as u32, Some(done.tokens.clone())),
            OutcomeBody::TurnBrief(TurnBrief { tokens, .. }) => What::Turn(*tokens, None),
            OutcomeBody::Returned(returned) => What::HandedBack(
                returned.part().map_or(0, |part| part.tokens),
                returned.sampled.as_ref().map(|part| part.tokens.clone()),
            ),
            OutcomeBody::Void(_) | OutcomeBody::Lost(_) => What::Void,
            OutcomeBody::EnvStep(_)
            | OutcomeBody::StepBrief(_)
            | OutcomeBody::Reward(_)
            | OutcomeBody::TrainShard(_)
            | OutcomeBody::PublishWeights(_) => What::Other,
        };
        Self { key: outcome.key, what }
    }
}

/// The sums.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Turns that were sampled to their end and that no version was trained on.
    pub finished_turns_lost: u64,
    /// Turns that a worker handed back begun.
    pub handed_back: u64,
    /// Their tokens, each once.
    pub handed_back_tokens: u64,
    /// Tokens that were handed back, or belonged to a whole turn, and are not in the turn as it ended.
    pub lost_tokens: u64,
    /// Tasks that were done to their end once more.
    pub done_twice: u64,
    /// Outcomes that nobody keeps.
    pub void: u64,
}

impl Account {
    /// Adds up the outcomes of a run, in the order of the log. Of its turns that ended, `wasted`
    /// belong to no trained rollout.
    pub fn of(outcomes: impl Iterator<Item = Done>, wasted: u64) -> Self {
        let mut account = Self { finished_turns_lost: wasted, ..Self::default() };
        let mut ended = BTreeSet::<TaskKey>::new();
        // The longest part of a turn, until its end.
        let mut begun = BTreeMap::<TaskKey, (u32, Option<Vec<u32>>)>::new();
        for Done { key, what } in outcomes {
            match what {
                What::HandedBack(0, _) => {}
                What::HandedBack(tokens, part) => {
                    account.handed_back += 1;
                    // A part has what was handed back before.
                    let before = begun.get(&key).map_or(0, |(before, _)| *before);
                    account.handed_back_tokens += u64::from(tokens.saturating_sub(before));
                    if ended.contains(&key) {
                        account.lost_tokens += u64::from(tokens);
                    } else {
                        account.lost_tokens += missing(begun.remove(&key), tokens, part.as_deref());
                        begun.insert(key, (tokens, part));
                    }
                }
                What::Turn(tokens, _) if !ended.insert(key) => {
                    account.done_twice += 1;
                    account.lost_tokens += u64::from(tokens);
                }
                What::Turn(tokens, whole) => {
                    account.lost_tokens += missing(begun.remove(&key), tokens, whole.as_deref());
                }
                What::Other => account.done_twice += u64::from(!ended.insert(key)),
                What::Void => account.void += 1,
            }
        }
        // Turns that were begun and never ended.
        account.lost_tokens += begun.values().map(|(tokens, _)| u64::from(*tokens)).sum::<u64>();
        account
    }

    /// Whether anything was lost, or done for nothing.
    #[must_use]
    pub const fn lost(&self) -> bool {
        self.finished_turns_lost > 0 || self.lost_tokens > 0 || self.done_twice > 0 || self.void > 0
    }
}

/// Tokens of the part `before` that the turn no longer has.
fn missing(before: Option<(u32, Option<Vec<u32>>)>, tokens: u32, whole: Option<&[u32]>) -> u64 {
    let Some((count, part)) = before else { return 0 };
    let kept = match (part, whole) {
        (Some(part), Some(whole)) => part.iter().zip(whole).take_while(|(a, b)| a == b).count() as u32,
        // The log has one of them in brief.
        _ => tokens.min(count),
    };
    u64::from(count.saturating_sub(kept))
}

/// The sum of the tokens that an engine says nobody took, in the log of its worker.
#[must_use]
pub fn dropped_tokens(log: &str) -> u64 {
    log.split(DROPPED).skip(1).filter_map(number).sum()
}

/// The number of a field whose name was cut off. A terminal's colours may be in between.
fn number(rest: &str) -> Option<u64> {
    let (between, value) = rest.split_once('=')?;
    let value = value.trim_start_matches(|c: char| !c.is_ascii_alphanumeric() || c == '\u{1b}');
    let value = value.strip_prefix("0m").unwrap_or(value);
    let digits = value.split(|c: char| !c.is_ascii_digit()).next()?;
    (between.len() < 16).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(key: &str, what: What) -> Done {
        Done { key: key.parse().unwrap(), what }
    }

    fn turn(tokens: &[u32]) -> What {
        What::Turn(tokens.len() as u32, Some(tokens.to_vec()))
    }

    fn part(tokens: &[u32]) -> What {
        What::HandedBack(tokens.len() as u32, Some(tokens.to_vec()))
    }

    fn lost(outcomes: impl IntoIterator<Item = (&'static str, What)>) -> (u64, u64) {
        let outcomes = outcomes.into_iter().map(|(key, what)| done(key, what));
        let account = Account::of(outcomes, 0);
        (account.lost_tokens, account.done_twice)
    }

    #[test]
    fn a_part_that_its_turn_continues_is_not_lost() {
        let account = Account::of(
            [
                done("g1r0a0-s1", What::HandedBack(0, None)),
                done("g1r0a0-s1", part(&[1, 2])),
                done("g1r0a0-s1", part(&[1, 2, 3])),
                done("g1r0a0-s1", turn(&[1, 2, 3, 4])),
                done("g1r0a0-s2", What::HandedBack(2, None)),
                done("g1r0a0-s2", What::Turn(5, None)),
                done("g1r0a0-e1", What::Other),
            ]
            .into_iter(),
            0,
        );
        assert!(!account.lost(), "{account:?}");
        assert_eq!((account.handed_back, account.handed_back_tokens), (3, 5));
    }

    #[test]
    fn each_planted_loss_is_counted() {
        let key = "g1r0a0-s1";
        assert_eq!(lost([(key, part(&[1, 2, 3])), (key, turn(&[1, 9, 9]))]), (2, 0), "sampled again");
        assert_eq!(lost([(key, What::HandedBack(5, None)), (key, What::Turn(2, None))]), (3, 0), "cut off");
        assert_eq!(lost([(key, part(&[1, 2, 3]))]), (3, 0), "never continued");
        assert_eq!(lost([(key, turn(&[1])), (key, part(&[1, 2]))]), (2, 0), "handed back too late");
        assert_eq!(lost([(key, turn(&[1, 2])), (key, turn(&[1, 2]))]), (2, 1), "done twice");
        assert_eq!(lost([("g1r0a0-e1", What::Other), ("g1r0a0-e1", What::Other)]), (0, 1));
        assert!(Account::of([done("s3k0a0", What::Void)].into_iter(), 0).lost());
        assert!(Account::of(std::iter::empty(), 1).lost(), "a turn of a rollout that restarted");
    }

    #[test]
    fn the_message_of_an_engine_is_read_with_and_without_colours() {
        let log = "INFO nobody takes the tokens of a turn dropped_tokens=12\n\
                   INFO nobody \u{1b}[3mdropped_tokens\u{1b}[0m\u{1b}[2m=\u{1b}[0m7\nINFO serving\n";
        assert_eq!(dropped_tokens(log), 19);
    }
}
