//! The object store as one process sees it: the real one in memory, behind a link on which things happen.

use std::time::Duration;

use async_trait::async_trait;
use millrace_queue::testing::gate::{Action, Fate, Gate};
use millrace_schemas::blob::paths::{self, ObjectKind};
use tokio::time::sleep;

use super::link::Link;
use super::scenario::FaultKind;

/// Poll interval for a hung store to answer again.
const LOOK: Duration = Duration::from_millis(200);

/// The name of the run that an object belongs to; empty where it belongs to none.
fn run_of(place: Option<&ObjectKind>) -> &str {
    match place {
        Some(ObjectKind::Blob(run, _) | ObjectKind::Manifest(run, _)) => run.as_str(),
        Some(ObjectKind::Segment { .. } | ObjectKind::Snapshot(_) | ObjectKind::Clock) | None => "",
        Some(ObjectKind::Layer(_) | ObjectKind::ImageManifest(_) | ObjectKind::ImageName(_)) => "",
    }
}

#[async_trait]
impl Gate for Link {
    async fn request(&self, action: Action, path: &str) -> Fate {
        let (world, place) = (&self.world, paths::parse(path));
        self.awake().await;
        sleep(world.time(0, 5)).await;
        while world.befalls(FaultKind::StoreHung, run_of(place.as_ref())) {
            sleep(LOOK).await;
        }
        if self.is_cut() || world.strikes(FaultKind::StoreFails) {
            sleep(world.time(1, 2_000)).await;
            self.awake().await;
            return Fate::Fail;
        }
        if world.befalls(FaultKind::StoreForbidden, run_of(place.as_ref())) {
            return Fate::Refuse;
        }
        match action {
            Action::Read if world.strikes(FaultKind::StoreAbsent) => return Fate::Absent,
            Action::Read if world.strikes(FaultKind::StoreCorrupt) => return Fate::Corrupt,
            Action::Write if matches!(place, Some(ObjectKind::Snapshot(_))) => {
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
