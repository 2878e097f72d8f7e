//! A turn is sampled after what it follows, and trained on with that as its context. An observation
//! follows the last turn, or the earlier turn that its environment names. The turn after it has all of
//! that turn's context, that turn, and the observation. What the coordinator puts, and what it keeps
//! of forks with a batch, is recounted here from the first outcomes, without its code.
//!
//! Where calls are side by side, a task is named by its call, an observation names the call that its own follows, and
//! turns are numbered in the order of their outcomes. Else the three are the same.

use millrace_schemas::{OutcomeBody, RolloutId, TaskKey};

use super::history::History;
use super::witness::{FirstOutcomes, answered, first_outcomes, puts};

/// The most calls that a conversation is followed back.
const MOST: usize = 1_000;

/// The first outcomes of a run's turns and observations.
struct Outcomes<'a>(FirstOutcomes<'a>);

impl Outcomes<'_> {
    fn seq(&self, key: TaskKey) -> Option<u64> {
        self.0.get(&key).map(|(seq, _)| *seq)
    }

    /// The call that call `turn` follows; 0 for none.
    fn follows(&self, rollout: RolloutId, turn: u32) -> u32 {
        let before = turn.saturating_sub(1);
        match self.0.get(&TaskKey::EnvStep { rollout, turn: before }).map(|(_, outcome)| &outcome.body) {
            Some(OutcomeBody::EnvStep(done)) => done.follows.unwrap_or(before),
            _ => before,
        }
    }

    /// The log entries that `turn` is to be sampled after; `None` where one is not in the log.
    fn context(&self, rollout: RolloutId, turn: u32) -> Option<Vec<u64>> {
        let observed = |turn: u32| self.seq(TaskKey::EnvStep { rollout, turn });
        let mut entries = vec![observed(turn.checked_sub(1)?)?];
        let mut at = self.follows(rollout, turn);
        while at > 0 && entries.len() < MOST {
            entries.push(self.seq(TaskKey::Generate { rollout, turn: at })?);
            entries.push(observed(at - 1)?);
            at = self.follows(rollout, at);
        }
        entries.reverse();
        Some(entries)
    }

    /// The log entries that a step takes: the state that it goes on from, and the turn, if it has one; none at the reset.
    /// Where calls are side by side, the state is that of the reset, and the turn answers a call. `None` where one is
    /// not in the log.
    fn taken(&self, rollout: RolloutId, step: u32, answers: Option<u32>) -> Option<Vec<u64>> {
        let Some(before) = step.checked_sub(1) else { return Some(Vec::new()) };
        let (state, turn) = answers.map_or((before, step), |call| (0, call));
        let mut entries = vec![self.seq(TaskKey::EnvStep { rollout, turn: state })?];
        if turn > 0 {
            entries.push(self.seq(TaskKey::Generate { rollout, turn })?);
        }
        Some(entries)
    }

    /// The turns that do not follow the one before them, each with the one that it follows; 0 for none.
    fn forks(&self, rollout: RolloutId, turns: usize) -> Vec<(u32, u32)> {
        let calls = answered(&self.0, rollout, turns);
        let turn_of =
            |call: u32| calls.iter().position(|answered| *answered == call).map_or(0, |at| at as u32 + 1);
        let forks = (1..).zip(&calls).map(|(turn, call)| (turn, turn_of(self.follows(rollout, *call))));
        forks.filter(|(turn, follows)| follows + 1 != *turn).collect()
    }

    /// A rollout that continues from another's turn has no first observation of its own, and no forks.
    fn begins_itself(&self, rollout: RolloutId) -> bool {
        self.seq(TaskKey::EnvStep { rollout, turn: 0 }).is_some()
    }
}

/// Recounts the context of every task that samples, what every step takes, and the forks of every rollout that was trained on.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    // A lost part of the log held the first outcomes.
    if history.losses > 0 {
        return findings;
    }
    let puts = puts(history);
    for (run, _) in history.runs() {
        let outcomes = Outcomes(first_outcomes(history, run));
        for put in puts.iter().filter(|put| put.run == *run) {
            let (Some(rollout), Some(found)) = (put.key.rollout(), &put.context) else { continue };
            if !outcomes.begins_itself(rollout) {
                continue;
            }
            let (expected, does) = match put.key {
                TaskKey::Generate { turn, .. } => (outcomes.context(rollout, turn), "is sampled after"),
                TaskKey::EnvStep { turn, .. } => (outcomes.taken(rollout, turn, put.answers), "takes"),
                _ => continue,
            };
            if expected.as_ref() != Some(found) {
                findings.push(format!(
                    "run={run} task={} {does} entries={found:?}, and follows {expected:?}",
                    put.key
                ));
            }
        }
        for (version, _, rollout) in history.trained(run) {
            let expected = outcomes.forks(rollout.id, rollout.turns.len());
            let found: Vec<(u32, u32)> = rollout.forks.iter().map(|fork| (fork.turn, fork.follows)).collect();
            if outcomes.begins_itself(rollout.id) && found != expected {
                findings.push(format!(
                    "run={run} {version}: rollout {} has forks={found:?}, and its observations make {expected:?}",
                    rollout.id
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use millrace_schemas::Event;
    use millrace_schemas::fork::Fork;

    use super::super::puts::TaskPut;
    use super::super::testing::{break_batch, run, sound};
    use super::*;

    #[tokio::test]
    async fn a_turn_that_is_sampled_or_trained_on_after_another_context_is_found() {
        let mut history = sound().await;
        assert_eq!(check(&history), Vec::<String>::new());
        let second = |put: &&mut TaskPut| matches!(put.key, TaskKey::Generate { turn: 2, .. });
        let puts = history.puts.as_mut().expect("watched");
        let context =
            puts.iter_mut().find(second).and_then(|put| put.context.as_mut()).expect("a second turn");
        assert_eq!(context.len(), 3);
        context.remove(1);
        assert!(check(&history)[0].contains("is sampled after"), "{:?}", check(&history));

        let mut history = sound().await;
        let step = |put: &&mut TaskPut| matches!(put.key, TaskKey::EnvStep { turn: 2, .. });
        let puts = history.puts.as_mut().expect("watched");
        let context = puts.iter_mut().find(step).and_then(|put| put.context.as_mut()).expect("a second step");
        assert_eq!(context.len(), 2);
        context[1] -= 1;
        assert!(check(&history)[0].contains("takes entries"), "{:?}", check(&history));

        let mut history = sound().await;
        break_batch(&mut history, 2, |batch| {
            batch.groups[0].rollouts[0].forks.push(Fork { turn: 2, follows: 0 });
        });
        assert!(check(&history)[0].contains("has forks=[(2, 0)]"), "{:?}", check(&history));
    }

    #[tokio::test]
    async fn an_observation_that_follows_an_earlier_turn_is_followed() {
        let mut history = sound().await;
        let mut entries = history.log.iter_mut().filter_map(|entry| entry.event.as_mut());
        let first = entries.find_map(|event| match event {
            Event::Outcome(outcome) if matches!(outcome.key, TaskKey::EnvStep { turn: 1, .. }) => {
                let OutcomeBody::EnvStep(done) = &mut outcome.body else { return None };
                done.follows = Some(0);
                outcome.key.rollout()
            }
            _ => None,
        });
        let rollout = first.expect("a step");
        let context = Outcomes(first_outcomes(&history, &run())).context(rollout, 2).expect("in the log");
        assert_eq!(context.len(), 1, "only its own observation");
        let named = format!("task={}", TaskKey::Generate { rollout, turn: 2 });
        assert!(check(&history)[0].contains(&named), "{:?}", check(&history));
    }
}
