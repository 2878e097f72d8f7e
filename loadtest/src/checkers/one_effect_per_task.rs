//! No task moves a run on twice, and no rollout is trained on twice.

use std::collections::{BTreeMap, BTreeSet};

use millrace_schemas::{Event, TaskKey};

use super::history::History;

/// Counts the outcomes that were taken in, and the batches that a rollout's place is in.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut findings = effects(history);
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
    }
    findings
}

/// Outcomes beyond the first that were taken in.
fn effects(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    let mut taken = BTreeMap::<(String, TaskKey), u64>::new();
    let mut late_before = None;
    history.replay(|moment| {
        let Some(Event::Outcome(outcome)) = &moment.entry.event else { return };
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

    fn run() -> millrace_schemas::RunId {
        super::super::testing::run()
    }
}
