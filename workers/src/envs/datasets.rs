//! The rows of the runs that this worker serves. They are fetched once, by the hash in the run, and
//! read where they lie in memory.

use std::sync::Arc;

use millrace_schemas::RunId;
use millrace_schemas::dataset::{DatasetContent, DatasetSpec, Rows};

use crate::envs::EnvError;
use crate::model::blob_cache::BlobCache;
use crate::model::once_cache::OnceCache;
use crate::model::versions::VersionError;
use crate::runtime::{Failure, Retry};

/// Rows by run and file. Clones share them.
#[derive(Debug, Clone)]
pub struct Datasets {
    blobs: BlobCache,
    rows: OnceCache<(RunId, DatasetSpec), Rows>,
}

impl Datasets {
    /// Rows that `blobs` fetches.
    #[must_use]
    pub fn new(blobs: BlobCache) -> Self {
        Self { blobs, rows: OnceCache::default() }
    }

    /// The rows of a run's dataset.
    ///
    /// # Errors
    /// The store cannot be reached, does not have the rows, or has others than the run was submitted
    /// with.
    pub async fn of(&self, run: &RunId, spec: &DatasetSpec) -> Result<Arc<Rows>, Failure> {
        let key = (run.clone(), spec.clone());
        self.rows.get(&key, async || self.read(run, spec).await).await
    }

    async fn read(&self, run: &RunId, spec: &DatasetSpec) -> Result<Rows, Failure> {
        let Some(content) = spec.content else {
            return Err(EnvError::NoRows(spec.path.clone()).into());
        };
        let fetched = self.blobs.fetch(run, content.blob).await;
        let bytes = fetched.map_err(VersionError::from)?;
        let of = spec.clone();
        // Every row is checked, which takes a second for a million.
        match tokio::task::spawn_blocking(move || Rows::read(bytes, &of)).await {
            Ok(Ok(rows)) if rows.content() == content => Ok(rows),
            Ok(Ok(rows)) => {
                let DatasetContent { train, held_out, .. } = rows.content();
                let reason = format!(
                    "train={train} held_out={held_out}, not train={} held_out={}",
                    content.train, content.held_out
                );
                Err(EnvError::OtherRows { path: spec.path.clone(), reason }.into())
            }
            Ok(Err(error)) => Err(EnvError::from(error).into()),
            Err(error) => Err(Failure::Retry(Retry::Moment, format!("reading the rows failed: {error}"))),
        }
    }
}
