//! A version is what all ranks of one attempt at its step made: no share is missing, and none is of another attempt.

use std::collections::{BTreeMap, BTreeSet};

use millrace_coordinator::Command;
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{Event, OutcomeBody, PolicyVersion, RunId, TaskBody, TaskKey};

use super::history::{Entry, History};

/// An attempt at a step of a run, by the version that it makes.
type Attempt = (RunId, PolicyVersion, u32);

/// What the log knows of the steps.
#[derive(Default)]
struct Steps {
    /// Ranks of each attempt.
    worlds: BTreeMap<Attempt, u32>,
    /// The last request to each rank.
    asked: BTreeMap<(Attempt, u32), u64>,
    /// The files that the ranks reported as stored. The first report of each rank counts, if it
    /// answers the last request: another report may belong to a lost part of the log.
    shares: BTreeMap<Attempt, BTreeMap<u32, Vec<FileRef>>>,
    /// Versions that were found in the object store: the log lost how they were made.
    adopted: BTreeSet<(RunId, PolicyVersion)>,
}

/// Compares the files of each committed version with those that the ranks reported to the log.
pub(super) fn check(history: &History) -> Vec<String> {
    let steps = Steps::of(history);
    let mut findings = Vec::new();
    for (id, _) in history.runs() {
        for stored in history.committed[id].iter().flatten() {
            let version = stored.manifest.version;
            let known = steps.adopted.contains(&(id.clone(), version));
            if !known && !steps.whole(id, version).any(|files| files == stored.manifest.files) {
                findings.push(format!("run={id} {version}: no attempt's ranks made its files together"));
            }
        }
    }
    findings
}

impl Steps {
    fn of(history: &History) -> Self {
        let mut steps = Self::default();
        history.replay(|moment| {
            let Some(commands) = moment.commands else { return };
            steps.hear(moment.entry);
            for command in commands {
                if let Command::PutTask(task) = command
                    && let (TaskKey::TrainShard { makes, attempt, rank }, TaskBody::TrainShard(shard)) =
                        (task.key, &task.body)
                {
                    let attempt = (task.run.clone(), PolicyVersion(makes), attempt);
                    steps.worlds.insert(attempt.clone(), shard.world);
                    steps.asked.insert((attempt, rank), task.request_fingerprint());
                }
            }
        });
        steps
    }

    fn hear(&mut self, entry: &Entry) {
        let Ok(run) = entry.run.parse::<RunId>() else { return };
        match &entry.event {
            Some(Event::Adopted(adopted)) => {
                self.adopted.insert((run, adopted.version));
            }
            Some(Event::Outcome(outcome)) => {
                if let (TaskKey::TrainShard { makes, rank, attempt }, OutcomeBody::TrainShard(done)) =
                    (outcome.key, &outcome.body)
                {
                    let attempt = (run, PolicyVersion(makes), attempt);
                    let asked = self.asked.get(&(attempt.clone(), rank));
                    if outcome.request_fingerprint.is_none_or(|fingerprint| Some(&fingerprint) == asked) {
                        let shares = self.shares.entry(attempt).or_default();
                        shares.entry(rank).or_insert_with(|| done.files.clone());
                    }
                }
            }
            _ => {}
        }
    }

    /// The files, by rank, of each attempt at a version in which all ranks did their share.
    fn whole(&self, run: &RunId, version: PolicyVersion) -> impl Iterator<Item = Vec<FileRef>> {
        let attempts = (run.clone(), version, 0)..=(run.clone(), version, u32::MAX);
        self.shares.range(attempts).filter_map(|(attempt, shares)| {
            let world = self.worlds.get(attempt).copied().unwrap_or(0);
            let all = shares.keys().copied().eq(0..world);
            all.then(|| shares.values().flatten().cloned().collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{run, sound};
    use super::*;

    /// Changes the outcome of the step that makes version 3.
    fn change(history: &mut History, change: impl Fn(&mut TaskKey)) {
        let events = history.log.iter_mut().filter_map(|entry| entry.event.as_mut());
        let outcomes = events.filter_map(|event| match event {
            Event::Outcome(outcome) => Some(&mut outcome.key),
            _ => None,
        });
        outcomes.filter(|key| matches!(key, TaskKey::TrainShard { makes: 3, .. })).for_each(change);
    }

    #[tokio::test]
    async fn a_version_without_a_whole_attempt_is_found() {
        let mut history = sound().await;
        assert_eq!(check(&history), Vec::<String>::new());
        change(&mut history, |key| *key = TaskKey::TrainShard { makes: 3, rank: 0, attempt: 1 });
        assert!(check(&history)[0].contains("v3"), "its share was of another attempt");
        let mut history = sound().await;
        let stored = history.committed.get_mut(&run()).expect("versions")[2].as_mut().expect("readable");
        stored.manifest.files.pop();
        assert!(check(&history)[0].contains("v2"), "a share is missing");
    }
}
