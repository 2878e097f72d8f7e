//! Notices: JSON on `mr.notice.>`, for people and dashboards. Nothing depends on their arrival.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::api::Ledger;
use crate::ids::{RunId, TaskKey};
use crate::omit;
use crate::stage::Stage;
use crate::version::PolicyVersion;

/// A coordinator's notice about a run, on `mr.notice.<run>.<kind>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Notice {
    /// The run was submitted.
    Submitted {
        /// The run.
        run: RunId,
    },
    /// A version was committed.
    Step(StepNotice),
    /// A gang lost a member, or its rendezvous failed: the attempt of the step is void, and the
    /// step restarts with the same batch.
    StepVoid {
        /// The run.
        run: RunId,
        /// The version that the step was to make.
        version: PolicyVersion,
        /// Attempt of the step, from 0.
        attempt: u32,
        /// Why.
        reason: String,
    },
    /// An evaluation ended.
    Evaluated {
        /// The run.
        run: RunId,
        /// The version that was evaluated.
        version: PolicyVersion,
        /// Share of held-out prompts solved, 0 to 1, of those that were played to the end; `None`
        /// if none was.
        success: Option<f64>,
        /// Prompts that were played to the end.
        prompts: u32,
        /// Prompts that failed for good.
        #[serde(default)]
        failed: u32,
        /// Why the last of these failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A task became a dead letter.
    DeadLetter {
        /// The run.
        run: RunId,
        /// The task.
        task: TaskKey,
        /// Why.
        reason: String,
    },
    /// The log lost its newest part, whose work is redone.
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
        /// What a person can do about it.
        remedy: String,
    },
    /// A paused run was resumed.
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
    /// The run that it concerns; `None` for all runs.
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
    /// Milliseconds since 1970, in the log's time.
    pub unix_ms: u64,
    /// Step metrics by name.
    pub metrics: BTreeMap<String, f64>,
}

/// A worker's counters since its start, on `mr.notice.worker.<id>`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerNotice {
    /// The process.
    pub worker: String,
    /// Milliseconds since its start.
    pub uptime_ms: u64,
    /// The pool of workers that it belongs to, by its name in the scaling file; `None` where it was
    /// told none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// It is leaving: it pulls no more tasks.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub leaving: bool,
    /// It has left, and waits without work until it is ended or recalled.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub stands_by: bool,
    /// What its device does now, where it generates and trains in turn (time division); `None`
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceUse>,
    /// The machine that it is on, where it was told; `None` otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Counters by stage.
    pub stages: BTreeMap<Stage, StageCounters>,
}

/// What a device does that generates and trains in turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceUse {
    /// It samples turns, or could.
    #[default]
    Generates,
    /// A step needs it: turns are handed back, and the engine releases it.
    Shrinks,
    /// It makes a step.
    Trains,
}

impl DeviceUse {
    /// The word for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Generates => "generates",
            Self::Shrinks => "shrinks",
            Self::Trains => "trains",
        }
    }
}

/// The machine of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Its name in the cloud: an instance id, a pod.
    pub name: String,
    /// When it will be taken back, in milliseconds since 1970; `None` while that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_unix_ms: Option<u64>,
}

/// A worker's counters in one stage since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageCounters {
    /// Tasks that ended.
    pub done: u64,
    /// Tasks returned for a retry.
    pub retried: u64,
    /// Tasks that became dead letters.
    pub poison: u64,
    /// Tasks dropped as stale.
    pub stale: u64,
    /// Tasks in flight.
    pub in_hand: u64,
    /// Tasks in flight at most, of one pool of the stage; 0 if an older worker does not report it.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub slots: u64,
    /// Microseconds in which at least one task was being executed.
    pub busy_us: u64,
    /// Tokens sampled.
    pub tokens: u64,
    /// What its tasks wait for, if they cannot be done now: a server, weights, a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}
