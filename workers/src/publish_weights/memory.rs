//! What a collector knows of runs without asking the store. Of many runs it forgets the one that committed
//! longest ago: nothing here tells when a run has ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use millrace_schemas::blob::Sha;
use millrace_schemas::{PolicyVersion, RunId};

use super::collect::Files;

/// Runs that are remembered. One that was forgotten costs reads again, and no more.
const RUNS: usize = 64;

/// The runs, the latest first.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<VecDeque<(RunId, OfRun)>>);

#[derive(Debug, Default)]
struct OfRun {
    /// The files of committed versions.
    files: BTreeMap<PolicyVersion, Files>,
    /// Files of given-up versions that no longer exist. By version: a later one may have written the same
    /// content again.
    gone: BTreeSet<(PolicyVersion, Sha)>,
}

impl Memory {
    /// The files of a version; `None` if they are not known.
    pub(super) fn files(&self, run: &RunId, version: PolicyVersion) -> Option<Files> {
        self.of(run, |known| known.files.get(&version).cloned())
    }

    pub(super) fn set_files(&self, run: &RunId, version: PolicyVersion, files: Files) {
        self.of(run, |known| known.files.insert(version, files));
    }

    /// Files of `given_up` versions that no longer exist. Forgets those of all others.
    pub(super) fn gone(
        &self,
        run: &RunId,
        given_up: &BTreeMap<PolicyVersion, Files>,
    ) -> BTreeSet<(PolicyVersion, Sha)> {
        self.of(run, |known| {
            known.gone.retain(|(version, _)| given_up.contains_key(version));
            known.gone.clone()
        })
    }

    /// The file `sha` of `versions` does not exist.
    pub(super) fn set_gone(&self, run: &RunId, versions: &[PolicyVersion], sha: Sha) {
        self.of(run, |known| known.gone.extend(versions.iter().map(|version| (*version, sha))));
    }

    fn of<T>(&self, run: &RunId, act: impl FnOnce(&mut OfRun) -> T) -> T {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = runs.iter().position(|(known, _)| known == run);
        let known = at.and_then(|at| runs.remove(at)).unwrap_or_else(|| (run.clone(), OfRun::default()));
        runs.push_front(known);
        runs.truncate(RUNS);
        act(&mut runs[0].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_runs_the_latest_are_remembered() {
        let memory = Memory::default();
        let run = |i: usize| format!("run-{i}").parse::<RunId>().unwrap();
        let is_known = |i| memory.files(&run(i), PolicyVersion(1)).is_some();
        for i in 0..RUNS {
            memory.set_files(&run(i), PolicyVersion(1), Files::default());
        }
        assert!(is_known(0), "it is the latest now");
        memory.set_files(&run(RUNS), PolicyVersion(1), Files::default());
        assert!(is_known(0) && is_known(2) && is_known(RUNS) && !is_known(1));
    }
}
