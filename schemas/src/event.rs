//! Entries of the log. The coordinator's state is a fold over these and nothing else.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::blob::{BlobRef, Sha};
use crate::ids::{TaskKey, WorkerId};
use crate::omit;
use crate::outcome::Outcome;
use crate::scale::Scaled;
use crate::submit::RunSpec;
use crate::version::PolicyVersion;

/// One entry of the log. The run is in its subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A valid run was submitted.
    Submitted(Box<RunSpec>),
    /// A task has an outcome.
    Outcome(Outcome),
    /// A task became a dead letter: it is poison, exhausted its deliveries, or could not be
    /// decoded. It is never a reward of 0.
    DeadLetter {
        /// The task.
        key: TaskKey,
        /// The reason, for people.
        reason: String,
        /// Whether it exhausted its deliveries without an outcome, because its workers were killed
        /// or had no store. No worker has reported that it cannot be done.
        #[serde(default, skip_serializing_if = "omit::is_default")]
        exhausted: bool,
    },
    /// A dead letter is requeued.
    Requeued {
        /// The task.
        key: TaskKey,
    },
    /// The run ends by request.
    Cancelled {
        /// The reason, for people.
        reason: String,
    },
    /// The run stops until it is resumed, and loses nothing: none of its tasks is queued, and
    /// outcomes of tasks in flight still count.
    Paused {
        /// The reason, for people.
        reason: String,
        /// What a person can do about it.
        remedy: String,
    },
    /// A paused run continues: all outstanding tasks are requeued.
    Resumed,
    /// A run that is over is replaced by a summary.
    Archived,
    /// A train worker became a member, and can be assigned a rank.
    Joined {
        /// The worker.
        worker: WorkerId,
        /// Id of the process: another process of the same name is another member.
        instance: String,
    },
    /// A train worker left, or was silent for too long: attempts of steps that it took part in are
    /// void.
    Left {
        /// The worker.
        worker: WorkerId,
        /// Id of the process. The membership of another process of the same name is not affected.
        instance: String,
    },
    /// A committed version was found in the object store that the log had lost. The rollouts that
    /// it was trained on count as trained.
    Adopted(Box<Adopted>),
    /// The autoscaler decided how many workers a pool of workers is to have.
    Scaled(Box<Scaled>),
    /// Time passed. This is the only clock of the fold.
    Tick {
        /// Milliseconds since 1970.
        unix_ms: u64,
    },
}

impl Event {
    /// The task of an outcome, a dead letter or a requeue.
    #[must_use]
    pub const fn task(&self) -> Option<TaskKey> {
        match self {
            Self::Outcome(outcome) => Some(outcome.key),
            Self::DeadLetter { key, .. } | Self::Requeued { key } => Some(*key),
            Self::Submitted(_)
            | Self::Cancelled { .. }
            | Self::Paused { .. }
            | Self::Resumed
            | Self::Archived
            | Self::Joined { .. }
            | Self::Left { .. }
            | Self::Adopted(_)
            | Self::Scaled(_)
            | Self::Tick { .. } => None,
        }
    }

    /// The event in brief; the content is then stored elsewhere.
    #[must_use]
    pub fn brief(&self) -> Option<Self> {
        let Self::Outcome(Outcome { key, worker, busy_us, request_fingerprint, body }) = self else {
            return None;
        };
        let (key, worker, busy_us, request_fingerprint) =
            (*key, worker.clone(), *busy_us, *request_fingerprint);
        body.brief().map(|body| Self::Outcome(Outcome { key, worker, busy_us, request_fingerprint, body }))
    }

    /// Whether it is in brief.
    #[must_use]
    pub const fn is_brief(&self) -> bool {
        matches!(self, Self::Outcome(outcome) if outcome.body.is_brief())
    }

    /// Its name in its subject.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Submitted(_) => "submitted",
            Self::Outcome(_) => "outcome",
            Self::DeadLetter { .. } => "dead_letter",
            Self::Requeued { .. } => "requeued",
            Self::Cancelled { .. } => "cancelled",
            Self::Paused { .. } => "paused",
            Self::Resumed => "resumed",
            Self::Archived => "archived",
            Self::Joined { .. } => "joined",
            Self::Left { .. } => "left",
            Self::Adopted(_) => "adopted",
            Self::Scaled(_) => "scaled",
            Self::Tick { .. } => "tick",
        }
    }
}

/// A committed version in the object store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Adopted {
    /// The version.
    pub version: PolicyVersion,
    /// Hash of its manifest.
    pub manifest: Sha,
    /// The batch that it was trained on; `None` for version 0.
    pub batch: Option<BlobRef>,
    /// The batch's groups, in its order.
    pub groups: Vec<AdoptedGroup>,
}

/// A group that an adopted version was trained on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdoptedGroup {
    /// The group's number.
    pub group: u64,
    /// Number of its domain in the run file; 0 for a run with one domain.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub domain: u32,
    /// Its rollouts by index. `[G]`
    pub rollouts: Vec<AdoptedRollout>,
}

/// A rollout that an adopted version was trained on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdoptedRollout {
    /// Number of the replacement, from 0.
    pub attempt: u32,
    /// The version that sampled its first token.
    pub start_version: PolicyVersion,
    /// Its reward.
    pub reward: f64,
    /// It reached the goal.
    pub success: bool,
}
