//! An object store that refuses, stores partial writes, returns wrong content or nothing, does not
//! answer, or succeeds and reports a failure.

use crate::sim::fleet::Fleet;
use crate::sim::scenario::FaultKind;

pub(super) fn trouble(fleet: &Fleet, kind: FaultKind) {
    fleet.world.bring(kind, fleet.world.time(200, 12_000));
}

/// Nothing that concerns one of the runs is answered for a time.
pub(super) fn hang(fleet: &Fleet) {
    let world = &fleet.world;
    world.aim(FaultKind::StoreHung, world.any_run(), world.time(2_000, 25_000));
}
