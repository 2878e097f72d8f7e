//! Appends a version to the log that is committed in the object store and that the log lost.

use millrace_queue::{Broker, BrokerError};
use millrace_schemas::event::{Adopted, AdoptedGroup, AdoptedRollout};
use millrace_schemas::train_shard::BatchGroup;
use millrace_schemas::{Event, PolicyVersion, RunId};

use crate::shell::audit::{StoredVersion, read_version};

/// Appends `version` to the log if it is committed. The fold ignores a version that it knows, so
/// that repeating this is harmless.
///
/// # Errors
/// The queue or the object store cannot be reached.
pub async fn append_committed(
    broker: &Broker,
    run: &RunId,
    version: PolicyVersion,
    epoch: u64,
) -> Result<(), BrokerError> {
    match read_version(broker.objects(), run, version).await? {
        None => {}
        Some(Ok(stored)) => {
            tracing::warn!(%run, %version, "a committed version is not in the log; adopting it");
            let adopted = Event::Adopted(Box::new(event(version, &stored)));
            broker.append_led(run.as_str(), &adopted, epoch).await?;
        }
        Some(Err(reason)) => {
            tracing::error!(%run, %version, reason, "a committed version cannot be read; restore its objects");
        }
    }
    Ok(())
}

fn event(version: PolicyVersion, stored: &StoredVersion) -> Adopted {
    let groups = stored.batch.iter().flat_map(|batch| &batch.groups).map(group).collect();
    Adopted { version, manifest: stored.sha256, batch: stored.manifest.batch, groups }
}

fn group(group: &BatchGroup) -> AdoptedGroup {
    let rollouts = group.rollouts.iter().map(|rollout| AdoptedRollout {
        attempt: rollout.id.attempt,
        start_version: rollout.start_version,
        reward: rollout.reward,
        success: rollout.success,
    });
    AdoptedGroup { group: group.group, domain: group.domain, rollouts: rollouts.collect() }
}
