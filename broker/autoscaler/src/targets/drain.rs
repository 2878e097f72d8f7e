//! A pool whose workers another process starts: `millrace up`, or KEDA. It reads the decision by
//! itself; here the workers that leave are asked to drain, and those that stand by are recalled.

use async_trait::async_trait;
use millrace_queue::Broker;
use millrace_schemas::drain::DrainRequest;
use millrace_schemas::subjects;

use super::{Order, Target, TargetError};

pub(super) struct Drain {
    broker: Broker,
}

impl Drain {
    pub(super) const fn new(broker: Broker) -> Self {
        Self { broker }
    }
}

#[async_trait]
impl Target for Drain {
    /// The requests may be lost. They are sent again while the workers do not leave.
    async fn follow(&self, _desired: u32, order: &Order) -> Result<(), TargetError> {
        for worker in &order.leave {
            self.broker.notice(subjects::drain(worker), &DrainRequest::default()).await;
        }
        for worker in &order.recall {
            tracing::info!(%worker, "recalled, for its pool has too few workers");
            let recall = DrainRequest { recalled: true, ..DrainRequest::default() };
            self.broker.notice(subjects::drain(worker), &recall).await;
        }
        Ok(())
    }
}
