//! The kinds of faults. Those of one kind are brought by one file of `sim/faults/`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What may go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// A process is killed and started again from nothing.
    Kill,
    /// A process is drained and started again.
    Drain,
    /// A process is paused for a time, then continues.
    Pause,
    /// A process reaches neither queue nor object store for a time.
    Partition,
    /// Acks of tasks get lost.
    AckLost,
    /// Acks of tasks arrive after the lease.
    AckLate,
    /// Acks of tasks arrive twice.
    AckTwice,
    /// Requests to the queue get lost.
    RequestLost,
    /// Requests to the queue are done, and their answers get lost.
    AnswerLost,
    /// Requests to the queue arrive twice.
    RequestTwice,
    /// Requests to the queue take seconds.
    Slow,
    /// The queue is unavailable for a time.
    Outage,
    /// The machine of the queue loses its power: what was not synced is gone.
    PowerLoss,
    /// The object store refuses.
    StoreFails,
    /// The object store does what is asked and reports a failure.
    StoreAnswerLost,
    /// The object store keeps a part of a write, and reports a failure.
    StoreTorn,
    /// The clock of a coordinator jumps, forward or back.
    ClockJump,
    /// A second process of the coordinator that acts is started, under the same name.
    SecondCoordinator,
    /// Work hangs without an end.
    Hang,
    /// Tasks that nobody can do.
    Poison,
    /// A machine is suspended for longer than the coordinator's lease, with all its processes; their
    /// requests in transit arrive when it wakes. Its monotonic clock stands still meanwhile.
    Suspend,
    /// The leader's ticks come seconds late, or not at all.
    SlowTicks,
    /// Reads of keys are answered by a replica that is behind.
    StaleReads,
    /// Appends are answered 409, *duplicate message id is in process*, and are stored later.
    AppendInProcess,
    /// An outcome that nobody waits for comes every ten seconds, to the end.
    StrayOutcomes,
    /// All acks of some tasks get lost until those tasks were delivered as often as may be.
    AckNever,
    /// Reads of the object store return other bytes than were written.
    StoreCorrupt,
    /// Reads of the object store find nothing.
    StoreAbsent,
    /// The object store does not answer what concerns one run.
    StoreHung,
    /// Snapshots cannot be written.
    SnapshotFails,
    /// Writes of snapshots are slow, so that two coordinators write theirs of one position at once.
    SnapshotSlow,
    /// Until it is repaired: the object store forbids whatever concerns one run.
    StoreForbidden,
    /// Until it is repaired: the queue refuses further consumers.
    ConsumersRefused,
    /// Until it is repaired: a reward of one run can be computed by nobody.
    RewardFails,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 34] = [
        Self::Kill,
        Self::Drain,
        Self::Pause,
        Self::Partition,
        Self::AckLost,
        Self::AckLate,
        Self::AckTwice,
        Self::RequestLost,
        Self::AnswerLost,
        Self::RequestTwice,
        Self::Slow,
        Self::Outage,
        Self::PowerLoss,
        Self::StoreFails,
        Self::StoreAnswerLost,
        Self::StoreTorn,
        Self::ClockJump,
        Self::SecondCoordinator,
        Self::Hang,
        Self::Poison,
        Self::Suspend,
        Self::SlowTicks,
        Self::StaleReads,
        Self::AppendInProcess,
        Self::StrayOutcomes,
        Self::AckNever,
        Self::StoreCorrupt,
        Self::StoreAbsent,
        Self::StoreHung,
        Self::SnapshotFails,
        Self::SnapshotSlow,
        Self::StoreForbidden,
        Self::ConsumersRefused,
        Self::RewardFails,
    ];

    /// Whether nothing but a repair ends it, so that the run it befalls may halt until then.
    #[must_use]
    pub const fn needs_repair(self) -> bool {
        matches!(self, Self::StoreForbidden | Self::ConsumersRefused | Self::RewardFails)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
