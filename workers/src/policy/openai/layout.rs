//! Versions as folders for a server. A folder gets its name when it is complete; older ones are
//! removed.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use millrace_policy::output_layer::{self, OUTPUT_LAYER_FILE};
use millrace_policy::{LoadedVersion, MODEL_FILE, PolicyError, is_for_training};
use millrace_queue::ObjectError;
use millrace_schemas::RunId;
use millrace_schemas::blob::Sha;
use millrace_schemas::file_name::{self, NotAFileName};
use tokio::fs;
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;

use crate::model::versions::VersionStore;

/// Why a version has no folder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayoutError {
    /// A file cannot be fetched.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The manifest names a file that would lie elsewhere.
    #[error(transparent)]
    Name(#[from] NotAFileName),
    /// The weights are no safetensors file.
    #[error(transparent)]
    Weights(#[from] PolicyError),
    /// The folder cannot be written.
    #[error("failed to lay the version out at path={path:?}: {source}")]
    Disk {
        /// The path.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
}

/// The form in which a server reads a tied output layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputLayer {
    /// As the version has it: not at all where it is tied to the embedding.
    AsPublished,
    /// As a tensor of its own besides, see `millrace_policy::output_layer`.
    Separate,
}

/// The folders of one server's versions: `<root>/<run>/v000042/`.
#[derive(Debug)]
pub(crate) struct VersionFolders {
    root: PathBuf,
    /// The folder that this process completed last. Those of other processes are not trusted.
    newest: Mutex<Option<(Sha, PathBuf)>>,
    /// All that this process completed and did not remove.
    complete: Mutex<BTreeSet<PathBuf>>,
}

impl VersionFolders {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), newest: Mutex::default(), complete: Mutex::default() }
    }

    /// Writes the folder of a version and proves each file by its hash. The folder gets its name
    /// once all files are on disk.
    pub(crate) async fn lay_out(
        &self,
        versions: &VersionStore,
        version: &LoadedVersion,
        output_layer: OutputLayer,
    ) -> Result<PathBuf, LayoutError> {
        let mut newest = self.newest.lock().await;
        if let Some((sha, path)) = &*newest
            && *sha == version.sha
            && fs::try_exists(path).await.unwrap_or(false)
        {
            return Ok(path.clone());
        }
        let run = &version.manifest.run;
        let folder = self.root.join(run.as_str());
        let name = format!("v{:06}", version.version.0);
        let (partial, path) = (folder.join(format!(".{name}.partial")), folder.join(&name));
        cleared(&partial).await?;
        fs::create_dir_all(&partial).await.map_err(at(&partial))?;
        write_all(versions, version, output_layer, &partial).await?;
        cleared(&path).await?;
        fs::rename(&partial, &path).await.map_err(at(&path))?;
        let path = fs::canonicalize(&path).await.map_err(at(&path))?;
        self.complete.lock().await.insert(path.clone());
        *newest = Some((version.sha, path.clone()));
        Ok(path)
    }

    /// Removes all folders of the run but this one, and those of other runs that this process completed: nothing reads them
    /// any more. The server has one set of weights.
    pub(crate) async fn remove_others(&self, run: &RunId, keep: &Path) {
        let mut complete = self.complete.lock().await;
        let mut others: Vec<PathBuf> = complete.iter().filter(|path| *path != keep).cloned().collect();
        complete.retain(|path| path == keep);
        if let Ok(mut entries) = fs::read_dir(self.root.join(run.as_str())).await {
            while let Ok(Some(entry)) = entries.next_entry().await {
                others.extend(Some(entry.path()).filter(|path| path.file_name() != keep.file_name()));
            }
        }
        for path in others {
            if let Err(error) = cleared(&path).await {
                tracing::warn!(?path, %error, "an old version's folder stays");
            } else if let Some(of_run) = path.parent() {
                // It stays where it has another version.
                let _ = fs::remove_dir(of_run).await;
            }
        }
    }
}

/// One file after another, so that memory has one at a time.
async fn write_all(
    versions: &VersionStore,
    version: &LoadedVersion,
    output_layer: OutputLayer,
    folder: &Path,
) -> Result<(), LayoutError> {
    for file in &version.manifest.files {
        if is_for_training(&file.name) {
            continue;
        }
        let content = versions.files().fetch(&version.manifest.run, file).await?;
        let path = file_name::file_in(folder, &file.name)?;
        write(&path, &content).await.map_err(at(&path))?;
        if output_layer == OutputLayer::Separate
            && file.name == MODEL_FILE
            && let Some(content) = output_layer::untied(&content)?
        {
            let path = folder.join(OUTPUT_LAYER_FILE);
            write(&path, &content).await.map_err(at(&path))?;
        }
    }
    Ok(())
}

async fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut out = fs::File::create_new(path).await?;
    out.write_all(content).await?;
    out.sync_all().await
}

async fn cleared(path: &Path) -> Result<(), LayoutError> {
    match fs::remove_dir_all(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> LayoutError {
    let path = path.to_owned();
    move |source| LayoutError::Disk { path, source }
}
