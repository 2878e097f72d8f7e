//! Images by name, from the object store that runs use. The program `millrace` brings their layers
//! into a folder of this machine: this service itself knows no store.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_sandbox::live::{Digest, Host, ImageCache, LiveSandbox, Snapshot};
use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use uuid::Uuid;

use crate::keys::Owner;
use crate::loads::{LOAD_WAIT, Loads, Room};
use crate::service::{ServiceError, invalid};

/// For how long what a name points to is taken for known.
const KNOWN: Duration = Duration::from_secs(30);
/// For how long layers may take to arrive, to be packed, or to be stored.
const MOVE: Duration = Duration::from_secs(600);
/// Layers that are packed and stored at once: each has as many bytes in memory as a sandbox may write.
const COMMITS: usize = 2;
/// Characters of a name.
const NAME_CHARS: usize = 201;
/// Bytes of what `millrace` says of a failure that are told.
const TOLD: usize = 1_000;

/// Where images are.
#[derive(Debug, Clone)]
pub struct ImageStore {
    /// The program `millrace`.
    pub program: PathBuf,
    /// The object store, as `--objects` of `millrace` names it.
    pub location: String,
    /// Where layers are unpacked.
    pub cache: ImageCache,
    /// Bytes of unpacked layers that may stay without being used.
    pub cache_bytes: Option<u64>,
    /// With what the names begin that clients may give to images of their own.
    pub commits: Option<String>,
}

/// What a sandbox of an image begins with.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) files: Snapshot,
    pub(crate) env: BTreeMap<String, String>,
    /// Whether the machine's own programs are shown.
    pub(crate) system: bool,
    manifest: String,
}

/// What `millrace env fetch` says.
#[derive(Debug, Deserialize)]
struct Fetched {
    manifest: String,
    layers: Vec<String>,
    env: BTreeMap<String, String>,
    system: bool,
    warm: usize,
}

/// One name. Who asks for it first finds it, and the others wait.
type Place = Arc<tokio::sync::Mutex<Option<(Instant, Arc<Image>)>>>;

/// The images of a store, and those in use.
#[derive(Debug)]
pub(crate) struct Images {
    store: ImageStore,
    known: Mutex<HashMap<String, Place>>,
    loads: Loads,
    commits: Semaphore,
}

/// A request for a name. One that is none is not kept, also where nobody waits for it any more.
struct Asking<'i> {
    images: &'i Images,
    name: &'i str,
    place: Place,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        // Who looks it up right now decides itself.
        if self.place.try_lock().is_ok_and(|known| known.is_none()) {
            let mut all = self.images.known.lock().unwrap_or_else(PoisonError::into_inner);
            if all.get(self.name).is_some_and(|place| Arc::ptr_eq(place, &self.place)) {
                all.remove(self.name);
            }
        }
    }
}

impl Images {
    pub(crate) fn new(store: ImageStore) -> Self {
        let (known, loads, commits) = (Mutex::default(), Loads::default(), Semaphore::new(COMMITS));
        Self { store, known, loads, commits }
    }

    /// The image that a name points to, ready to begin with.
    pub(crate) async fn find(
        &self,
        host: &Host,
        owner: Owner,
        name: &str,
    ) -> Result<Arc<Image>, ServiceError> {
        check_name("image", name)?;
        let place = Arc::clone(
            self.known.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default(),
        );
        let asking = Asking { images: self, name, place };
        let until = tokio::time::Instant::now() + LOAD_WAIT;
        let mut room: Option<Room> = None;
        loop {
            let mut known = asking.place.lock().await;
            if let Some((at, image)) = &*known
                && at.elapsed() < KNOWN
            {
                return Ok(Arc::clone(image));
            }
            room = room.or_else(|| self.loads.room_now(owner));
            if room.is_some() {
                let image = self.load(host, name, known.as_ref().map(|(_, image)| image)).await?;
                *known = Some((Instant::now(), Arc::clone(&image)));
                return Ok(image);
            }
            // Another key may have room for this name meanwhile.
            drop(known);
            room = Some(self.loads.room(owner, name, until).await?);
        }
    }

    async fn load(
        &self,
        host: &Host,
        name: &str,
        before: Option<&Arc<Image>>,
    ) -> Result<Arc<Image>, ServiceError> {
        let fetched = self.fetch(name).await?;
        host.hold(fetched.warm);
        if let Some(image) =
            before.filter(|image| image.manifest == fetched.manifest && image.system == fetched.system)
        {
            return Ok(Arc::clone(image));
        }
        let layers: Vec<Digest> =
            fetched.layers.iter().map(|layer| Digest::parse(layer)).collect::<Result<_, _>>()?;
        let cache = &self.store.cache;
        let files = match host.image(cache, &layers).await {
            // Another process removed a layer after it was found to be there.
            Err(_) if !layers.iter().all(|layer| cache.has(layer)) => {
                self.fetch(name).await?;
                host.image(cache, &layers).await?
            }
            files => files?,
        };
        self.trim();
        let Fetched { manifest, env, system, .. } = fetched;
        tracing::info!(image = name, manifest, layers = layers.len(), "an image is ready");
        Ok(Arc::new(Image { files, env, system, manifest }))
    }

