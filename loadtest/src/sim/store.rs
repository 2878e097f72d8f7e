//! The object store as one process sees it: the real one in memory, behind a link on which things happen.

use async_trait::async_trait;
use millrace_queue::testing::gate::{Fate, Gate};
use tokio::time::sleep;

use super::link::Link;
use super::scenario::FaultKind;

#[async_trait]
impl Gate for Link {
    async fn request(&self) -> Fate {
        self.awake().await;
        sleep(self.world.time(0, 5)).await;
        if self.is_cut() || self.world.strikes(FaultKind::StoreFails) {
            sleep(self.world.time(1, 2_000)).await;
            self.awake().await;
            return Fate::Fail;
        }
        if self.world.strikes(FaultKind::StoreTorn) { Fate::Tear } else { Fate::Pass }
    }

    async fn answer(&self) -> bool {
        self.awake().await;
        let lost = self.world.strikes(FaultKind::StoreAnswerLost);
        if lost {
            sleep(self.world.time(1, 2_000)).await;
        }
        !lost
    }
}
