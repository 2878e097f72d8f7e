use std::collections::BTreeMap;

use bytes::Bytes;

use super::*;
use millrace_schemas::train_shard::FileRef;

fn run() -> RunId {
    "lake".parse().unwrap()
}

/// Commits version 3 with two files; gives the hash of its manifest.
async fn commit(objects: &Objects) -> (Manifest, Sha) {
    let mut files = Vec::new();
    for (name, content) in [(CONFIG_FILE, "{\"model_type\": \"x\"}"), ("optimizer.safetensors", "moments")] {
        let blob = objects.put_blob(&run(), Bytes::from(content)).await.unwrap();
        files.push(FileRef::whole(name, blob));
    }
    let manifest = Manifest {
        run: run(),
        version: PolicyVersion(3),
        parent: None,
        batch: None,
        config: Sha::of(b"run file"),
        files,
        metrics: BTreeMap::new(),
    };
    let bytes = manifest.to_json();
    objects.put(&paths::manifest(&run(), PolicyVersion(3)), bytes.clone().into()).await.unwrap();
    (manifest, Sha::of(&bytes))
}

async fn fetch(objects: &Objects, sha: Sha) -> Result<LoadedVersion, VersionError> {
    VersionStore::new(objects.clone()).fetch(&run(), PolicyVersion(3), sha, Files::All).await
}

#[tokio::test]
async fn a_version_comes_with_the_selected_files() {
    let objects = Objects::memory();
    let (manifest, sha) = commit(&objects).await;
    let all = fetch(&objects, sha).await.unwrap();
    assert_eq!((all.manifest.clone(), all.sha, all.version), (manifest, sha, PolicyVersion(3)));
    assert_eq!(all.files.keys().collect::<Vec<_>>(), [CONFIG_FILE, "optimizer.safetensors"]);
    assert_eq!(all.model_type().unwrap(), "x");
    let model = VersionStore::new(objects).fetch(&run(), PolicyVersion(3), sha, Files::Model).await.unwrap();
    assert_eq!(model.files.keys().collect::<Vec<_>>(), [CONFIG_FILE]);
}

#[tokio::test]
async fn another_manifest_is_refused() {
    let objects = Objects::memory();
    let (manifest, sha) = commit(&objects).await;
    let error = fetch(&objects, Sha::of(b"another")).await.unwrap_err();
    assert!(matches!(error, VersionError::OtherManifest { found, .. } if found == sha), "{error}");

    let of_another_version = Manifest { version: PolicyVersion(4), ..manifest }.to_json();
    let at = paths::manifest(&run(), PolicyVersion(3));
    objects.put(&at, of_another_version.clone().into()).await.unwrap();
    let error = fetch(&objects, Sha::of(&of_another_version)).await.unwrap_err();
    assert!(matches!(error, VersionError::Manifest { .. }), "{error}");
}

#[tokio::test]
async fn a_damaged_file_is_refused_and_a_lost_one_is_missed() {
    let objects = Objects::memory();
    let (manifest, sha) = commit(&objects).await;
    let at = paths::blob(&run(), &manifest.files[1].blob.sha256);
    objects.put(&at, "momentS".into()).await.unwrap();
    let error = fetch(&objects, sha).await.unwrap_err();
    assert!(matches!(error, VersionError::Object(ObjectError::Corrupt { .. })), "{error}");
    assert!(matches!(Failure::from(error), Failure::Retry(..)));

    objects.delete(&at).await.unwrap();
    let error = fetch(&objects, sha).await.unwrap_err();
    assert!(matches!(error, VersionError::Object(ObjectError::NotFound { .. })), "{error}");
    assert!(matches!(Failure::from(error), Failure::Retry(..)), "a replica may not know it yet");
}

#[tokio::test]
async fn stored_blobs_are_served_from_the_cache() {
    let objects = Objects::memory();
    let weights = VersionStore::new(objects.clone());
    let (_, sha) = commit(&objects).await;
    weights.fetch(&run(), PolicyVersion(3), sha, Files::All).await.unwrap();
    for path in objects.list(&format!("{}/blobs", paths::run(&run()))).await.unwrap() {
        objects.delete(&path).await.unwrap();
    }
    let again = weights.fetch(&run(), PolicyVersion(3), sha, Files::All).await.unwrap();
    assert_eq!(again.files.len(), 2);
}

/// A file of weights that was cut short, or overwritten in part, is refused wherever the cut is, and
/// served once it is whole.
#[tokio::test]
async fn partial_delta_is_refused() {
    let objects = Objects::memory();
    let weights = VersionStore::new(objects.clone());
    let (manifest, sha) = commit(&objects).await;
    let file = &manifest.files[1];
    let at = paths::blob(&run(), &file.blob.sha256);
    let whole = objects.get(&at).await.unwrap().unwrap();
    for part in 0..whole.len() {
        // Cut short, and overwritten as far as it came.
        let mut mixed = vec![0; whole.len()];
        mixed[..part].copy_from_slice(&whole[..part]);
        for partial in [whole.slice(..part), mixed.into()] {
            objects.put(&at, partial).await.unwrap();
            let fetched = weights.fetch(&run(), PolicyVersion(3), sha, Files::All).await;
            let Err(VersionError::Object(ObjectError::Corrupt { .. })) = fetched else {
                panic!("{part} bytes of {} are served: {fetched:?}", whole.len())
            };
        }
    }
    objects.put(&at, whole.clone()).await.unwrap();
    let all = weights.fetch(&run(), PolicyVersion(3), sha, Files::All).await.unwrap();
    assert_eq!(all.files[&file.name], whole);
}

#[tokio::test]
async fn a_manifest_with_any_byte_changed_is_refused_or_says_another_thing() {
    let (manifest, _) = commit(&Objects::memory()).await;
    let sound = manifest.to_json();
    // The last byte is a line's end, which no reader misses.
    for at in 0..sound.len() - 1 {
        assert!(read_manifest(&run(), PolicyVersion(3), &sound[..at]).is_err(), "cut at {at}");
        for flip in [1, 0x20, 0x80] {
            let mut bytes = sound.clone();
            bytes[at] ^= flip;
            if let Ok(read) = read_manifest(&run(), PolicyVersion(3), &bytes) {
                assert_eq!((&read.run, read.version), (&manifest.run, manifest.version));
            }
        }
    }
}