    /// Lets go of images that have to be looked up again anyway, and removes what nobody uses beyond the
    /// bound. No request waits for it.
    fn trim(&self) {
        let Some(most) = self.store.cache_bytes else { return };
        let is_known = |place: &Place| match place.try_lock() {
            Ok(known) => known.as_ref().is_some_and(|(at, _)| at.elapsed() < KNOWN),
            // It is being looked up.
            Err(_) => true,
        };
        self.known.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, place| is_known(place));
        let cache = self.store.cache.clone();
        tokio::task::spawn_blocking(move || match cache.trim(most) {
            Ok(left) if left > most => {
                tracing::warn!(bytes = left, most, "images in use are more than the cache may have")
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "failed to make room in the cache of images"),
        });
    }

    async fn fetch(&self, name: &str) -> Result<Fetched, ServiceError> {
        let cache = self.store.cache.folder().into();
        let said = self.millrace(vec!["fetch".into(), name.into(), cache]).await;
        let fetched = said.and_then(|said| {
            serde_json::from_slice(&said).map_err(|error| format!("millrace says no image: {error}"))
        });
        fetched.map_err(|words| invalid("image", name, words))
    }

    /// Whether clients may give this name to an image.
    pub(crate) fn check_commit(&self, name: &str) -> Result<(), ServiceError> {
        check_name("image_tag", name)?;
        match &self.store.commits {
            Some(prefix) if name.starts_with(prefix.as_str()) => Ok(()),
            Some(prefix) => {
                let remedy = format!("this service lets clients name images that begin with {prefix:?}");
                Err(invalid("image_tag", name, remedy))
            }
            None => {
                let remedy = "this service stores no images of clients; it has no --image-commits";
                Err(invalid("image_tag", name, remedy))
            }
        }
    }

    /// Stores what a sandbox wrote, over the image that it began with, under a name.
    pub(crate) async fn commit(
        &self,
        sandbox: &LiveSandbox,
        base: Option<&Image>,
        name: &str,
    ) -> Result<(), String> {
        let _room = self.commits.acquire().await.map_err(|error| error.to_string())?;
        let all = self.store.cache.folder().join("commits");
        let folder = all.join(Uuid::now_v7().simple().to_string());
        let fail = |error: std::io::Error| format!("failed to write {}: {error}", folder.display());
        remove_leftovers(&all);
        std::fs::create_dir_all(&folder).map_err(fail)?;
        let _used = hold(&folder).map_err(fail)?;
        let stored = self.pack_and_store(sandbox, base, name, &folder).await;
        std::fs::remove_dir_all(&folder).map_err(fail)?;
        // Who asks for the name from now on gets this one.
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        stored
    }

    async fn pack_and_store(
        &self,
        sandbox: &LiveSandbox,
        base: Option<&Image>,
        name: &str,
        folder: &Path,
    ) -> Result<(), String> {
        let late = |_| format!("its files were not packed within {} s; remove some of them", MOVE.as_secs());
        // Dropped, it ends the process that packs, and the sandbox goes on.
        let packed = timeout(MOVE, sandbox.pack(folder)).await.map_err(late)?;
        let digest = packed.map_err(|error| error.to_string())?;
        let on = base.map(|base| ["--on".into(), OsString::from(&base.manifest)]);
        let system = base.is_none_or(|base| base.system).then(|| "--system".into());
        let words = ["commit".into(), digest.path(folder).into(), name.into()].into_iter();
        self.millrace(words.chain(on.into_iter().flatten()).chain(system).collect()).await?;
        tracing::info!(image = name, "a client stored an image");
        Ok(())
    }

    /// Runs `millrace env` with these words on this store; returns what it says.
    async fn millrace(&self, words: Vec<OsString>) -> Result<Vec<u8>, String> {
        let store = &self.store;
        let ran = Command::new(&store.program)
            .arg("env")
            .args(words)
            .args(["--objects", &store.location])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let late = |_| format!("its layers did not arrive within {} s", MOVE.as_secs());
        let output = timeout(MOVE, ran).await.map_err(late)?;
        let output =
            output.map_err(|error| format!("{} does not start: {error}", store.program.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(said.trim().chars().take(TOLD).collect());
        }
        Ok(output.stdout)
    }
}

fn check_name(field: &'static str, name: &str) -> Result<(), ServiceError> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-_:".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= NAME_CHARS && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(invalid(field, name, "write NAME or NAME:TAG of a-z, 0-9, `.`, `-` and `_`"))
}

/// Keeps a folder of a commit from being removed as one that was left, until the file is closed.
fn hold(folder: &Path) -> std::io::Result<File> {
    let held = File::open(folder)?;
    held.lock_shared()?;
    Ok(held)
}

/// Removes what processes left that were killed while they packed: folders without a change for
/// longer than a commit may take, which nobody holds.
fn remove_leftovers(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let changed = entry.metadata().and_then(|found| found.modified());
        let is_old = changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > 2 * MOVE));
        if is_old && File::open(entry.path()).is_ok_and(|left| left.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn the_folder_of_a_commit_that_runs_is_not_taken_for_left_however_old_it_is() {
        let all = tempfile::tempdir().unwrap();
        let [runs, left, begins] = ["runs", "left", "begins"].map(|name| all.path().join(name));
        for folder in [&runs, &left, &begins] {
            std::fs::create_dir(folder).unwrap();
        }
        for folder in [&runs, &left] {
            File::open(folder).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        let held = hold(&runs).unwrap();
        remove_leftovers(all.path());
        assert_eq!([&runs, &left, &begins].map(|folder| folder.exists()), [true, false, true]);
        drop(held);
        remove_leftovers(all.path());
        assert_eq!([&runs, &begins].map(|folder| folder.exists()), [false, true]);
    }
}
