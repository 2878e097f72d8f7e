//! A rollout is replaced because it failed, was lost or grew stale, and for nothing else; no more are booked as failed than
//! did.

use millrace_coordinator::fold::state::Run;
use millrace_coordinator::fold::status;
use millrace_schemas::{RolloutId, RunId};

use super::history::History;
use super::witness::{Witness, puts};

/// Asks the witness why each rollout was replaced. Where the queue lost its newest part, so are the reasons.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    if history.losses > 0 {
        return findings;
    }
    let puts = puts(history);
    for (id, run) in history.runs().filter(|(_, run)| run.is_closed()) {
        if let Some(witness) = Witness::of(history, id, &puts) {
            check_run(id, run, &witness, &mut findings);
        }
    }
    findings
}

fn check_run(id: &RunId, run: &Run, witness: &Witness<'_>, findings: &mut Vec<String>) {
    let next = |rollout: &&RolloutId| RolloutId { attempt: rollout.attempt + 1, ..**rollout };
    for rollout in witness.begun.iter().filter(|rollout| witness.begun.contains(&next(rollout))) {
        if witness.trained.contains(rollout) {
            findings.push(format!("run={id}: rollout {rollout} was trained on, and replaced"));
        } else if !witness.failed.contains(rollout)
            && !witness.lost.contains(rollout)
            && !witness.is_stale(*rollout)
        {
            findings.push(format!(
                "run={id}: rollout {rollout} was replaced; it neither failed nor was lost, and is not stale"
            ));
        }
    }
    let dropped = status::ledger(run).dropped;
    let failed = dropped.get("failed").copied().unwrap_or(0)
        - run.books.refused_outcomes.min(dropped.get("failed").copied().unwrap_or(0));
    let seen = witness.begun.intersection(&witness.failed).count() as u64;
    if failed > seen {
        findings.push(format!("run={id}: rollouts={failed} are booked as failed; seen to fail={seen}"));
    }
}

#[cfg(test)]
mod tests {
    use millrace_schemas::{Event, TaskKey};

    use super::super::history::Entry;
    use super::super::testing::{run, sound};
    use super::*;

    /// A dead letter of a task that is done already, and a rollout that was replaced for it.
    #[tokio::test]
    async fn a_rollout_that_is_replaced_without_a_reason_is_found() {
        let mut history = sound().await;
        assert_eq!(check(&history), Vec::<String>::new());
        let (.., rollout) = history.trained(&run()).last().expect("a rollout");
        let id = rollout.id;
        let puts = history.puts.as_mut().expect("they were watched");
        let first = TaskKey::EnvStep { rollout: id, turn: 0 };
        let mut put = puts.iter().find(|put| put.key == first).cloned().expect("its first task");
        put.key = TaskKey::EnvStep { rollout: RolloutId { attempt: 1, ..id }, turn: 0 };
        puts.push(put);
        let reason = "delivered 5 times".to_owned();
        let event = Some(Event::DeadLetter { key: first, reason, exhausted: false });
        let seq = history.log.len() as u64 + 1;
        history.log.push(Entry { seq, run: run().to_string(), epoch: None, event });
        assert!(check(&history)[0].contains("was trained on, and replaced"), "{:?}", check(&history));
    }

    #[tokio::test]
    async fn failures_that_nobody_saw_are_found() {
        let mut history = sound().await;
        let books = &mut history.state.runs.get_mut(&run()).expect("the run").books;
        *books.dropped.entry(millrace_coordinator::fold::books::DropReason::Failed).or_default() += 1;
        assert!(check(&history)[0].contains("seen to fail=0"), "{:?}", check(&history));
    }
}
