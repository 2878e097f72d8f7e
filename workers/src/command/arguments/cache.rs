//! The options of the folder that the workers of a machine share.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;

use crate::model::folder::Folder;

/// Bytes in a GiB.
const GIB: f64 = (1_u64 << 30) as f64;

/// Where weights are kept on this machine.
#[derive(Debug, Clone, Args)]
pub struct CacheArgs {
    /// Folder in which the workers of this machine share weights: each version is fetched once. Worth it
    /// where the object store is not on this machine. Its content may be removed at any time
    #[arg(long, env = "MILLRACE_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
    /// GiB of weights in that folder at most; those not used for longest go first
    #[arg(long, env = "MILLRACE_CACHE_GIB", value_name = "GIB", default_value_t = 64.0)]
    cache_gib: f64,
}

impl CacheArgs {
    /// The folder; `None` without one.
    ///
    /// # Errors
    /// It cannot be made or written to, or its size is no number above 0.
    pub(crate) fn folder(self) -> anyhow::Result<Option<Arc<Folder>>> {
        let Some(path) = self.cache else { return Ok(None) };
        anyhow::ensure!(
            self.cache_gib.is_finite() && self.cache_gib > 0.0,
            "--cache-gib value={} is not above 0",
            self.cache_gib
        );
        let folder = Folder::open(path.clone(), (self.cache_gib * GIB) as u64);
        let folder = folder.with_context(|| {
            format!(
                "--cache value={} cannot be used; give a folder that this worker may write",
                path.display()
            )
        });
        Ok(Some(Arc::new(folder?)))
    }
}
