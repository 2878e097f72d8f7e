//! The text codecs of the runs that this worker serves, read once each.

use std::sync::Arc;

use millrace_policy::text_codec::Codec;
use millrace_schemas::RunId;

use crate::model::once_cache::OnceCache;
use crate::model::versions::{Files, VersionStore};
use crate::runtime::{Failure, PolicyTable, Retry};

/// Codecs by run. Clones share them.
#[derive(Debug, Clone)]
pub struct Codecs {
    policies: PolicyTable,
    versions: VersionStore,
    by_run: OnceCache<RunId, Codec>,
}

impl Codecs {
    /// Codecs of the versions that `policies` name.
    #[must_use]
    pub fn new(policies: PolicyTable, versions: VersionStore) -> Self {
        Self { policies, versions, by_run: OnceCache::default() }
    }

    /// The codec of a run. All versions of a run share it, so it is read from the one that the
    /// policy names.
    ///
    /// # Errors
    /// The run has no version yet, its files cannot be fetched, or they are no tokenizer.
    pub async fn of(&self, run: &RunId) -> Result<Arc<Codec>, Failure> {
        self.by_run.get(run, async || self.read(run).await).await
    }

    async fn read(&self, run: &RunId) -> Result<Codec, Failure> {
        let Some(policy) = self.policies.get(run) else {
            return Err(Failure::Retry(Retry::Moment, format!("run={run} has no version yet")));
        };
        let fetched = self.versions.fetch(run, policy.version, policy.manifest, Files::Text).await;
        let files = fetched?.files;
        // A large vocabulary takes a good part of a second.
        let read = tokio::task::spawn_blocking(move || Codec::read(|name| files.get(name).cloned()));
        match read.await {
            Ok(codec) => codec.map_err(Failure::impossible),
            Err(error) => {
                Err(Failure::Retry(Retry::Moment, format!("reading the tokenizer failed: {error}")))
            }
        }
    }
}
