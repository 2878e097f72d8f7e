//! Finds which objects in the object store are referred to, and removes old ones that are not.
//!
//! Roots are the snapshots' key, the manifests of versions (`collect/versions.rs`) and of segments, the
//! log, the dead letters, the steps that are not committed (`collect/known.rs`) and the names of images
//! (`collect/images.rs`). Where a root is unknown or cannot be read, all that it may refer to is kept.
//!
//! The minimal age protects objects that are written before anything refers to them, the files of a
//! step that ends after the state was read, and the payloads of tasks, which are stored again when
//! their task is requeued. All objects are listed before the other roots are read. A reference that is
//! added in between is therefore found at its root, and a blob that is stored again is rewritten, so
//! that it no longer equals its listing.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use millrace_queue::{Broker, BrokerError, Listed, ObjectError, staged_object};
use millrace_schemas::BlobRef;
use millrace_schemas::blob::paths::{self, ObjectKind};
use millrace_schemas::limits::MAX_COLLECTED;

use crate::shell::journal;

pub use known::Known;

mod known;
mod versions;
mod images;

/// Concurrent reads of objects.
const IN_FLIGHT: usize = 16;

/// Number and size of objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectCount {
    /// Number of objects.
    pub objects: u64,
    /// The sum of their sizes, in bytes.
    pub bytes: u64,
}

impl ObjectCount {
    fn count(&mut self, bytes: u64) {
        (self.objects, self.bytes) = (self.objects + 1, self.bytes + bytes);
    }
}

/// Why an object is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectUse {
    /// A snapshot that the snapshots' key refers to.
    Snapshot,
    /// A manifest of a version.
    Version,
    /// The batch that a version was trained on.
    Batch,
    /// A file of a version.
    Weights,
    /// A manifest of a segment of the log.
    Segment,
    /// A batch or a file of a step that is not committed.
    Step,
    /// Referred to by the log, its segments or dead letters: payloads, rows, parts of segments.
    Payload,
    /// The name of an image, or a manifest that one points to.
    Image,
    /// A layer of such an image.
    Layer,
    /// The object by which the store's clock is read.
    Clock,
    /// Perhaps referred to by what this log does not know, or by a manifest that cannot be read.
    Unsure,
}

impl ObjectUse {
    /// For people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshots",
            Self::Version => "versions",
            Self::Batch => "batches",
            Self::Weights => "weights",
            Self::Segment => "segments",
            Self::Step => "steps",
            Self::Payload => "payloads",
            Self::Image => "images",
            Self::Layer => "layers",
            Self::Clock => "clock",
            Self::Unsure => "unsure",
        }
    }
}

/// The content of the object store, by whether it is referred to.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Objects that are referred to.
    pub kept: BTreeMap<ObjectUse, ObjectCount>,
    /// Objects that are not referred to and are younger than the minimal age.
    pub young: ObjectCount,
    /// Objects that are not referred to and will be removed.
    pub unreferenced: Vec<Listed>,
    /// Objects whose names are not of Millrace's form. They are never removed.
    pub foreign: ObjectCount,
    /// Objects that are referred to and are missing or damaged, for people.
    pub wrong: Vec<String>,
    /// Blobs that are referred to and exist, by path.
    pub blobs: BTreeMap<String, BlobRef>,
}

/// A reference to an object.
struct Reference {
    of: ObjectUse,
    /// What it must be, if the object is a blob.
    blob: Option<BlobRef>,
    /// What depends on it; `None` if it may have been removed by retention.
    missed_by: Option<String>,
}

impl Reference {
    /// To an object that something unknown may need.
    const fn unsure() -> Self {
        Self { of: ObjectUse::Unsure, blob: None, missed_by: None }
    }
}

type References = BTreeMap<String, Reference>;

/// Surveys every object. If something seems wrong, it surveys a second time and reports only what
/// is wrong in both: objects may be removed by retention during the first. Objects without a
/// reference that were not written for as long as `age`, by the store's clock, are removed by the
/// next [`collect`].
///
/// # Errors
/// The queue or the object store fails, or a segment cannot be read: its references are then
/// unknown.
pub async fn survey(broker: &Broker, known: &Known, age: Duration) -> Result<Survey, BrokerError> {
    let first = look(broker, known, age).await?;
    if first.wrong.is_empty() {
        return Ok(first);
    }
    let mut second = look(broker, known, age).await?;
    second.wrong.retain(|wrong| first.wrong.contains(wrong));
    Ok(second)
}

async fn look(broker: &Broker, known: &Known, age: Duration) -> Result<Survey, BrokerError> {
    let objects = broker.objects();
    let now_ms = objects.now_ms().await?;
    let listed = objects.list_aged("").await?;
    let mut survey = Survey::default();
    let mut references = References::new();
    snapshots(broker, &listed, &mut references).await?;
    known.refer(&mut references);
    versions::refer(broker, &listed, known, &mut references, &mut survey.wrong).await?;
    for claim in broker.claimed().await? {
        let path = paths::blob(&claim.run, &claim.blob.sha256);
        let missed_by = Some("the log, a segment of it or a dead letter".to_owned());
        references.insert(path, Reference { of: ObjectUse::Payload, blob: Some(claim.blob), missed_by });
    }
    images::refer(broker, &listed, &mut references, &mut survey.wrong).await?;
    let old_ms = now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    for object in listed {
        survey.sort(object, &mut references, old_ms);
    }
    for staged in objects.list_staged().await? {
        survey.sort_staged(staged, old_ms);
    }
    survey.confirm_missing(broker, references).await?;
    Ok(survey)
}

