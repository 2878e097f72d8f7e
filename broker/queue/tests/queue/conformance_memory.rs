//! The conformance suite on the queue in memory.

use std::sync::Arc;

use millrace_queue::clock::SystemClock;
use millrace_queue::conformance::Fixture;
use millrace_queue::{MemoryQueue, QueueSettings};

async fn memory(settings: QueueSettings) -> Fixture {
    let queue = MemoryQueue::with_settings(Arc::new(SystemClock::new()), settings);
    Fixture::new(Arc::new(queue), Box::new(()))
}

millrace_queue::conformance_tests!(memory);
