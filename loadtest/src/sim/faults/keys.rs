//! Reads of keys that a replica answers which is behind.

use crate::sim::fleet::Fleet;
use crate::sim::scenario::FaultKind;

pub(super) fn trouble(fleet: &Fleet) {
    fleet.world.bring(FaultKind::StaleReads, fleet.world.time(1_000, 12_000));
}
