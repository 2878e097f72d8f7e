//! The hold on a delivered message: words sent to its reply subject.

use std::time::Duration;

use async_nats::{Client, Subject};
use async_trait::async_trait;
use bytes::Bytes;

use crate::port::{Lease, QueueError};

pub(super) struct JetStreamLease {
    pub(super) client: Client,
    pub(super) reply: Subject,
}

impl JetStreamLease {
    /// Sends and does not wait: were the word lost, the task would be delivered again, which is harmless.
    async fn say(&self, action: &'static str, word: Bytes) -> Result<(), QueueError> {
        let unavailable =
            |e: async_nats::PublishError| QueueError::Unavailable { action, reason: e.to_string() };
        self.client.publish(self.reply.clone(), word).await.map_err(unavailable)
    }
}

#[async_trait]
impl Lease for JetStreamLease {
    async fn heartbeat(&self) -> Result<(), QueueError> {
        self.say("keep a task", Bytes::from_static(b"+WPI")).await
    }

    async fn done(&self) -> Result<(), QueueError> {
        self.say("acknowledge a task", Bytes::from_static(b"+ACK")).await
    }

    async fn retry_after(&self, delay: Duration) -> Result<(), QueueError> {
        let word = if delay.is_zero() {
            Bytes::from_static(b"-NAK")
        } else {
            format!("-NAK {{\"delay\": {}}}", delay.as_nanos()).into()
        };
        self.say("give a task back", word).await
    }

    async fn poison(&self, reason: &str) -> Result<(), QueueError> {
        self.say("give a task up", format!("+TERM {reason}").into()).await
    }
}
