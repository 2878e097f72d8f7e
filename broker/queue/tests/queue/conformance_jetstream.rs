//! The conformance suite on a real nats-server, one for each case.

use millrace_queue::conformance::Fixture;
use millrace_queue::testing::TestServer;
use millrace_queue::{JetStreamOptions, QueueSettings};

async fn jetstream(settings: QueueSettings) -> Fixture {
    let server = TestServer::start().await;
    let queue = server.connect(JetStreamOptions { settings, ..JetStreamOptions::default() }).await;
    Fixture::new(queue, Box::new(server))
}

millrace_queue::conformance_tests!(jetstream);
