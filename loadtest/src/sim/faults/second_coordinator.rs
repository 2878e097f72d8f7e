//! A second process of a coordinator comes up under the same name while the first still acts.

use std::sync::Arc;

use tokio::time::sleep;

use crate::sim::fleet::{Fleet, Role};

pub(super) fn start(fleet: &Arc<Fleet>) {
    let at = fleet.add(Role::Coordinator, fleet.any_coordinator());
    let (later, fleet) = (fleet.world.time(500, 30_000), fleet.clone());
    fleet.world.clone().loose(async move {
        sleep(later).await;
        fleet.kill(at);
    });
}
