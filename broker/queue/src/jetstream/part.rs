//! One of several partitions from which a process pulls at once.

use async_trait::async_trait;

use super::puller::JetStreamPuller;
use crate::partitions::Part;
use crate::port::{Delivery, QueueError};

#[async_trait]
impl Part for JetStreamPuller {
    async fn take(&mut self, free: usize) -> Result<Vec<Delivery>, QueueError> {
        self.ask_at_once(free).await?;
        while self.inbox.as_ref().is_some_and(|inbox| inbox.asked > 0) {
            let event = self.wait().await;
            self.handle(event)?;
        }
        Ok(self.arrived())
    }

    fn asked(&self) -> usize {
        self.inbox.as_ref().map_or(0, |inbox| inbox.asked) + self.ready.len()
    }

    async fn retract(&mut self) {
        if let Err(error) = self.end().await {
            tracing::debug!(%error, "what was asked for is forgotten");
            self.forget();
        }
    }

    fn arrived(&mut self) -> Vec<Delivery> {
        self.ready.drain(..).collect()
    }
}
