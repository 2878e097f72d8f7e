//! A coordinator's clock jumps: a second or a day, forward or back.

use crate::sim::fleet::Fleet;

const SECOND_MS: i64 = 1_000;
const DAY_MS: i64 = 86_400_000;

pub(super) fn jump(fleet: &Fleet) {
    let far = if fleet.world.below(2) == 0 { SECOND_MS } else { DAY_MS };
    let way = if fleet.world.below(2) == 0 { 1 } else { -1 };
    fleet.turn_clock(fleet.any_coordinator(), way * far * (1 + fleet.world.below(5) as i64));
}
