//! The rows of the runs that this worker serves: fetched once by the hash that the run file names, proved by it, and read
//! where they lie.

use std::sync::Arc;
use std::time::Duration;

use millrace_schemas::RunId;
use millrace_schemas::dataset::{DatasetContent, DatasetSpec, Rows};

use crate::envs::EnvError;
use crate::executor::Verdict;
use crate::held::Held;
use crate::weights::{Weights, WeightsError};

/// For how long a task is given back whose rows could not be read for want of a thread.
const AGAIN: Duration = Duration::from_millis(500);

/// Rows by run and file. Clones share them.
#[derive(Debug, Clone)]
pub struct Datasets {
    weights: Weights,
    held: Held<(RunId, DatasetSpec), Rows>,
}

impl Datasets {
    /// Rows from the object store of `weights`.
    #[must_use]
    pub fn new(weights: Weights) -> Self {
        Self { weights, held: Held::default() }
    }

    /// The rows of a run's dataset.
    ///
    /// # Errors
    /// What becomes of the task that needs them: the store stays away, the rows are not in it, or they are others than
    /// the run was handed in with.
    pub async fn of(&self, run: &RunId, spec: &DatasetSpec) -> Result<Arc<Rows>, Verdict> {
        let key = (run.clone(), spec.clone());
        self.held.get(&key, async || self.read(run, spec).await).await
    }

    async fn read(&self, run: &RunId, spec: &DatasetSpec) -> Result<Rows, Verdict> {
        let Some(content) = spec.content else {
            return Err(EnvError::NoRows(spec.path.clone()).verdict());
        };
        let fetched = self.weights.fetch_blob(run, content.blob).await;
        let bytes = fetched.map_err(|error| WeightsError::from(error).verdict())?;
        let of = spec.clone();
        // Every row is looked at: a second for a million.
        match tokio::task::spawn_blocking(move || Rows::read(bytes, &of)).await {
            Ok(Ok(rows)) if rows.content() == content => Ok(rows),
            Ok(Ok(rows)) => {
                let DatasetContent { train, held_out, .. } = rows.content();
                let reason = format!(
                    "train={train} held_out={held_out}, not train={} held_out={}",
                    content.train, content.held_out
                );
                Err(EnvError::OtherRows { path: spec.path.clone(), reason }.verdict())
            }
            Ok(Err(error)) => Err(EnvError::from(error).verdict()),
            Err(error) => Err(Verdict::RetryAfter(AGAIN, format!("reading the rows failed: {error}"))),
        }
    }
}
