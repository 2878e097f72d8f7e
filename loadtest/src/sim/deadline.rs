//! By when a run must have ended: a multiple of what it takes undisturbed, and what the faults may cost after they
//! are over.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_schemas::limits::{MEMBER_MS, STALL_MS, STEP_BACKOFF_MS, attempt_ms};

use super::scenario::{FaultKind, Scenario};
use super::world::World;

/// Of a run's undisturbed time: all of it may lie ahead when the faults end, and what was in flight may be stale by then.
const MULTIPLE: u32 = 2;
/// Time for a takeover, back-offs of retries, a new gang and the operator's polls together, and for
/// an exhausted step until its restart.
const SETTLE: Duration = Duration::from_millis(20_000 + STEP_BACKOFF_MS.1);
/// Deliveries of a task before it is a dead letter.
const DELIVERIES: u32 = millrace_schemas::limits::MAX_DELIVER as u32;
/// Between a repair and the operator's resume: what the fault began has ended by then.
pub(super) const AFTER_REPAIR: Duration = Duration::from_secs(30);

/// Time after the faults in which the runs must end.
pub(super) fn most(world: &World, scenario: &Scenario, undisturbed: Duration) -> Duration {
    let ack_wait = Duration::from_millis(scenario.ack_wait_ms);
    let struck = world.counts();
    let costs = struck.keys().map(|kind| aftermath(*kind, ack_wait, world)).max().unwrap_or_default();
    MULTIPLE * undisturbed + SETTLE + costs
}

/// How long a fault may delay a run after its end. The delays of several faults overlap.
fn aftermath(kind: FaultKind, ack_wait: Duration, world: &World) -> Duration {
    match kind {
        // Its tasks are given to another when the lease has run out; a gang does without it.
        FaultKind::Kill
        | FaultKind::Drain
        | FaultKind::Pause
        | FaultKind::Partition
        | FaultKind::Suspend
        | FaultKind::SecondCoordinator => ack_wait + Duration::from_millis(2 * MEMBER_MS),
        FaultKind::AckLost
        | FaultKind::AckLate
        | FaultKind::AckTwice
        | FaultKind::RequestLost
        | FaultKind::AnswerLost
        | FaultKind::RequestTwice
        | FaultKind::Slow
        | FaultKind::SlowTicks
        | FaultKind::AppendInProcess
        | FaultKind::Outage
        | FaultKind::StaleReads
        | FaultKind::StoreFails
        | FaultKind::StoreAnswerLost
        | FaultKind::StoreTorn
        | FaultKind::StoreCorrupt
        | FaultKind::StoreAbsent
        | FaultKind::StoreHung
        | FaultKind::SnapshotFails
        | FaultKind::SnapshotSlow
        | FaultKind::ClockJump
        | FaultKind::StrayOutcomes
        | FaultKind::Poison => ack_wait,
        FaultKind::AckNever => DELIVERIES * ack_wait,
        // A lost task is requeued once its run has made no progress for this long.
        FaultKind::PowerLoss => Duration::from_millis(STALL_MS) + ack_wait,
        FaultKind::Hang => {
            let hung = world.hung().into_iter().map(attempt_ms).max().unwrap_or_default();
            Duration::from_millis(hung) + ack_wait
        }
        FaultKind::StoreForbidden | FaultKind::ConsumersRefused | FaultKind::RewardFails => {
            AFTER_REPAIR + ack_wait
        }
    }
}

/// When each run ended, according to an observer that polls.
pub(super) type Ends = BTreeMap<millrace_schemas::RunId, tokio::time::Instant>;
