//! Every rollout that was begun ended as trained, as dropped with a reason, or is in flight; every prompt was
//! begun; and nothing of an ended run is left in a queue.

use std::collections::{BTreeMap, BTreeSet};

use millrace_coordinator::state::Run;
use millrace_coordinator::{Command, status};
use millrace_schemas::{RolloutId, RunId, TaskKey};

use super::history::History;

/// What was begun of a run.
#[derive(Default)]
struct Begun {
    /// Rollouts whose first task was put, evaluation not.
    rollouts: BTreeSet<RolloutId>,
    /// Domains and prompts by group.
    prompts: BTreeMap<u64, (u32, u64)>,
}

/// Counts from the tasks that the fold asked for and the batches that are committed.
pub(super) fn check(history: &History) -> Vec<String> {
    let begun = begun(history);
    let mut findings = Vec::new();
    for (id, run) in history.runs() {
        check_run(history, id, run, begun.get(id), &mut findings);
    }
    let over = history.runs().all(|(_, run)| run.is_closed());
    for (stage, left) in history.queued.iter().filter(|(_, left)| **left > 0) {
        if over {
            findings.push(format!("tasks={left} of {stage} are left though all runs are over"));
        }
    }
    findings
}

fn begun(history: &History) -> BTreeMap<RunId, Begun> {
    let mut begun = BTreeMap::<RunId, Begun>::new();
    history.replay(|moment| {
        for command in moment.commands.into_iter().flatten() {
            let Command::PutTask(task) = command else { continue };
            // The first is a reset, or a turn where a rollout starts from another's.
            let (TaskKey::EnvStep { rollout, turn: 0 } | TaskKey::Generate { rollout, turn: 1 }) = task.key
            else {
                continue;
            };
            if !task.evaluate {
                begun.entry(task.run.clone()).or_default().rollouts.insert(rollout);
            }
        }
        let (Some(_), Some(run)) = (moment.commands, moment.run()) else { return };
        let begun = begun.entry(run.spec.name.clone()).or_default();
        for (id, group) in &run.groups {
            begun.prompts.insert(*id, (group.domain, group.prompt));
        }
    });
    begun
}

fn check_run(history: &History, id: &RunId, run: &Run, begun: Option<&Begun>, findings: &mut Vec<String>) {
    let none = Begun::default();
    let begun = begun.unwrap_or(&none);
    let trained: BTreeSet<RolloutId> = history
        .trained(id)
        .filter(|(version, ..)| *version <= run.version())
        .map(|(_, _, rollout)| rollout.id)
        .collect();
    let all: BTreeSet<RolloutId> = begun.rollouts.union(&trained).copied().collect();
    let flying = in_flight(run);
    let ledger = status::ledger(run);
    if all.len() as u64 != ledger.admitted {
        findings.push(format!("run={id}: rollouts begun={} ledger={}", all.len(), ledger.admitted));
    }
    let gone = all.iter().filter(|id| !trained.contains(id) && !flying.contains(id)).count() as u64;
    let dropped = ledger.dropped.values().sum::<u64>();
    if gone != dropped {
        findings.push(format!(
            "run={id}: rollouts={gone} are neither trained nor in flight; dropped with a reason={dropped}"
        ));
    }
    if run.is_closed() && !flying.is_empty() {
        findings.push(format!("run={id}: it is over with rollouts={} in flight", flying.len()));
    }
    let prompts: BTreeSet<(u32, u64)> = begun.prompts.values().copied().collect();
    let given = match run.books.domains.as_slice() {
        [] => vec![run.next_prompt],
        domains => domains.iter().map(|domain| domain.prompts).collect(),
    };
    let given = (0..).zip(given).flat_map(|(domain, given)| (0..given).map(move |prompt| (domain, prompt)));
    let missing = given.filter(|prompt| !prompts.contains(prompt)).count();
    // Prompts whose groups the log lost and the object store did not are known by their groups alone.
    let adopted = trained.iter().map(|id| id.group).collect::<BTreeSet<_>>();
    let adopted = adopted.into_iter().filter(|group| !begun.prompts.contains_key(group)).count();
    if missing > adopted {
        findings.push(format!("run={id}: prompts={missing} of {} were never begun", run.next_prompt));
    }
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
    async fn a_prompt_that_was_skipped_is_found() {
        let mut history = sound().await;
        history.state.runs.get_mut(&run()).expect("the run").next_prompt += 1;
        assert!(check(&history).iter().any(|words| words.contains("never begun")));
    }
}
