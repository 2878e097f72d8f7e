//! Work that never ends, and work that nobody can do.

use crate::sim::fleet::Fleet;
use crate::sim::scenario::FaultKind;

pub(super) fn trouble(fleet: &Fleet, kind: FaultKind) {
    fleet.world.bring(kind, fleet.world.time(100, 3_000));
}
