//! Keeps an engine at the version that a run's policy names.

use std::time::Duration;

use millrace_policy::PolicyError;
use millrace_schemas::policy::Policy;
use millrace_schemas::{PolicyVersion, RunId};
use tokio::sync::watch;

use super::Sampler;
use crate::model::versions::{Files, VersionError, VersionStore};
use crate::runtime::PolicyTable;

/// Between a version that could not be loaded and the next try.
const RELOAD: Duration = Duration::from_secs(1);

/// What an engine serves of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Serving {
    /// The version; `None` before the first and after the engine broke.
    pub(super) version: Option<PolicyVersion>,
    /// Why there is no newer version, where to wait here does not help. `None` while the store
    /// cannot be reached, which is waited for.
    pub(super) failure: Option<String>,
    /// The inference server was lost. Its version is loaded again, and tasks wait for that.
    pub(super) away: bool,
    /// Why its tasks wait, in words for people.
    pub(super) waits_for: Option<String>,
}

impl Serving {
    pub(super) const fn version(version: PolicyVersion) -> Self {
        Self { version: Some(version), failure: None, away: false, waits_for: None }
    }

    /// Whether no newer version comes by waiting: it cannot be loaded here, or the server is away.
    pub(super) const fn is_out_of_order(&self) -> bool {
        self.failure.is_some() || self.away
    }

    /// Whether the engine may sample tasks that require at least `version`.
    pub(super) fn covers(&self, version: PolicyVersion) -> bool {
        self.version.is_some_and(|served| served >= version)
    }
}

/// Follows the policy of one run.
pub(super) struct Follower {
    pub(super) run: RunId,
    pub(super) policies: PolicyTable,
    pub(super) versions: VersionStore,
    pub(super) sampler: Sampler,
    pub(super) serving: watch::Sender<Serving>,
}

impl Follower {
    /// Consumes the run's policy, produces engine loads. Waits for a change of a policy, or for the
    /// engine to break. A version that cannot be loaded is retried, and meanwhile the one before
    /// serves. Ends with the run, or when another run has the server.
    pub(super) async fn follow(mut self) {
        loop {
            match self.policies.get(&self.run) {
                Some(policy) if policy.ended => break,
                Some(policy) if self.serving.borrow().version != Some(policy.version) => {
                    match self.load_or_report(&policy).await {
                        Err(LoadError::Taken(_)) => break,
                        Ok(()) | Err(_) => continue,
                    }
                }
                Some(_) | None => {}
            }
            let mut broken = self.serving.subscribe();
            let broken = broken.wait_for(|serving| serving.version.is_none() && serving.is_out_of_order());
            tokio::select! {
                biased;
                more = self.policies.changed() => if !more { break },
                _ = broken => {}
            }
        }
        self.sampler.forget(self.run);
    }

    async fn load_or_report(&self, policy: &Policy) -> Result<(), LoadError> {
        let (run, version) = (&self.run, policy.version);
        self.serving.send_modify(|serving| {
            serving
                .waits_for
                .get_or_insert_with(|| format!("weights of run={run} version={version} are being loaded"));
        });
        let Err(error) = self.load(policy).await else { return Ok(()) };
        tracing::warn!(%run, %version, %error, "weights not loaded");
        let waits_for = format!("weights of run={run} version={version} are not loaded: {error}");
        self.serving.send_modify(|serving| serving.waits_for = Some(waits_for));
        match &error {
            LoadError::Weights(error) if error.is_transient() => {}
            LoadError::Away(_) => {}
            LoadError::Taken(_) => return Err(error),
            LoadError::Weights(_) | LoadError::Engine(_) => {
                self.serving.send_modify(|serving| serving.failure = Some(error.to_string()));
            }
        }
        tokio::time::sleep(RELOAD).await;
        Err(error)
    }

    async fn load(&self, policy: &Policy) -> Result<(), LoadError> {
        let files = match &self.sampler {
            Sampler::Thread(_) => Files::Model,
            // The other files are written to disk, one at a time.
            Sampler::Server(_) => Files::Small,
        };
        let loaded = self.versions.fetch(&self.run, policy.version, policy.manifest, files).await?;
        let serving = self.serving.clone();
        match &self.sampler {
            Sampler::Thread(driver) => driver.load(loaded, serving).await?,
            Sampler::Server(remote) => remote.load(&self.versions, &loaded, serving).await?,
        }
        tracing::debug!(run = %self.run, version = %policy.version, "weights loaded");
        Ok(())
    }
}

/// Why a version is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error(transparent)]
    Weights(#[from] VersionError),
    #[error(transparent)]
    Engine(#[from] PolicyError),
    /// The inference server cannot be reached or has no room. It is waited for.
    #[error("{0}")]
    Away(String),
    /// Another run has the inference server.
    #[error("{0}")]
    Taken(String),
}
