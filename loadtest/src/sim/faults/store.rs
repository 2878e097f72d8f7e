//! An object store that refuses, tears what is written, or does what is asked and says that it failed.

use crate::sim::fleet::Fleet;
use crate::sim::scenario::FaultKind;

pub(super) fn trouble(fleet: &Fleet, kind: FaultKind) {
    fleet.world.bring(kind, fleet.world.time(200, 12_000));
}
