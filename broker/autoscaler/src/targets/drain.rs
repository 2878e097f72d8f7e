//! A pool whose workers another process starts: `millrace up`, or KEDA. It reads the decision by
//! itself; here the workers that leave are asked to drain.

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
        Ok(())
    }
}
