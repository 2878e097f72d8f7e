//! The keys of those that train together: signs of life, and what the members of a gang find one another by.

use millrace_schemas::WorkerId;
use millrace_schemas::member::Heartbeat;
use millrace_schemas::subjects::{GANG_BUCKET, WORKERS_BUCKET, gang_key};

use super::watched::Watched;
use super::{Broker, BrokerError};
use crate::port::Expect;

/// Watches the signs of life of all workers that train. What stands may be of one that is long gone.
pub type SignsOfLife = Watched<WorkerId, Heartbeat>;

impl Broker {
    /// Gives a sign of life of a worker that trains.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn sign_of_life(&self, worker: &WorkerId, sign: &Heartbeat) -> Result<(), BrokerError> {
        let value = serde_json::to_vec(sign).expect("a sign of life holds only what JSON can express");
        self.queue.set(WORKERS_BUCKET, worker.as_str(), value.into(), Expect::Any).await?;
        Ok(())
    }

    /// Watches the signs of life of all workers that train.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn watch_signs_of_life(&self) -> Result<SignsOfLife, BrokerError> {
        Ok(Watched::new(self.queue.watch(WORKERS_BUCKET).await?))
    }

    /// Leaves `value` for the other members of a gang under `key`, over what is there.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn leave_for_gang(&self, key: &str, value: &[u8]) -> Result<(), BrokerError> {
        let value = bytes::Bytes::copy_from_slice(value);
        self.queue.set(GANG_BUCKET, &gang_key(key), value, Expect::Any).await?;
        Ok(())
    }

    /// What a member of a gang left under `key`, if it is there yet.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn left_for_gang(&self, key: &str) -> Result<Option<bytes::Bytes>, BrokerError> {
        let found = self.queue.get(GANG_BUCKET, &gang_key(key)).await?.map(|found| found.value);
        // A copy that the server made is no member's word.
        Ok(found.filter(|value| !value.is_empty()))
    }
}
