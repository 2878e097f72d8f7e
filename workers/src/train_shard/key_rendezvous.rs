//! A rendezvous over the queue's key-value buckets: members need no address but the queue's.

use std::fmt;

use millrace_policy::gang::{GangError, Rendezvous};
use millrace_queue::Broker;
use tokio::runtime::Handle;

/// Keys of a formation are never used again, and expire after a day.
#[derive(Clone)]
pub struct KeyRendezvous {
    broker: Broker,
    runtime: Handle,
}

impl KeyRendezvous {
    /// Its calls block and must come from outside of `runtime`'s threads.
    #[must_use]
    pub const fn new(broker: Broker, runtime: Handle) -> Self {
        Self { broker, runtime }
    }
}

impl fmt::Debug for KeyRendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRendezvous").finish_non_exhaustive()
    }
}

impl Rendezvous for KeyRendezvous {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), GangError> {
        let left = self.runtime.block_on(self.broker.leave_for_gang(key, value));
        left.map_err(|error| GangError::Rendezvous(error.to_string()))
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, GangError> {
        let found = self.runtime.block_on(self.broker.left_for_gang(key));
        Ok(found.map_err(|error| GangError::Rendezvous(error.to_string()))?.map(Vec::from))
    }
}
