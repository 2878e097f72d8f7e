//! Processes that are paused, and processes that are cut off.

use std::sync::Arc;

use millrace_coordinator::shell::leader::lease_holder;
use millrace_schemas::limits::LEASE_MS;
use tokio::time::sleep_until;

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

/// A machine is suspended for longer than the coordinator's lease. Requests of its processes in
/// transit arrive afterwards. When it wakes, its leader must know that the lease is another's.
pub(super) fn suspend(fleet: &Arc<Fleet>) {
    let length = fleet.world.time(LEASE_MS + 500, 20_000);
    let machine = fleet.any_coordinator();
    fleet.suspend(machine, length);
    let (until, fleet) = (fleet.asleep_until(machine), fleet.clone());
    fleet.world.clone().loose(async move {
        sleep_until(until).await;
        // It may have been woken up earlier, or suspended again.
        if fleet.asleep_until(machine) != until {
            return;
        }
        let leaders = fleet.leaders_on(machine);
        let world = &fleet.world;
        if let Ok(Some(holder)) = lease_holder(&world.plain()).await {
            let former = leaders.into_iter().filter(|leader| !holder.is_empty() && *leader != holder);
            former.for_each(|leader| world.finds(format!("{leader} would act where {holder} has the lease")));
        }
    });
}
