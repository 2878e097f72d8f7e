//! The keys of a gang: heartbeats of its workers, and the rendezvous of its ranks.

use millrace_schemas::WorkerId;
use millrace_schemas::member::Heartbeat;
use millrace_schemas::subjects::{GANG_BUCKET, WORKERS_BUCKET, gang_key};

use super::watched::Watched;
use super::{Broker, BrokerError};
use crate::port::Expect;

/// Watches the heartbeats of all workers that train. A stored heartbeat may be of a worker that is
/// long gone.
pub type SignsOfLife = Watched<WorkerId, Heartbeat>;

impl Broker {
    /// Writes a heartbeat of a worker that trains.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn sign_of_life(&self, worker: &WorkerId, sign: &Heartbeat) -> Result<(), BrokerError> {
        let value = serde_json::to_vec(sign).expect("a heartbeat holds only what JSON can express");
        self.queue.set(WORKERS_BUCKET, worker.as_str(), value.into(), Expect::Any).await?;
        Ok(())
    }

    /// Watches the heartbeats of all workers that train.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn watch_signs_of_life(&self) -> Result<SignsOfLife, BrokerError> {
        Ok(Watched::new(self.queue.watch(WORKERS_BUCKET).await?))
    }

    /// Writes `value` under `key` for the other members of a gang, replacing any earlier value.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn leave_for_gang(&self, key: &str, value: &[u8]) -> Result<(), BrokerError> {
        let value = bytes::Bytes::copy_from_slice(value);
        self.queue.set(GANG_BUCKET, &gang_key(key), value, Expect::Any).await?;
        Ok(())
    }

    /// The value that a member of a gang wrote under `key`, if it exists yet.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn left_for_gang(&self, key: &str) -> Result<Option<bytes::Bytes>, BrokerError> {
        let found = self.queue.get(GANG_BUCKET, &gang_key(key)).await?.map(|found| found.value);
        // A copy that the server made is no member's word.
        Ok(found.filter(|value| !value.is_empty()))
    }
}
