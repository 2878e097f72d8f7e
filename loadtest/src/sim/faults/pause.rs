//! Processes that are paused, and processes that are cut off.

use millrace_schemas::limits::LEASE_MS;

use crate::sim::fleet::Fleet;

/// Longer than the coordinator's lease at times, and at times longer than a task's.
const LONGEST_MS: u64 = 45_000;

/// A process is paused and later continues, without knowing of the pause.
pub(super) fn pause(fleet: &Fleet) {
    let length = length(fleet);
    fleet.pause(fleet.any(), length);
}

/// A process reaches neither queue nor object store.
pub(super) fn cut_off(fleet: &Fleet) {
    let length = length(fleet);
    fleet.cut(fleet.any(), length);
}

/// Short or long with equal chance.
fn length(fleet: &Fleet) -> std::time::Duration {
    let most = if fleet.world.below(2) == 0 { 5_000 } else { LONGEST_MS };
    fleet.world.time(100, most)
}

/// A process is suspended for longer than the coordinator's lease, and its requests in transit
/// arrive afterwards.
pub(super) fn suspend(fleet: &Fleet) {
    let length = fleet.world.time(LEASE_MS + 500, 20_000);
    let at = if fleet.world.below(2) == 0 { fleet.any_coordinator() } else { fleet.any() };
    fleet.pause(at, length);
}
