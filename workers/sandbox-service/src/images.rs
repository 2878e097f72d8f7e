//! Images by name, from the object store that runs use. The program `millrace` brings their layers
//! into a folder of this machine: this service itself knows no store.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_sandbox::live::{Digest, Host, ImageCache, Snapshot};
use serde::Deserialize;
use tokio::process::Command;
use tokio::time::timeout;

use crate::service::{ServiceError, invalid};

/// For how long what a name points to is taken for known.
const KNOWN: Duration = Duration::from_secs(30);
/// For how long layers may take to arrive.
const FETCH: Duration = Duration::from_secs(600);
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
}

impl Images {
    pub(crate) fn new(store: ImageStore) -> Self {
        Self { store, known: Mutex::default() }
    }

    /// The image that a name points to, ready to begin with.
    pub(crate) async fn find(&self, host: &Host, name: &str) -> Result<Arc<Image>, ServiceError> {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-_:".contains(c);
        let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !begins || name.len() > NAME_CHARS || !name.chars().all(is_plain) {
            return Err(invalid("image", name, "write NAME or NAME:TAG of a-z, 0-9, `.`, `-` and `_`"));
        }
        let place = Arc::clone(
            self.known.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default(),
        );
        let mut known = place.lock().await;
        if let Some((at, image)) = &*known
            && at.elapsed() < KNOWN
        {
            return Ok(Arc::clone(image));
        }
        let found = self.load(host, name, known.as_ref().map(|(_, image)| image)).await;
        if found.is_err() && known.is_none() {
            // Names that are none are not kept.
            self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        }
        let image = found?;
        *known = Some((Instant::now(), Arc::clone(&image)));
        Ok(image)
    }

    async fn load(
        &self,
        host: &Host,
        name: &str,
        before: Option<&Arc<Image>>,
    ) -> Result<Arc<Image>, ServiceError> {
        let fetched = self.fetch(name).await.map_err(|words| invalid("image", name, words))?;
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
                self.fetch(name).await.map_err(|words| invalid("image", name, words))?;
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

    async fn fetch(&self, name: &str) -> Result<Fetched, String> {
        let store = &self.store;
        let ran = Command::new(&store.program)
            .args(["env", "fetch", name])
            .arg(store.cache.folder())
            .args(["--objects", &store.location])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let late = |_| format!("its layers did not arrive within {} s", FETCH.as_secs());
        let output = timeout(FETCH, ran).await.map_err(late)?;
        let output =
            output.map_err(|error| format!("{} does not start: {error}", store.program.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(said.trim().chars().take(TOLD).collect());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("millrace says no image: {error}"))
    }
}
