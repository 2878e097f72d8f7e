//! Every rollout that was begun ended as trained, as dropped with a reason, or is in flight; every prompt was
//! begun; and nothing of an ended run is left in a queue.

use std::collections::{BTreeMap, BTreeSet};

use millrace_coordinator::fold::state::Run;
use millrace_coordinator::fold::status;
use millrace_schemas::{RolloutId, RunId};

use super::history::History;
use super::witness::{Witness, puts};

/// Counts from the tasks that were put and the batches that are committed.
pub(super) fn check(history: &History) -> Vec<String> {
    let (puts, prompts, mut findings) = (puts(history), prompts(history), Vec::new());
    for (id, run) in history.runs() {
        match Witness::of(history, id, &puts) {
            Some(witness) => {
                check_run(id, run, &witness, &mut findings);
                findings.extend(skipped(run, prompts.get(id), &witness));
            }
            None => findings.push(format!("run={id}: the log does not know that it was submitted")),
        }
    }
    let over = history.runs().all(|(_, run)| run.is_closed());
    for (stage, left) in history.queued.iter().filter(|(_, left)| **left > 0) {
        if over {
            findings.push(format!("tasks={left} of {stage} are left though all runs are over"));
        }
    }
    findings
}

/// Why a whole group goes, also one of which nothing was put yet.
const OF_GROUPS: [&str; 4] = ["surplus", "cancelled", "group_failed", "superseded"];

fn check_run(id: &RunId, run: &Run, witness: &Witness<'_>, findings: &mut Vec<String>) {
    let flying = in_flight(run);
    let all: BTreeSet<RolloutId> = witness.begun.union(&witness.trained).copied().collect();
    let ledger = status::ledger(run);
    let begun = all.len() as u64;
    // Those that were admitted and dropped again before a task of theirs was put.
    let unseen = ledger.admitted.saturating_sub(begun);
    let dropped = |reasons: &[&str]| -> u64 {
        let of =
            |(reason, count): (&String, &u64)| if reasons.contains(&reason.as_str()) { *count } else { 0 };
        ledger.dropped.iter().map(of).sum()
    };
    if begun > ledger.admitted || (run.is_closed() && unseen > dropped(&OF_GROUPS)) {
        findings.push(format!("run={id}: rollouts begun={begun} ledger={}", ledger.admitted));
    }
    let gone = all.iter().filter(|id| !witness.trained.contains(id) && !flying.contains(id)).count() as u64;
    let said = ledger.dropped.values().sum::<u64>();
    if run.is_closed() && gone + unseen != said {
        findings.push(format!(
            "run={id}: rollouts={gone} are neither trained nor in flight, unseen={unseen}; dropped with a reason={said}"
        ));
    }
    if run.is_closed() && !flying.is_empty() {
        findings.push(format!("run={id}: it is over with rollouts={} in flight", flying.len()));
    }
}

/// Domains and prompts by run and group.
type Prompts = BTreeMap<RunId, BTreeMap<u64, (u32, u64)>>;

fn prompts(history: &History) -> Prompts {
    let mut prompts = Prompts::new();
    history.replay(|moment| {
        let (Some(_), Some(run)) = (moment.commands, moment.run()) else { return };
        let known = prompts.entry(run.spec.name.clone()).or_default();
        known.extend(run.groups.iter().map(|(id, group)| (*id, (group.domain, group.prompt))));
    });
    prompts
}

/// Prompts that were given out and that no group has.
fn skipped(run: &Run, groups: Option<&BTreeMap<u64, (u32, u64)>>, witness: &Witness<'_>) -> Option<String> {
    let begun: BTreeSet<(u32, u64)> = groups.into_iter().flat_map(BTreeMap::values).copied().collect();
    let given = match run.books.domains.as_slice() {
        [] => vec![run.next_prompt],
        domains => domains.iter().map(|domain| domain.prompts).collect(),
    };
    let given = (0..).zip(given).flat_map(|(domain, given)| (0..given).map(move |prompt| (domain, prompt)));
    let missing = given.filter(|prompt| !begun.contains(prompt)).count();
    // Prompts whose groups the log lost and the object store did not are known by their groups alone.
    let adopted = witness.trained.iter().map(|id| id.group).collect::<BTreeSet<_>>();
    let known = |group: &u64| groups.is_some_and(|groups| groups.contains_key(group));
    let adopted = adopted.iter().filter(|group| !known(group)).count();
    let words = format!("run={}: prompts={missing} of {} were never begun", run.spec.name, run.next_prompt);
    (missing > adopted).then_some(words)
}

fn in_flight(run: &Run) -> BTreeSet<RolloutId> {
    let training =
        run.training.iter().flat_map(|training| training.groups.iter().map(|(id, group)| (id, group)));
    let groups = run.groups.iter().chain(training);
    let rollouts = groups.flat_map(|(group, state)| {
        state.rollouts.iter().zip(0..).map(|(rollout, index)| RolloutId {
            group: *group,
            index,
            attempt: rollout.attempt,
        })
    });
    rollouts.collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{break_batch, run, sound};
    use super::*;

    #[tokio::test]
    async fn a_rollout_that_vanished_is_found() {
        let mut history = sound().await;
        assert_eq!(check(&history), Vec::<String>::new());
        break_batch(&mut history, 2, |batch| {
            batch.groups.pop();
        });
        assert!(check(&history).iter().any(|words| words.contains("neither trained nor in flight")));
    }

    #[tokio::test]
    async fn a_task_that_is_left_is_found() {
        let mut history = sound().await;
        history.queued.insert(millrace_schemas::Stage::Reward, 1);
        assert_eq!(check(&history).len(), 1);
    }

    #[tokio::test]
    async fn a_rollout_that_the_books_do_not_know_is_found() {
        let mut history = sound().await;
        let books = &mut history.state.runs.get_mut(&run()).expect("the run").books;
        books.admitted -= 1;
        assert!(check(&history).iter().any(|words| words.contains("begun=")), "{:?}", check(&history));
    }

    #[tokio::test]
    async fn a_prompt_that_was_skipped_is_found() {
        let mut history = sound().await;
        history.state.runs.get_mut(&run()).expect("the run").next_prompt += 1;
        assert!(check(&history).iter().any(|words| words.contains("never begun")));
    }
}
