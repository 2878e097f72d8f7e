//! Paths in the object store. All are built and parsed here.

use super::{PolicyVersion, RunId, Sha};
use crate::image::ImageName;

/// The folder of everything that belongs to a run.
#[must_use]
pub fn run(run: &RunId) -> String {
    format!("runs/{run}")
}

/// A blob of a run, named by its hash: weights, optimiser state, batches, large payloads, entries
/// of the log.
#[must_use]
pub fn blob(run: &RunId, sha256: &Sha) -> String {
    format!("runs/{run}/blobs/{sha256}")
}

/// The manifest of a version; created once and never changed. Its existence is the commit.
#[must_use]
pub fn manifest(run: &RunId, version: PolicyVersion) -> String {
    format!("runs/{run}/weights/v{:06}/manifest.json", version.0)
}

/// The folder of all versions of a run.
#[must_use]
pub fn weights(run: &RunId) -> String {
    format!("runs/{run}/weights")
}

/// The segments of a log, in the order of their positions.
#[must_use]
pub fn segments(log: u64) -> String {
    format!("{LOG}/{log:016x}")
}

/// The manifest of the segment whose first entry is at `first`; created once and never changed. `branch`: how often the
/// log has been restored to before what it had trimmed.
#[must_use]
pub fn segment(log: u64, branch: u32, first: u64) -> String {
    match branch {
        0 => format!("{LOG}/{log:016x}/{first:020}.json"),
        _ => format!("{LOG}/{log:016x}/{first:020}.{branch}.json"),
    }
}

/// A layer of images, named by its hash.
#[must_use]
pub fn layer(sha256: &Sha) -> String {
    format!("{IMAGES}/layers/{sha256}")
}

/// The manifest of an image, named by its hash.
#[must_use]
pub fn image_manifest(sha256: &Sha) -> String {
    format!("{IMAGES}/manifests/{sha256}.json")
}

/// What the name of an image points to.
#[must_use]
pub fn image_name(image: &ImageName) -> String {
    format!("{IMAGE_NAMES}/{}/{}.json", image.name, image.tag)
}

/// A path without an object. Reading it shows whether the store responds.
#[must_use]
pub fn probe() -> String {
    "probe".to_owned()
}

/// A snapshot of the coordinator's state after the event at `seq` of the log.
#[must_use]
pub fn snapshot(seq: u64, sha256: &Sha) -> String {
    format!("snapshots/{seq:020}-{}.msgpack", sha256.short())
}

/// A blob that `millrace bucket check` writes, reads and removes. No run has this name.
#[must_use]
pub fn check_blob(id: &str) -> String {
    format!("runs/.check/blobs/{id}")
}

/// A snapshot that `millrace bucket check` writes, reads and removes. No coordinator reads this name.
#[must_use]
pub fn check_snapshot(id: &str) -> String {
    format!("snapshots/.check-{id}")
}

/// A layer that `millrace bucket check` writes, reads and removes. No image has this name.
#[must_use]
pub fn check_layer(id: &str) -> String {
    format!("{IMAGES}/layers/.check-{id}")
}

/// A commit of a version that `millrace bucket check` creates. Its name is always the same, because no
/// role may remove a commit.
pub const CHECK_COMMIT: &str = "runs/.check/weights/commit";
/// The same of a segment of the log.
pub const CHECK_SEGMENT: &str = "log/.check";
/// Folders whose objects the log, a manifest or a coordinator refers to.
pub const REFERRED: [&str; 4] = ["runs/", "log/", "snapshots/", "images/"];
/// The folder of the images of sandboxes.
pub const IMAGES: &str = "images";
/// The folder of their names.
pub const IMAGE_NAMES: &str = "images/names";
/// The folder of all logs' segments.
pub const LOG: &str = "log";
/// An object that is written to read the store's clock.
pub const CLOCK: &str = "collect/clock";

/// The kind of an object, from its path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// A blob of a run.
    Blob(RunId, Sha),
    /// The manifest of a version.
    Manifest(RunId, PolicyVersion),
    /// The manifest of a segment of the log.
    Segment {
        /// The id of the log.
        log: u64,
        /// How often the log had been restored to before what it had trimmed.
        branch: u32,
        /// Position of its first entry.
        first: u64,
    },
    /// A snapshot after this position of the log.
    Snapshot(u64),
    /// The object by which the store's clock is read.
    Clock,
    /// A layer of images.
    Layer(Sha),
    /// The manifest of an image.
    ImageManifest(Sha),
    /// What the name of an image points to.
    ImageName(ImageName),
}

