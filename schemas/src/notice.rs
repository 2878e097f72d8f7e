//! Notices: JSON on `mr.notice.>`, for people and dashboards. Nothing depends on their arrival.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::api::Ledger;
use crate::ids::{RunId, TaskKey};
use crate::stage::Stage;
use crate::version::PolicyVersion;

/// What a coordinator tells of a run, on `mr.notice.<run>.<kind>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Notice {
    /// The run was taken on.
    Submitted {
        /// The run.
        run: RunId,
    },
    /// A version was committed.
    Step(StepNotice),
    /// A gang lost a member, or never met: its step came to nothing and is made again with the same batch.
    StepVoid {
        /// The run.
        run: RunId,
        /// The version that the step was to make.
        version: PolicyVersion,
        /// Which try.
        attempt: u32,
        /// Why.
        reason: String,
    },
    /// An evaluation ended.
    Evaluated {
        /// The run.
        run: RunId,
        /// What was evaluated.
        version: PolicyVersion,
        /// Share of held-out prompts solved, 0 to 1, of those that were played to the end; `None` where none was.
        success: Option<f64>,
        /// How many were played to the end.
        prompts: u32,
        /// How many failed for good.
        #[serde(default)]
        failed: u32,
        /// Why the last of these failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A task is with the dead letters.
    DeadLetter {
        /// The run.
        run: RunId,
        /// The task.
        task: TaskKey,
        /// Why.
        reason: String,
    },
    /// The log lost its newest part: what it held is done again.
    LogLost {
        /// The first position that is known to be lost.
        from: u64,
        /// The last position that a coordinator had seen.
        to: u64,
    },
    /// A committed version that the log lost was found in the object store.
    Adopted {
        /// The run.
        run: RunId,
        /// The version.
        version: PolicyVersion,
        /// Rollouts that it was trained on.
        rollouts: u64,
    },
    /// The run stopped until it is resumed.
    Paused {
        /// The run.
        run: RunId,
        /// Why.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// A paused run goes on.
    Resumed {
        /// The run.
        run: RunId,
    },
    /// The run is over.
    Ended {
        /// The run.
        run: RunId,
        /// `finished`, `cancelled` or `failed`.
        state: String,
        /// The newest version.
        version: PolicyVersion,
        /// The books.
        ledger: Ledger,
    },
}

impl Notice {
    /// Whom it concerns; `None` for all runs.
    #[must_use]
    pub const fn run(&self) -> Option<&RunId> {
        match self {
            Self::Submitted { run }
            | Self::Evaluated { run, .. }
            | Self::DeadLetter { run, .. }
            | Self::StepVoid { run, .. }
            | Self::Adopted { run, .. }
            | Self::Paused { run, .. }
            | Self::Resumed { run }
            | Self::Ended { run, .. } => Some(run),
            Self::Step(step) => Some(&step.run),
            Self::LogLost { .. } => None,
        }
    }

    /// The last token of its subject.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Submitted { .. } => "submitted",
            Self::Step(_) => "step",
            Self::StepVoid { .. } => "step_void",
            Self::Evaluated { .. } => "evaluated",
            Self::DeadLetter { .. } => "dead_letter",
            Self::LogLost { .. } => "log_lost",
            Self::Adopted { .. } => "adopted",
            Self::Paused { .. } => "paused",
            Self::Resumed { .. } => "resumed",
            Self::Ended { .. } => "ended",
        }
    }
}

/// One train step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepNotice {
    /// The run.
    pub run: RunId,
    /// The version it made.
    pub version: PolicyVersion,
    /// Share of the batch's rollouts that reached the goal, 0 to 1.
    pub success: f64,
    /// Mean reward of the batch.
    pub reward: f64,
    /// Tokens sampled in the batch.
    pub sampled_tokens: u64,
    /// Greatest staleness in the batch.
    pub max_staleness: u64,
    /// When, in the log's time.
    pub unix_ms: u64,
    /// What the trainer measured.
    pub metrics: BTreeMap<String, f64>,
}

/// A worker's counters since its start, on `mr.notice.worker.<id>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerNotice {
    /// The process.
    pub worker: String,
    /// Milliseconds since its start.
    pub uptime_ms: u64,
    /// By stage.
    pub stages: BTreeMap<Stage, StageCounters>,
}

/// What a worker did in one stage since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageCounters {
    /// Tasks that ended.
    pub done: u64,
    /// Tasks given back to be tried again.
    pub retried: u64,
    /// Tasks that nobody can do.
    pub poison: u64,
    /// Tasks dropped as stale.
    pub stale: u64,
    /// Tasks in hand.
    pub in_hand: u64,
    /// Microseconds in which at least one task was being executed.
    pub busy_us: u64,
    /// Tokens sampled.
    pub tokens: u64,
    /// What its tasks wait for, where they cannot be done now: a server, weights, a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}
