//! Requests of the coordinator that this worker leaves, or serves again.

use std::time::Duration;

use millrace_queue::{Broker, QueueError};
use millrace_schemas::drain::DrainRequest;
use millrace_schemas::{WorkerId, subjects};

use super::drain::Departure;

/// Pause before it listens again after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Consumes drain requests for `worker`, produces its departure. Waits for the first. When it cannot
/// listen, it tries again: a role of an older configuration may not, and the worker still serves.
pub(super) async fn follow(broker: Broker, worker: WorkerId, departure: Departure) {
    let mut is_told = false;
    loop {
        match first(&broker, &worker, false).await {
            Ok(DrainRequest { within_ms, .. }) => {
                departure.drain_request(within_ms.map(Duration::from_millis));
                return;
            }
            Err(error) if !is_told => {
                tracing::warn!(%error, "cannot hear drain requests yet");
                is_told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until the coordinator recalls `worker`, which stands by. When it cannot listen, it tries again.
pub(super) async fn recalled(broker: &Broker, worker: &WorkerId) {
    while first(broker, worker, true).await.is_err() {
        tokio::time::sleep(PAUSE).await;
    }
}

/// The first request that is a recall, or is none.
async fn first(broker: &Broker, worker: &WorkerId, recalled: bool) -> Result<DrainRequest, QueueError> {
    let mut requests = broker.queue().listen(&subjects::drain(worker)).await?;
    loop {
        let Some(request) = requests.next().await else {
            return Err(QueueError::Unavailable {
                action: "listen to drain requests",
                reason: "the connection is closed".to_owned(),
            });
        };
        match serde_json::from_slice::<DrainRequest>(&request.payload) {
            Ok(request) if request.recalled == recalled => return Ok(request),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "ignoring a drain request that cannot be read"),
        }
    }
}
