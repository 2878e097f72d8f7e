//! The object store as one process sees it: the real one in memory, behind a link on which things happen.

use std::time::Duration;

use async_trait::async_trait;
use millrace_queue::testing::gate::{Action, Fate, Gate};
use tokio::time::sleep;

use super::link::Link;
use super::scenario::FaultKind;

/// Where snapshots are.
const SNAPSHOTS: &str = "snapshots/";
/// Between two looks whether a store that hangs answers again.
const LOOK: Duration = Duration::from_millis(200);

/// The run that an object belongs to.
fn run_of(path: &str) -> &str {
    path.strip_prefix("runs/").and_then(|rest| rest.split('/').next()).unwrap_or_default()
}

#[async_trait]
impl Gate for Link {
    async fn request(&self, action: Action, path: &str) -> Fate {
        let world = &self.world;
        self.awake().await;
        sleep(world.time(0, 5)).await;
        while world.befalls(FaultKind::StoreHung, run_of(path)) {
            sleep(LOOK).await;
        }
        if self.is_cut() || world.strikes(FaultKind::StoreFails) {
            sleep(world.time(1, 2_000)).await;
            self.awake().await;
            return Fate::Fail;
        }
        if world.befalls(FaultKind::StoreForbidden, run_of(path)) {
            return Fate::Refuse;
        }
        match action {
            Action::Read if world.strikes(FaultKind::StoreAbsent) => return Fate::Absent,
            Action::Read if world.strikes(FaultKind::StoreCorrupt) => return Fate::Corrupt,
            Action::Write if path.starts_with(SNAPSHOTS) => {
                if world.has(FaultKind::SnapshotFails) {
                    return Fate::Fail;
                }
                if world.has(FaultKind::SnapshotSlow) {
                    sleep(world.time(0, 1_500)).await;
                }
            }
            Action::Read | Action::Write | Action::Delete => {}
        }
        if world.strikes(FaultKind::StoreTorn) { Fate::Tear } else { Fate::Pass }
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
