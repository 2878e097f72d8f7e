//! Faults that only a repair ends: they last until the time of faults is over.

use std::time::Duration;

use crate::sim::fleet::Fleet;
use crate::sim::scenario::FaultKind;

/// Longer than any time of faults.
const FOR_EVER: Duration = Duration::from_secs(1 << 20);

pub(super) fn plant(fleet: &Fleet, kind: FaultKind) {
    let world = &fleet.world;
    if world.has(kind) {
        return;
    }
    if kind == FaultKind::ConsumersRefused {
        // All runs share the server.
        world.runs().into_iter().for_each(|run| world.aim(kind, run, FOR_EVER));
    } else {
        world.aim(kind, world.any_run(), FOR_EVER);
    }
}
