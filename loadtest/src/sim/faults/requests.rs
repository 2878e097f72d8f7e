//! Requests to the queue that get lost, are slow, arrive twice, or whose answers get lost; and a queue that is
//! away.

use crate::sim::fleet::Fleet;
use crate::sim::scenario::FaultKind;

pub(super) fn trouble(fleet: &Fleet, kind: FaultKind) {
    fleet.world.bring(kind, fleet.world.time(200, 8_000));
}
