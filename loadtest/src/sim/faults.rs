//! The fault actors. Each file holds those of one kind; here the next is drawn.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::fleet::Fleet;
use super::scenario::{FaultKind, Scenario};

mod acks;
mod clock_jump;
mod keys;
mod kill;
mod pause;
mod power_loss;
mod requests;
mod second_coordinator;
mod store;
mod stray;
mod unrepaired;
mod work;

/// Injects faults for the scenario's duration.
pub(super) async fn bring(fleet: &Arc<Fleet>, scenario: &Scenario) {
    let world = &fleet.world;
    let end = Instant::now() + Duration::from_secs(scenario.seconds);
    loop {
        sleep(world.time(1, 2 * scenario.every_ms)).await;
        if Instant::now() >= end {
            return;
        }
        let kind = draw(fleet, scenario);
        world.count(kind);
        strike(fleet, kind);
    }
}

fn draw(fleet: &Fleet, scenario: &Scenario) -> FaultKind {
    let sum: u64 = scenario.faults.values().map(|weight| u64::from(*weight)).sum();
    let mut left = fleet.world.below(sum);
    for (kind, weight) in &scenario.faults {
        match left.checked_sub(u64::from(*weight)) {
            Some(rest) => left = rest,
            None => return *kind,
        }
    }
    unreachable!("a draw below the sum of the weights falls on one of them")
}

/// Injects one fault. It does not wait: a fault with a duration runs as a task of its own.
fn strike(fleet: &Arc<Fleet>, kind: FaultKind) {
    match kind {
        FaultKind::Kill => kill::kill(fleet),
        FaultKind::Drain => kill::drain(fleet),
        FaultKind::Pause => pause::pause(fleet),
        FaultKind::Suspend => pause::suspend(fleet),
        FaultKind::Partition => pause::cut_off(fleet),
        FaultKind::AckLost | FaultKind::AckLate | FaultKind::AckTwice => acks::trouble(fleet, kind),
        FaultKind::AckNever => acks::never(fleet),
        FaultKind::RequestLost
        | FaultKind::AnswerLost
        | FaultKind::RequestTwice
        | FaultKind::Slow
        | FaultKind::SlowTicks
        | FaultKind::AppendInProcess
        | FaultKind::Outage => requests::trouble(fleet, kind),
        FaultKind::PowerLoss => power_loss::strike(fleet),
        FaultKind::StaleReads => keys::trouble(fleet),
        FaultKind::StoreFails
        | FaultKind::StoreAnswerLost
        | FaultKind::StoreTorn
        | FaultKind::StoreCorrupt
        | FaultKind::StoreAbsent
        | FaultKind::SnapshotFails
        | FaultKind::SnapshotSlow => store::trouble(fleet, kind),
        FaultKind::StoreHung => store::hang(fleet),
        FaultKind::StoreForbidden | FaultKind::ConsumersRefused | FaultKind::RewardFails => {
            unrepaired::plant(fleet, kind);
        }
        FaultKind::StrayOutcomes => stray::send(fleet),
        FaultKind::ClockJump => clock_jump::jump(fleet),
        FaultKind::SecondCoordinator => second_coordinator::start(fleet),
        FaultKind::Hang | FaultKind::Poison => work::trouble(fleet, kind),
    }
}
