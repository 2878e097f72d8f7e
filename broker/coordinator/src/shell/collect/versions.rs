//! What the manifests of committed versions refer to: batches, and the files that retention keeps.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt};
use millrace_queue::{Broker, BrokerError, Listed, ObjectError};
use millrace_schemas::blob::paths::{self, ObjectKind};
use millrace_schemas::publish_weights::{Manifest, Retention};
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{PolicyVersion, RunId};

use super::{IN_FLIGHT, Known, ObjectUse, Reference, References};

/// Retention assumed for a run whose run file is unknown: every retention keeps at least these
/// versions' files.
const SURE: Retention = Retention { newest: 2, every: 0, checkpoint_every: 1, anchor_every: 1 };

/// Adds these references. All blobs of a run stay if the log does not know the run, or if one of its
/// manifests cannot be read.
pub(super) async fn refer(
    broker: &Broker,
    listed: &[Listed],
    known: &Known,
    references: &mut References,
    wrong: &mut Vec<String>,
) -> Result<(), BrokerError> {
    let mut runs: BTreeMap<RunId, BTreeSet<PolicyVersion>> = BTreeMap::new();
    for object in listed {
        if let Some(ObjectKind::Manifest(run, version)) = paths::parse(&object.path) {
            runs.entry(run).or_default().insert(version);
        }
    }
    let mut unreadable = BTreeSet::new();
    for (run, versions) in runs {
        let newest = versions.last().copied().unwrap_or_default();
        let retention = known.retentions.get(&run).copied().flatten();
        let reads = futures::stream::iter(versions).map(async |version| {
            let path = paths::manifest(&run, version);
            Ok::<_, ObjectError>((version, broker.objects().get(&path).await?))
        });
        let mut reads = reads.buffered(IN_FLIGHT);
        while let Some((version, content)) = reads.try_next().await? {
            let manifest = content.map(|content| serde_json::from_slice::<Manifest>(&content));
            let Some(Ok(manifest)) = manifest else {
                wrong.push(format!(
                    "the manifest of {version} of run={run} is gone or damaged; until it is restored, no blob of the run is removed"
                ));
                unreadable.insert(run.clone());
                continue;
            };
            let by = format!("{version} of run={run}");
            let reference = |of, blob, missed_by| Reference { of, blob: Some(blob), missed_by };
            if let Some(blob) = manifest.batch {
                references.insert(
                    paths::blob(&run, &blob.sha256),
                    reference(ObjectUse::Batch, blob, Some(by.clone())),
                );
            }
            let sure = retention.unwrap_or(SURE).keeps(version, newest);
            if retention.is_some() && !sure {
                continue;
            }
            for blob in manifest.files.iter().flat_map(FileRef::stored) {
                let found = references
                    .entry(paths::blob(&run, &blob.sha256))
                    .or_insert_with(|| reference(ObjectUse::Weights, blob, None));
                found.missed_by = found.missed_by.take().or_else(|| sure.then(|| by.clone()));
            }
        }
    }
    keep_unsure(listed, |run| !known.retentions.contains_key(run) || unreadable.contains(run), references);
    Ok(())
}

/// Keeps all blobs of the runs of which it is not known what refers to them.
fn keep_unsure(listed: &[Listed], is_unsure: impl Fn(&RunId) -> bool, references: &mut References) {
    for object in listed {
        if let Some(ObjectKind::Blob(run, _)) = paths::parse(&object.path)
            && is_unsure(&run)
        {
            references.entry(object.path.clone()).or_insert_with(Reference::unsure);
        }
    }
}
