//! Processes that are killed or drained, and started again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::sim::fleet::Fleet;

/// Between two looks whether a process has left.
const LOOK: Duration = Duration::from_secs(1);

/// Kills a process; another comes in its place from nothing.
pub(super) fn kill(fleet: &Arc<Fleet>) {
    let at = fleet.any();
    fleet.kill(at);
    revive_later(fleet, at);
}

/// Tells a process to leave in good order.
pub(super) fn drain(fleet: &Arc<Fleet>) {
    let at = fleet.any();
    fleet.stop(at);
    revive_later(fleet, at);
}

/// As a supervisor does, after a while and not before it has ended.
fn revive_later(fleet: &Arc<Fleet>, at: usize) {
    let (later, fleet) = (fleet.world.time(0, 40_000), fleet.clone());
    fleet.world.clone().loose(async move {
        sleep(later).await;
        while !fleet.revive(at) {
            sleep(LOOK).await;
        }
    });
}
