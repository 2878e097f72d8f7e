//! The machine of the queue loses its power and comes back after a while, with what was synced and some of the
//! rest.

use crate::sim::fleet::Fleet;
use crate::sim::scenario::FaultKind;

pub(super) fn strike(fleet: &Fleet) {
    let world = &fleet.world;
    world.bring(FaultKind::Outage, world.time(500, 8_000));
    world.queue.power_loss(world.below(u64::MAX));
}
