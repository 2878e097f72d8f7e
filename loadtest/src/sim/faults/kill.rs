//! Processes that are killed or drained, and started again.

use std::sync::Arc;

use tokio::time::sleep;

use crate::sim::fleet::Fleet;

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

fn revive_later(fleet: &Arc<Fleet>, at: usize) {
    let (later, fleet) = (fleet.world.time(0, 40_000), fleet.clone());
    fleet.world.clone().loose(async move {
        sleep(later).await;
        fleet.revive(at);
    });
}