/// Parses a path; `None` if it is not one of these.
#[must_use]
pub fn parse(path: &str) -> Option<ObjectKind> {
    let parts: Vec<&str> = path.split('/').collect();
    let place = match parts.as_slice() {
        ["runs", run, "blobs", sha256] => ObjectKind::Blob(run.parse().ok()?, sha256.parse().ok()?),
        ["runs", run, "weights", version, "manifest.json"] => {
            ObjectKind::Manifest(run.parse().ok()?, PolicyVersion(version.strip_prefix('v')?.parse().ok()?))
        }
        ["log", log, name] => {
            let name = name.strip_suffix(".json")?;
            let (first, branch) = name.split_once('.').unwrap_or((name, "0"));
            let log = u64::from_str_radix(log, 16).ok()?;
            ObjectKind::Segment { log, branch: branch.parse().ok()?, first: first.parse().ok()? }
        }
        ["collect", "clock"] => ObjectKind::Clock,
        ["images", "layers", sha256] => ObjectKind::Layer(sha256.parse().ok()?),
        ["images", "manifests", name] => ObjectKind::ImageManifest(name.strip_suffix(".json")?.parse().ok()?),
        ["images", "names", name, tag] => {
            ObjectKind::ImageName(format!("{name}:{}", tag.strip_suffix(".json")?).parse().ok()?)
        }
        ["snapshots", name] => {
            let (seq, rest) = name.split_once('-')?;
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            rest.ends_with(".msgpack").then_some(())?;
            rest.chars().all(plain).then_some(ObjectKind::Snapshot(seq.parse().ok()?))?
        }
        _ => return None,
    };
    // Only one spelling is valid: `v1` and `v+1` would be other paths for the same object.
    let spelt = match &place {
        ObjectKind::Blob(run, sha256) => blob(run, sha256),
        ObjectKind::Manifest(run, version) => manifest(run, *version),
        ObjectKind::Segment { log, branch, first } => segment(*log, *branch, *first),
        ObjectKind::Clock => CLOCK.to_owned(),
        ObjectKind::Layer(sha256) => layer(sha256),
        ObjectKind::ImageManifest(sha256) => image_manifest(sha256),
        ObjectKind::ImageName(image) => image_name(image),
        ObjectKind::Snapshot(seq) => {
            return path.starts_with(&format!("snapshots/{seq:020}-")).then_some(place);
        }
    };
    (spelt == path).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_read_and_nothing_else() {
        let (name, sha256): (RunId, _) = ("lake".parse().expect("a name"), Sha::of(b"x"));
        let image: ImageName = "python:3.11".parse().expect("a name");
        for (path, place) in [
            (blob(&name, &sha256), ObjectKind::Blob(name.clone(), sha256)),
            (manifest(&name, PolicyVersion(7)), ObjectKind::Manifest(name.clone(), PolicyVersion(7))),
            (segment(0xab, 0, 12), ObjectKind::Segment { log: 0xab, branch: 0, first: 12 }),
            (segment(0xab, 3, 12), ObjectKind::Segment { log: 0xab, branch: 3, first: 12 }),
            (snapshot(50_000, &sha256), ObjectKind::Snapshot(50_000)),
            (layer(&sha256), ObjectKind::Layer(sha256)),
            (image_manifest(&sha256), ObjectKind::ImageManifest(sha256)),
            (image_name(&image), ObjectKind::ImageName(image.clone())),
        ] {
            assert_eq!(parse(&path), Some(place), "{path}");
        }
        let sha256 = sha256.to_string();
        for path in [
            "../x",
            "runs/lake",
            "runs/lake/blobs/short",
            &format!("runs/../blobs/{sha256}"),
            &format!("runs/lake/blobs/{}", sha256.to_uppercase()),
            &format!("runs/lake/blobs/{sha256}/x"),
            "runs/lake/weights/v7/manifest.json",
            "runs/lake/weights/v+00007/manifest.json",
            "log/ab/1.json",
            "log/00000000000000ab/+0000000000000000012.json",
            "log/00000000000000ab/00000000000000000012.0.json",
            "log/00000000000000ab/00000000000000000012.+1.json",
            "snapshots/1-x.msgpack",
            "snapshots/00000000000000000001-../x.msgpack",
            "elsewhere/x",
            "images/names/a.json",
            "images/names/a/../x.json",
            "images/layers/short",
            &check_blob(&sha256),
            &check_snapshot(&sha256),
            &check_layer(&sha256),
            CHECK_COMMIT,
            CHECK_SEGMENT,
            "",
        ] {
            assert_eq!(parse(path), None, "{path}");
        }
    }
}
