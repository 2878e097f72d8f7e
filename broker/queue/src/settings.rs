//! What a queue may be told to do otherwise. The defaults are the limits of the schemas crate.

use std::time::Duration;

use millrace_schemas::limits;

/// How leases and ids behave. One value for all pools.
#[derive(Debug, Clone)]
pub struct QueueSettings {
    /// Silence of a worker after which its task is given to another.
    pub ack_wait: Duration,
    /// Deliveries of one task before it is exhausted. 1 or more.
    pub max_deliver: i64,
    /// Time in which the log refuses an entry with the same id.
    pub dedup_window: Duration,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            ack_wait: Duration::from_millis(limits::ACK_WAIT_MS),
            max_deliver: limits::MAX_DELIVER,
            dedup_window: Duration::from_millis(limits::DEDUP_WINDOW_MS),
        }
    }
}
