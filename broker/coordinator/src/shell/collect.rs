//! What stands in the object store, what leads to it, and what goes: whatever nothing leads to and is old enough.
//!
//! Roots are the key of the snapshots, the manifests of versions and of segments, the log and the dead letters. Age
//! stands for what is written before something leads to it, and for tasks, whose payloads are put again with them.
//! Everything is listed before the roots are read: what begins to be referred to in between is found at its root, and
//! a blob that is put again is written again, so that it is not what was listed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use millrace_queue::{Broker, BrokerError, Listed, ObjectError};
use millrace_schemas::blob::paths::{self, Place};
use millrace_schemas::limits::MAX_COLLECTED;
use millrace_schemas::publish_weights::{Manifest, Retention};
use millrace_schemas::{BlobRef, PolicyVersion, RunId};

use crate::fold::state::State;
use crate::shell::journal;

/// Objects that are read or looked for at once.
const IN_FLIGHT: usize = 16;
/// Of a run whose file is not known, the newest versions that must have their blobs: every retention keeps them.
const SURE: Retention = Retention { newest: 2, every: 0, checkpoint_every: 1 };

/// A number of objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    fn count(&mut self, bytes: u64) {
        (self.objects, self.bytes) = (self.objects + 1, self.bytes + bytes);
    }
}

/// What an object is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// A snapshot that the key names.
    Snapshot,
    /// A manifest of a version.
    Version,
    /// The batch that a version was trained on.
    Batch,
    /// A file of a version.
    Weights,
    /// A manifest of a segment of the log.
    Segment,
    /// What log, segments and dead letters name: payloads, rows, parts of segments.
    Payload,
    /// What the store tells its time by.
    Clock,
}

impl Use {
    /// For people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshots",
            Self::Version => "versions",
            Self::Batch => "batches",
            Self::Weights => "weights",
            Self::Segment => "segments",
            Self::Payload => "payloads",
            Self::Clock => "clock",
        }
    }
}

/// What was found in the object store.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// What something leads to.
    pub kept: BTreeMap<Use, Tally>,
    /// What nothing leads to, and is younger than the age.
    pub young: Tally,
    /// What nothing leads to, and goes.
    pub loose: Vec<Listed>,
    /// What is spelt as nothing of ours is, and is never touched.
    pub foreign: Tally,
    /// What something leads to and is not there, or is not what it should be.
    pub wrong: Vec<String>,
    /// Blobs that something leads to and that are there.
    pub blobs: BTreeSet<(RunId, BlobRef)>,
}

/// What leads to an object.
struct Lead {
    of: Use,
    /// The run and the blob, where it is one.
    blob: Option<(RunId, BlobRef)>,
    /// Who misses it; `None` where it may have been given up.
    missed_by: Option<String>,
}

type Leads = BTreeMap<String, Lead>;

/// How long runs keep the files of their versions.
#[must_use]
pub fn retentions(state: &State) -> BTreeMap<RunId, Retention> {
    state.runs.iter().map(|(id, run)| (id.clone(), run.spec.weights)).collect()
}

/// Looks at every object, and again where something seems wrong: what a run gives up meanwhile is missed once only. What
/// nothing leads to and was not written for as long as `age`, by the store's clock, goes with the next [`collect`].
///
/// # Errors
/// The queue or the object store fails, or a segment cannot be read: what it leads to is not known.
pub async fn survey(
    broker: &Broker,
    retentions: &BTreeMap<RunId, Retention>,
    age: Duration,
) -> Result<Survey, BrokerError> {
    let first = look(broker, retentions, age).await?;
    if first.wrong.is_empty() {
        return Ok(first);
    }
    let mut second = look(broker, retentions, age).await?;
    second.wrong.retain(|wrong| first.wrong.contains(wrong));
    Ok(second)
}

async fn look(
    broker: &Broker,
    retentions: &BTreeMap<RunId, Retention>,
    age: Duration,
) -> Result<Survey, BrokerError> {
    let objects = broker.objects();
    let now_ms = objects.now_ms().await?;
    let listed = objects.list_aged("").await?;
    let mut survey = Survey::default();
    let mut leads = Leads::new();
    for snapshot in journal::snapshots(broker).await? {
        let missed_by = Some("the key of the snapshots".to_owned());
        leads.insert(snapshot.path, Lead { of: Use::Snapshot, blob: None, missed_by });
    }
    versions(broker, &listed, retentions, &mut leads, &mut survey.wrong).await?;
    for claim in broker.claimed().await? {
        let path = paths::blob(&claim.run, &claim.blob.sha256);
        let missed_by = Some("the log, a segment of it or a dead letter".to_owned());
        leads.insert(path, Lead { of: Use::Payload, blob: Some((claim.run, claim.blob)), missed_by });
    }
    let old_ms = now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    for object in listed {
        survey.sort(object, &mut leads, old_ms);
    }
    survey.confirm_missing(broker, leads).await?;
    Ok(survey)
}