/// Adds the snapshots that the key names. Without one of them the log may have been lost, and then the
/// snapshots are what is left of it; one beyond them may be of another log. These stay.
async fn snapshots(
    broker: &Broker,
    listed: &[Listed],
    references: &mut References,
) -> Result<(), BrokerError> {
    let mut newest = None;
    for snapshot in journal::snapshots(broker).await? {
        if listed.iter().any(|object| object.path == snapshot.path) {
            newest = newest.max(Some(snapshot.seq));
        }
        let missed_by = Some("the key of the snapshots".to_owned());
        references.insert(snapshot.path, Reference { of: ObjectUse::Snapshot, blob: None, missed_by });
    }
    for object in listed {
        if let Some(ObjectKind::Snapshot(seq)) = paths::parse(&object.path)
            && Some(seq) > newest
        {
            references.entry(object.path.clone()).or_insert_with(Reference::unsure);
        }
    }
    Ok(())
}

impl Survey {
    /// Classifies a listed object, and removes its reference from `references`.
    fn sort(&mut self, object: Listed, references: &mut References, old_ms: u64) {
        let reference = references.remove(&object.path);
        let of = match (&reference, paths::parse(&object.path)) {
            (Some(reference), _) => Some(reference.of),
            (None, Some(ObjectKind::Manifest(..))) => Some(ObjectUse::Version),
            (None, Some(ObjectKind::Segment { .. })) => Some(ObjectUse::Segment),
            (None, Some(ObjectKind::Clock)) => Some(ObjectUse::Clock),
            (None, Some(ObjectKind::ImageName(_))) => Some(ObjectUse::Image),
            (
                None,
                Some(
                    ObjectKind::Blob(..)
                    | ObjectKind::Snapshot(_)
                    | ObjectKind::Layer(_)
                    | ObjectKind::ImageManifest(_),
                ),
            ) => None,
            (None, None) => return self.foreign.count(object.bytes),
        };
        let blob = reference.and_then(|reference| reference.blob);
        if let Some(blob) = blob {
            if blob.bytes != object.bytes {
                let (path, found, expected) = (&object.path, object.bytes, blob.bytes);
                self.wrong.push(format!("path={path} has bytes={found}, expected {expected}"));
            }
            self.blobs.insert(object.path.clone(), blob);
        }
        match of {
            Some(of) => self.kept.entry(of).or_default().count(object.bytes),
            None => self.sort_unreferenced(object, old_ms),
        }
    }

    /// Classifies a write of a folder that has not ended.
    fn sort_staged(&mut self, staged: Listed, old_ms: u64) {
        match staged_object(&staged.path).and_then(paths::parse) {
            Some(_) => self.sort_unreferenced(staged, old_ms),
            None => self.foreign.count(staged.bytes),
        }
    }

    fn sort_unreferenced(&mut self, object: Listed, old_ms: u64) {
        // Objects that were written after the listing are never removed.
        if object.modified_ms < old_ms {
            self.unreferenced.push(object);
        } else {
            self.young.count(object.bytes);
        }
    }

    /// Checks references to objects that were not listed: the objects may have been written since.
    async fn confirm_missing(&mut self, broker: &Broker, references: References) -> Result<(), BrokerError> {
        let missing = references
            .into_iter()
            .filter_map(|(path, reference)| Some((path, reference.blob, reference.missed_by?)));
        let looks = futures::stream::iter(missing).map(async |(path, blob, by)| {
            let there = match &blob {
                Some(blob) => broker.objects().has_hashed(&path, blob).await?,
                None => broker.objects().get(&path).await?.is_some(),
            };
            Ok::<_, ObjectError>(
                (!there).then(|| format!("path={path} is missing; it is referred to by {by}")),
            )
        });
        let found: Vec<Option<String>> = looks.buffered(IN_FLIGHT).try_collect().await?;
        self.wrong.extend(found.into_iter().flatten());
        Ok(())
    }
}

/// Removes unreferenced objects, the oldest first and at most [`MAX_COLLECTED`]. Returns what was
/// removed. Objects that were rewritten since the listing stay. `may_act` is checked before each
/// removal.
///
/// # Errors
/// The object store fails, or forbids it.
pub async fn collect(
    broker: &Broker,
    survey: &Survey,
    may_act: impl Fn() -> bool,
) -> Result<ObjectCount, ObjectError> {
    let mut unreferenced = survey.unreferenced.clone();
    unreferenced.sort_by_key(|object| object.modified_ms);
    unreferenced.truncate(MAX_COLLECTED);
    let deletes = futures::stream::iter(unreferenced)
        .map(async |object: Listed| {
            let went = may_act() && broker.objects().delete_unchanged(&object).await?;
            Ok::<_, ObjectError>((object.bytes, went))
        })
        .buffer_unordered(IN_FLIGHT);
    let mut gone = ObjectCount::default();
    let mut deletes = std::pin::pin!(deletes);
    while let Some((bytes, went)) = deletes.try_next().await? {
        if went {
            gone.count(bytes);
        }
    }
    Ok(gone)
}

/// Reads every referenced blob and returns those that differ from their hash. A blob that was
/// removed since the survey is skipped: if it is missing wrongly, the next survey reports it.
///
/// # Errors
/// The object store fails.
pub async fn damaged(broker: &Broker, survey: &Survey) -> Result<Vec<String>, ObjectError> {
    let reads =
        futures::stream::iter(survey.blobs.clone()).map(async |(path, blob): (String, BlobRef)| match broker
            .objects()
            .get_hashed(&path, &blob)
            .await
        {
            Ok(_) | Err(ObjectError::NotFound { .. }) => Ok(None),
            Err(error @ ObjectError::Corrupt { .. }) => Ok(Some(error.to_string())),
            Err(error) => Err(error),
        });
    let found: Vec<Option<String>> = reads.buffer_unordered(IN_FLIGHT).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}
