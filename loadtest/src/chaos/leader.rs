//! Which server of a cluster leads the log.

use std::sync::Arc;
use std::time::Duration;

use millrace_queue::JetStream;

/// Time for an answer; while a new leader is chosen there is none.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks which coordinator leads.
#[derive(Clone)]
pub struct Leader {
    queue: Arc<JetStream>,
}

impl Leader {
    /// Asks over `queue`.
    #[must_use]
    pub const fn new(queue: Arc<JetStream>) -> Self {
        Self { queue }
    }

    /// The name of the server that leads the log; `None` where there is no cluster, or no answer.
    pub async fn of_the_log(&self) -> Option<String> {
        let asking = async {
            loop {
                match self.queue.log_leader().await {
                    Ok(Some(name)) => return name,
                    Ok(None) | Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.ok()
    }
}
