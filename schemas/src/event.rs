//! What the log holds. The coordinator's state is a fold over these and nothing else.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::blob::{BlobRef, Sha};
use crate::ids::{TaskKey, WorkerId};
use crate::omit;
use crate::outcome::Outcome;
use crate::submit::RunSpec;
use crate::version::PolicyVersion;

/// One entry of the log. The run is in its subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A run was handed in and found valid.
    Submitted(Box<RunSpec>),
    /// A task ended.
    Outcome(Outcome),
    /// A task that nobody can do: poison, delivered too often, or bytes that could not be read. It is with
    /// the dead letters. Never a reward of 0.
    DeadLetter {
        /// The task.
        key: TaskKey,
        /// Why, for people.
        reason: String,
        /// Whether it was only delivered too often: nobody said that it cannot be done. A worker that was killed, or had no
        /// store, says nothing.
        #[serde(default, skip_serializing_if = "omit::is_default")]
        exhausted: bool,
    },
    /// A dead letter is to be tried again.
    Requeued {
        /// The task.
        key: TaskKey,
    },
    /// The run is to end now.
    Cancelled {
        /// Why, for people.
        reason: String,
    },
    /// The run stops until it is resumed, and loses nothing: no task of it is put, what is in flight is still taken in.
    Paused {
        /// Why, for people.
        reason: String,
        /// What to do about it, for people.
        remedy: String,
    },
    /// A paused run goes on: all that is outstanding is put again.
    Resumed,
    /// Of a run that is over only a summary is kept.
    Archived,
    /// A worker that trains holds a membership, and can be given a place in a gang.
    Joined {
        /// The worker.
        worker: WorkerId,
        /// The process: another one of the same name is another member.
        instance: String,
    },
    /// A worker that trains left, or was silent for too long: steps that it had a part in are void.
    Left {
        /// The worker.
        worker: WorkerId,
        /// The process. The membership of another one of the same name stands.
        instance: String,
    },
    /// A committed version that the log does not know stands in the object store: the log lost what it knew of
    /// it. What the version was trained on counts as trained.
    Adopted(Box<Adopted>),
    /// Time went by. The only clock that decisions see.
    Tick {
        /// Milliseconds since 1970.
        unix_ms: u64,
    },
}

impl Event {
    /// The task that it is about: of an outcome, a dead letter, or one that is tried again.
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
            | Self::Tick { .. } => None,
        }
    }

    /// The same in brief, where the rest of it may stand elsewhere.
    #[must_use]
    pub fn brief(&self) -> Option<Self> {
        let Self::Outcome(Outcome { key, worker, busy_us, answers, body }) = self else { return None };
        let (key, worker, busy_us, answers) = (*key, worker.clone(), *busy_us, *answers);
        body.brief().map(|body| Self::Outcome(Outcome { key, worker, busy_us, answers, body }))
    }

    /// Whether it is in brief.
    #[must_use]
    pub const fn is_brief(&self) -> bool {
        matches!(self, Self::Outcome(outcome) if outcome.body.is_brief())
    }

    /// The word for it in its subject.
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
            Self::Tick { .. } => "tick",
        }
    }
}

/// A version as it stands in the object store.
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
    /// Number of its domain in the run file; 0 where there is one.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub domain: u32,
    /// Its rollouts by index. `[G]`
    pub rollouts: Vec<AdoptedRollout>,
}

/// A rollout that an adopted version was trained on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdoptedRollout {
    /// Which replacement it was, from 0.
    pub attempt: u32,
    /// The version that sampled its first token.
    pub start_version: PolicyVersion,
    /// Its reward.
    pub reward: f64,
    /// It reached the goal.
    pub success: bool,
}
