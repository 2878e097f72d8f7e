//! What a coordinator's state says of the object store: which runs there are, how long they keep the
//! files of their versions, and which files belong to steps that are not committed.

use std::collections::{BTreeMap, BTreeSet};

use millrace_schemas::blob::paths;
use millrace_schemas::log_segment::Claim;
use millrace_schemas::publish_weights::Retention;
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{BlobRef, RunId};

use super::{ObjectUse, Reference, References};
use crate::fold::state::{Run, State};

/// What is known of the object store from the state alone.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Every run that the log knows, with its retention; `None` keeps the files of all versions. Of
    /// any other run, no blob is removed: another log may need it.
    pub retentions: BTreeMap<RunId, Option<Retention>>,
    /// Batches and files of steps that are not committed: no manifest names them yet. A paused run may
    /// have such a step for any time.
    pub steps: BTreeSet<Claim>,
}

impl Known {
    /// What `state` knows.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let live = state.runs.iter().map(|(id, run)| (id.clone(), Some(run.spec.weights)));
        let archived = state.archived.iter().map(|(id, run)| (id.clone(), run.retention));
        let steps = state
            .runs
            .iter()
            .flat_map(|(id, run)| step(run).into_iter().map(|blob| Claim { run: id.clone(), blob }));
        Self { retentions: archived.chain(live).collect(), steps: steps.collect() }
    }

    /// Adds the references of the steps. They are not missed: the state may have moved on meanwhile.
    pub(super) fn refer(&self, references: &mut References) {
        for Claim { run, blob } in &self.steps {
            let kept = Reference { of: ObjectUse::Step, blob: Some(*blob), missed_by: None };
            references.entry(paths::blob(run, &blob.sha256)).or_insert(kept);
        }
    }
}

/// The blobs of a run's current step.
fn step(run: &Run) -> Vec<BlobRef> {
    let Some(training) = &run.training else { return Vec::new() };
    let manifest = training.manifest.iter();
    let batch = manifest.clone().filter_map(|manifest| manifest.batch).chain(training.batch);
    let files = training.shards.values().flatten().chain(manifest.flat_map(|manifest| &manifest.files));
    batch.chain(files.flat_map(FileRef::stored)).collect()
}