impl Survey {
    /// Puts a listed object where it belongs, and takes what leads to it out of `leads`.
    fn sort(&mut self, object: Listed, leads: &mut Leads, old_ms: u64) {
        let lead = leads.remove(&object.path);
        let of = match (&lead, paths::parse(&object.path)) {
            (Some(lead), _) => Some(lead.of),
            (None, Some(Place::Manifest(..))) => Some(Use::Version),
            (None, Some(Place::Segment { .. })) => Some(Use::Segment),
            (None, Some(Place::Clock)) => Some(Use::Clock),
            (None, Some(Place::Blob(..) | Place::Snapshot(_))) => None,
            (None, None) => return self.foreign.count(object.bytes),
        };
        let blob = lead.and_then(|lead| lead.blob);
        if let Some((run, blob)) = blob {
            if blob.bytes != object.bytes {
                let (path, found, said) = (&object.path, object.bytes, blob.bytes);
                self.wrong.push(format!("path={path} has bytes={found}, and should have {said}"));
            }
            self.blobs.insert((run, blob));
        }
        match of {
            Some(of) => self.kept.entry(of).or_default().count(object.bytes),
            // Nothing is ever removed that was written after the store was looked at.
            None if object.modified_ms < old_ms => self.loose.push(object),
            None => self.young.count(object.bytes),
        }
    }

    /// What was not listed may have been written since.
    async fn confirm_missing(&mut self, broker: &Broker, leads: Leads) -> Result<(), BrokerError> {
        let missing = leads.into_iter().filter_map(|(path, lead)| Some((path, lead.blob, lead.missed_by?)));
        let looks = futures::stream::iter(missing).map(async |(path, blob, by)| {
            let there = match &blob {
                Some((run, blob)) => broker.objects().has_blob(run, blob).await?,
                None => broker.objects().get(&path).await?.is_some(),
            };
            Ok::<_, ObjectError>((!there).then(|| format!("path={path} is not there; it is missed by {by}")))
        });
        let found: Vec<Option<String>> = looks.buffered(IN_FLIGHT).try_collect().await?;
        self.wrong.extend(found.into_iter().flatten());
        Ok(())
    }
}

/// What the committed versions lead to.
async fn versions(
    broker: &Broker,
    listed: &[Listed],
    retentions: &BTreeMap<RunId, Retention>,
    leads: &mut Leads,
    wrong: &mut Vec<String>,
) -> Result<(), BrokerError> {
    let mut runs: BTreeMap<RunId, BTreeSet<PolicyVersion>> = BTreeMap::new();
    for object in listed {
        if let Some(Place::Manifest(run, version)) = paths::parse(&object.path) {
            runs.entry(run).or_default().insert(version);
        }
    }
    for (run, versions) in runs {
        let newest = versions.last().copied().unwrap_or_default();
        let reads = futures::stream::iter(versions).map(async |version| {
            let path = paths::manifest(&run, version);
            Ok::<_, ObjectError>((version, broker.objects().get(&path).await?))
        });
        let mut reads = reads.buffered(IN_FLIGHT);
        while let Some((version, content)) = reads.try_next().await? {
            let manifest = content.map(|content| serde_json::from_slice::<Manifest>(&content));
            let Some(Ok(manifest)) = manifest else {
                wrong.push(format!("the manifest of {version} of run={run} is gone or damaged"));
                continue;
            };
            let by = format!("{version} of run={run}");
            let lead = |of, blob, missed_by| Lead { of, blob: Some((run.clone(), blob)), missed_by };
            if let Some(blob) = manifest.batch {
                leads.insert(paths::blob(&run, &blob.sha256), lead(Use::Batch, blob, Some(by.clone())));
            }
            let known = retentions.get(&run);
            let sure = known.unwrap_or(&SURE).keeps(version, newest);
            if known.is_some() && !sure {
                continue;
            }
            for file in &manifest.files {
                let found = leads
                    .entry(paths::blob(&run, &file.blob.sha256))
                    .or_insert_with(|| lead(Use::Weights, file.blob, None));
                found.missed_by = found.missed_by.take().or_else(|| sure.then(|| by.clone()));
            }
        }
    }
    Ok(())
}

/// Removes what goes, the oldest first and not more than a collection may; says what went. What was written again since
/// it was listed stays. Asks `may_act` again and again.
///
/// # Errors
/// The object store fails, or forbids it.
pub async fn collect(
    broker: &Broker,
    survey: &Survey,
    may_act: impl Fn() -> bool,
) -> Result<Tally, ObjectError> {
    let mut loose = survey.loose.clone();
    loose.sort_by_key(|object| object.modified_ms);
    loose.truncate(MAX_COLLECTED);
    let deletes = futures::stream::iter(loose)
        .map(async |object: Listed| {
            let went = may_act() && broker.objects().delete_unchanged(&object).await?;
            Ok::<_, ObjectError>((object.bytes, went))
        })
        .buffer_unordered(IN_FLIGHT);
    let mut gone = Tally::default();
    let mut deletes = std::pin::pin!(deletes);
    while let Some((bytes, went)) = deletes.try_next().await? {
        if went {
            gone.count(bytes);
        }
    }
    Ok(gone)
}

/// Reads every blob that something leads to, and says which are not what their hash says. One that has gone since was given
/// up; were it missed, the next look would find that.
///
/// # Errors
/// The object store fails.
pub async fn damaged(broker: &Broker, survey: &Survey) -> Result<Vec<String>, ObjectError> {
    let reads = futures::stream::iter(survey.blobs.clone()).map(async |(run, blob): (RunId, BlobRef)| {
        match broker.objects().get_blob(&run, &blob).await {
            Ok(_) | Err(ObjectError::NotFound { .. }) => Ok(None),
            Err(error @ ObjectError::Corrupt { .. }) => Ok(Some(error.to_string())),
            Err(error) => Err(error),
        }
    });
    let found: Vec<Option<String>> = reads.buffer_unordered(IN_FLIGHT).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}
