//! No task advances a run twice, and no rollout is trained on twice. A version's training data are
//! the first outcomes of its tasks, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use millrace_schemas::train_shard::{BatchGroup, BatchRollout};
use millrace_schemas::{Event, OutcomeBody, TaskKey};

use super::history::History;
use super::witness::{Witness, answered, puts};

/// Rewards are sums of a few products; in which order they are added up is nobody's word.
const REWARD_ROUNDING: f64 = 1e-9;

/// Counts the batches that a rollout's place is in, and compares what they hold with the first outcomes.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut findings = effects(history);
    let puts = puts(history);
    for (run, _) in history.runs() {
        let mut trained = BTreeMap::new();
        for (version, group, rollout) in history.trained(run) {
            let id = rollout.id;
            if id.group != group.group {
                findings.push(format!("run={run} {version}: rollout {id} stands in group {}", group.group));
            }
            if let Some(before) = trained.insert((id.group, id.index), version) {
                findings.push(format!("run={run} {version}: rollout {id} was trained for {before} already"));
            }
        }
        let mut batches = BTreeSet::new();
        for stored in history.committed[run].iter().flatten() {
            if let Some(batch) = stored.manifest.batch
                && !batches.insert(batch)
            {
                let version = stored.manifest.version;
                findings.push(format!("run={run} {version}: its batch was trained already"));
            }
        }
        // A lost part of the log held the first outcomes of what was made of them.
        let witness = Witness::of(history, run, &puts).filter(|_| history.losses == 0);
        for (version, group, rollout) in witness.iter().flat_map(|_| history.trained(run)) {
            let unlike = witness.as_ref().and_then(|witness| unlike(witness, group, rollout));
            findings
                .extend(unlike.map(|words| format!("run={run} {version}: rollout {} {words}", rollout.id)));
        }
    }
    findings
}

/// What a rollout as it was trained on has that the first outcomes of its tasks have not.
fn unlike(witness: &Witness<'_>, group: &BatchGroup, rollout: &BatchRollout) -> Option<String> {
    let id = rollout.id;
    let observed = |step: u32| match witness.done.get(&TaskKey::EnvStep { rollout: id, turn: step }) {
        Some((_, outcome)) => match &outcome.body {
            OutcomeBody::EnvStep(done) => Some(&done.observation),
            _ => None,
        },
        None => None,
    };
    // A rollout that continues from another's turn has that rollout's tokens before its own.
    let starts = observed(0);
    let mut tokens = Vec::new();
    let calls = answered(&witness.done, id, rollout.turns.len());
    for (at, taken) in rollout.turns.iter().enumerate() {
        let turn = at + 1;
        let call = calls.get(at).copied().unwrap_or(0);
        let outcome = witness.done.get(&TaskKey::Generate { rollout: id, turn: call });
        let Some(OutcomeBody::Generate(done)) = outcome.map(|(_, outcome)| &outcome.body) else {
            return Some(format!("has a turn {turn} that nobody sampled"));
        };
        if done.segments != taken.segments {
            return Some(format!("has a turn {turn} that is not the first of its name"));
        }
        tokens.extend_from_slice(observed(call - 1).map_or(&[], Vec::as_slice));
        tokens.extend_from_slice(&done.tokens);
    }
    let same = if starts.is_some() { rollout.tokens == tokens } else { rollout.tokens.ends_with(&tokens) };
    if !same {
        return Some("has other tokens than the first outcomes of its tasks".to_owned());
    }
    let weights = witness.spec.part(group.domain).reward_weights();
    let score = |(reward, weight): (u32, &f64)| match &witness
        .done
        .get(&TaskKey::Reward { rollout: id, reward })?
        .1
        .body
    {
        OutcomeBody::Reward(done) => Some(done.score * weight),
        _ => None,
    };
    let reward = (0..).zip(&weights).map(score).sum::<Option<f64>>();
    let off = reward.is_none_or(|reward| (reward - rollout.reward).abs() > REWARD_ROUNDING);
    off.then(|| format!("has reward={}, and its first scores make {reward:?}", rollout.reward))
}

/// Outcomes beyond the first that were taken in.
fn effects(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    let mut taken = BTreeMap::<(String, TaskKey), u64>::new();
    let mut late_before = None;
    history.replay(|moment| {
        let Some(Event::Outcome(outcome)) = &moment.entry.event else { return };
        if !outcome.body.is_final() {
            return;
        }
        let late = moment.run().map(|run| run.books.late_outcomes);
        if moment.commands.is_none() {
            late_before = late;
            return;
        }
        if late.is_none() || late != late_before {
            return;
        }
        let first = taken.entry((moment.entry.run.clone(), outcome.key)).or_insert(moment.entry.seq);
        if *first != moment.entry.seq {
            findings.push(format!(
                "run={} task={} was taken in at seq={first} and again at seq={}",
                moment.entry.run, outcome.key, moment.entry.seq
            ));
        }
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::super::testing::{break_batch, sound};
    use super::*;

    #[tokio::test]
    async fn a_rollout_in_two_batches_is_found() {
        let mut history = sound().await;
        assert_eq!(check(&history), Vec::<String>::new());
        let copied = history.trained(&run()).next().map(|(_, group, _)| group.clone()).expect("a group");
        break_batch(&mut history, 3, |batch| batch.groups[0] = copied);
        assert!(check(&history).iter().any(|words| words.contains("trained for v1 already")));
    }

    #[tokio::test]
    async fn a_turn_or_a_score_that_is_not_the_first_outcomes_is_found() {
        let mut history = sound().await;
        break_batch(&mut history, 2, |batch| batch.groups[0].rollouts[0].tokens.push(7));
        assert!(check(&history)[0].contains("other tokens"), "{:?}", check(&history));
        break_batch(&mut history, 2, |batch| {
            let turns = &mut batch.groups[0].rollouts[0].turns;
            turns.push(turns[0].clone());
        });
        assert!(check(&history)[0].contains("nobody sampled"), "{:?}", check(&history));
        let mut history = sound().await;
        break_batch(&mut history, 2, |batch| batch.groups[0].rollouts[1].reward += 0.5);
        assert!(check(&history)[0].contains("its first scores make"), "{:?}", check(&history));
    }

    fn run() -> millrace_schemas::RunId {
        super::super::testing::run()
    }
}
