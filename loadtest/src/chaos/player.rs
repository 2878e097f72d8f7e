//! Hands runs in, one after the other, and follows them to their end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use millrace_queue::service::{RequestError, request};
use millrace_queue::{JetStream, JetStreamOptions};
use millrace_schemas::api::{RunReply, RunRequest, Status};
use millrace_schemas::{RunId, RunSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

/// Time for the first connection.
const CONNECT: Duration = Duration::from_secs(60);
/// Timeout of a request; a killed coordinator does not answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Poll interval of a run.
const LOOK: Duration = Duration::from_millis(200);
/// A run that makes no version for so long is stuck.
const STUCK: Duration = Duration::from_secs(180);

/// Plays runs.
#[derive(Clone)]
pub struct Player {
    queue: Arc<JetStream>,
}

impl Player {
    /// Connects to the queue at `url`, as `name`.
    ///
    /// # Errors
    /// It cannot be reached for a minute.
    pub async fn connect(url: &str, name: &str) -> anyhow::Result<Self> {
        let options = JetStreamOptions { connect_timeout: CONNECT, ..JetStreamOptions::default() };
        Ok(Self { queue: JetStream::connect(url, name, options).await? })
    }

    /// The queue.
    #[must_use]
    pub const fn queue(&self) -> &Arc<JetStream> {
        &self.queue
    }

    /// Hands a run in and waits until it is over.
    ///
    /// # Errors
    /// It is refused, or makes no version for three minutes.
    pub async fn play(&self, spec: &RunSpec) -> anyhow::Result<Status> {
        self.submit(spec).await?;
        let asked = RunRequest { run: Some(spec.name.clone()) };
        let (mut progress, mut at) = (Instant::now(), None);
        loop {
            if let Ok(Some(status)) = self.call::<Status>("status", &asked).await {
                if status.state.is_over() {
                    return Ok(status);
                }
                let now =
                    Some((status.state, status.version, status.evaluations.len(), status.counters.turns));
                if at != now {
                    (progress, at) = (Instant::now(), now);
                }
            }
            if progress.elapsed() > STUCK {
                bail!("run {} is stuck: nothing happened for {STUCK:?} at {at:?}", spec.name);
            }
            sleep(LOOK).await;
        }
    }

    /// Submits a run.
    ///
    /// # Errors
    /// It is refused, or no coordinator takes it for three minutes.
    pub async fn submit(&self, spec: &RunSpec) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            match self.call::<RunReply>("submit", spec).await {
                Ok(Some(_)) => return Ok(()),
                // An answer was lost on its way.
                Err(RequestError::Api(e)) if e.code == 409 => return Ok(()),
                Err(RequestError::Api(e)) if e.code < 500 => {
                    bail!("run {} is refused: {}", spec.name, e.message)
                }
                Ok(None) | Err(_) => sleep(LOOK).await,
            }
            if began.elapsed() > STUCK {
                bail!("run {} cannot be submitted: no coordinator accepts it", spec.name);
            }
        }
    }

    /// Asks the coordinator; `None` where its answer is of another shape.
    ///
    /// # Errors
    /// It refuses, or does not answer.
    pub async fn call<A: DeserializeOwned>(
        &self,
        endpoint: &str,
        question: &impl Serialize,
    ) -> Result<Option<A>, RequestError> {
        let payload = serde_json::to_vec(question).expect("a request holds only what JSON can express");
        let answer = request(&self.queue, endpoint, payload.into(), ANSWER).await?;
        Ok(serde_json::from_slice(&answer).ok())
    }
}

/// The run of `seed`, after the run file `base`.
///
/// # Errors
/// The name becomes too long.
pub fn spec(base: &RunSpec, seed: u64) -> anyhow::Result<RunSpec> {
    let name: RunId = format!("{}-{seed}", base.name).parse().context("the run's name is too long")?;
    Ok(RunSpec { name, seed, ..base.clone() })
}
