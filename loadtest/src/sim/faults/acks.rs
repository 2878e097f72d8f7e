//! Acks that get lost, that come twice, and that come when the lease has long ended.

use crate::sim::fleet::Fleet;
use crate::sim::scenario::FaultKind;

pub(super) fn trouble(fleet: &Fleet, kind: FaultKind) {
    fleet.world.bring(kind, fleet.world.time(200, 10_000));
}

/// All acks of some tasks get lost, for as long as their deliveries take.
pub(super) fn never(fleet: &Fleet) {
    fleet.world.bring(FaultKind::AckNever, fleet.world.time(30_000, 60_000));
}
