//! The API: a NATS micro service, JSON in and out, on `mr.api.<endpoint>`. Errors come with the
//! micro service headers `Nats-Service-Error` and `Nats-Service-Error-Code`, and an [`ApiError`] as
//! body.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::counters::RunCounters;
use crate::ids::{DomainName, RunId};
use crate::submit::Refusal;
use crate::version::PolicyVersion;

/// The service's name, as `nats micro ls` shows it.
pub const SERVICE: &str = "millrace";
/// What the service does, as `nats micro info` shows it.
pub const DESCRIPTION: &str = "Asynchronous reinforcement learning: submit and watch runs";
/// The endpoints, in the order in which a user needs them: name and description.
pub const ENDPOINTS: [(&str, &str); 10] = [
    ("submit", "A run file as JSON; answers {\"run\": name}"),
    ("status", "{\"run\": name}, or nothing where only one run is known; answers its status"),
    (
        "list",
        "Nothing, or {\"after\": name}; returns a page of all runs, and the name after which the next page starts",
    ),
    ("ledger", "{\"run\": name}; answers the run's books"),
    ("pause", "{\"run\": name}; stops the run until it is resumed; nothing is lost"),
    ("resume", "{\"run\": name}; resumes a paused run"),
    ("cancel", "{\"run\": name}; ends the run"),
    ("rm", "{\"run\": name}; archives a run that is over: its versions stay, its name stays taken"),
    ("drain", "{\"worker\": name}; asks the worker to finish or return its tasks and to end"),
    ("scale", "Nothing; returns by pool of workers how many it is to have, and why"),
];

/// The reason of a pause that a person asked for.
pub const PAUSED_BY_REQUEST: &str = "paused by request";

/// Names a run. The name may be left out if there is only one run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
}

/// The reply to submit, cancel, pause, resume and rm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunReply {
    /// The run.
    pub run: RunId,
}

/// Requests a page of all runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListRequest {
    /// The page starts after this name. Default: at the first run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<RunId>,
}

/// A page of all runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunList {
    /// By name; at most 256.
    pub runs: Vec<RunSummary>,
    /// The name after which the next page starts; `None` on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<RunId>,
}

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    /// The run.
    pub run: RunId,
    /// Its lifecycle state.
    pub state: RunState,
    /// Why it failed, was cancelled or is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What a person can do about it, if it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The newest version; also the number of steps done.
    pub version: PolicyVersion,
    /// Steps in the run file.
    pub steps: u64,
    /// Milliseconds since 1970 in the log's time: first tick after the submit.
    pub started_unix_ms: u64,
    /// Last tick, or the end of the run.
    pub now_unix_ms: u64,
    /// Share of the last step's rollouts that reached the goal; `None` before the first.
    pub success: Option<f64>,
}

/// An error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApiError {
    /// 400 the request is wrong, 404 no such run, 409 the run exists, 500 a fault of the
    /// coordinator, 503 retry.
    pub code: u16,
    /// The mistake and the remedy, for people.
    pub message: String,
    /// The fields that are wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldError>,
}

/// One wrong field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldError {
    /// Path to it.
    pub field: String,
    /// Its value.
    pub value: String,
    /// What to write instead.
    pub remedy: String,
}

impl From<Refusal> for FieldError {
    fn from(refusal: Refusal) -> Self {
        Self { field: refusal.field, value: refusal.value, remedy: refusal.remedy }
    }
}

/// The lifecycle state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Version 0 is being made.
    Starting,
    /// Rollouts and steps.
    Running,
    /// The last version is being evaluated.
    Finishing,
    /// No task is queued until it is resumed. It was paused by request, or for a cause that a
    /// person can repair. It is not over.
    Paused,
    /// All steps done.
    Finished,
    /// Ended by request.
    Cancelled,
    /// Ended because of something that nobody can repair.
    Failed,
}

impl RunState {
    /// Whether the run is over.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Cancelled | Self::Failed)
    }

    /// Whether its tasks are queued: it is neither over nor paused.
    #[must_use]
    pub const fn works(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Finishing)
    }

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Finishing => "finishing",
            Self::Paused => "paused",
            Self::Finished => "finished",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// The status of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The run.
    pub run: RunId,
    /// Its lifecycle state.
    pub state: RunState,
    /// Why it failed, was cancelled or is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What a person can do about it, if it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The newest version; also the number of steps done.
    pub version: PolicyVersion,
    /// Steps in the run file.
    pub steps: u64,
    /// The async ratio, α.
    pub alpha: f64,
    /// Milliseconds since 1970 in the log's time: first tick after the submit.
    pub started_unix_ms: u64,
    /// Last tick, or the end of the run.
    pub now_unix_ms: u64,
    /// Milliseconds since the last progress, in the log's time; 0 if it is paused or over.
    #[serde(default)]
    pub quiet_ms: u64,
    /// Milliseconds that a full batch has waited by now for groups that its step would make too old;
    /// 0 if none waits.
    #[serde(default)]
    pub held_for_ms: u64,
    /// Success of the last steps' batches, oldest first; at most 1,000 points, evenly thinned.
    pub curve: Vec<CurvePoint>,
    /// Evaluations, oldest first; at most 500, evenly thinned.
    pub evaluations: Vec<Evaluation>,
    /// Rollouts trained by staleness: index is the staleness in versions.
    pub staleness: Vec<u64>,
    /// Tokens and turns, counted from the run's start.
    #[serde(flatten)]
    pub counters: RunCounters,
    /// Groups in flight.
    pub groups_in_flight: u64,
    /// Groups that are finished and not yet trained.
    pub groups_ready: u64,
    /// Groups that may be in flight or ready.
    pub window_groups: u64,
    /// Tasks that are queued or in flight, by stage name.
    pub tasks: BTreeMap<String, u64>,
    /// Worker microseconds spent on rollouts that were dropped, by reason.
    pub wasted_us: BTreeMap<String, u64>,
    /// Worker microseconds spent, by stage name.
    pub busy_us: BTreeMap<String, u64>,
    /// Step metrics of the last step, by name.
    pub metrics: BTreeMap<String, f64>,
    /// The books.
    pub ledger: Ledger,
    /// Status by domain, in the run file's order; empty for a run with one domain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<DomainStatus>,
    /// Turns from which groups start; `None` for a run whose groups all start at their prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_turns: Option<StoredStatus>,
}

/// The turns of earlier rollouts from which groups start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoredStatus {
    /// Rollouts whose turns are kept.
    pub rollouts: u64,
    /// Groups that started from one of their turns and were played to the end.
    pub groups: u64,
    /// Rollouts that the policy has learnt from the beginning.
    pub learnt: u64,
    /// Mean number of turns before the goal at which groups start; 0 without a rollout.
    pub mean_turns_left: f64,
}

/// The status of one domain of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DomainStatus {
    /// Its name.
    pub name: DomainName,
    /// Its configured share of each batch, 0 to 1.
    pub share: f64,
    /// Groups that a committed version was trained on.
    pub groups: u64,
    /// Share of the trained rollouts that reached the goal, over the whole run.
    pub success: f64,
    /// Mean reward of the trained rollouts, over the whole run.
    pub reward: f64,
    /// Share of the last step's rollouts that reached the goal; `None` before it took part in one.
    pub last_success: Option<f64>,
    /// Mean reward of the last step's rollouts; `None` before it took part in one.
    pub last_reward: Option<f64>,
    /// Rollouts trained by staleness: index is the staleness in versions.
    pub staleness: Vec<u64>,
    /// Its books.
    pub ledger: Ledger,
    /// Evaluations on its held-out prompts, oldest first; at most 500 over all domains, evenly
    /// thinned.
    pub evaluations: Vec<Evaluation>,
}

/// One train step on the learning curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CurvePoint {
    /// The version made.
    pub version: u64,
    /// Share of the batch's rollouts that reached the goal. If any rollouts started at their
    /// prompts, only those count here and in the reward: a rollout that started from a stored turn
    /// was nearer to the goal.
    pub success: f64,
    /// Mean reward.
    pub reward: f64,
    /// Milliseconds since the run's start, in the log's time.
    pub at_ms: u64,
}

/// One evaluation on held-out prompts, at one temperature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evaluation {
    /// The version that was evaluated.
    pub version: u64,
    /// Sampling temperature; 0 is greedy.
    #[serde(default)]
    pub temperature: f64,
    /// Share of rollouts that reached the goal; `None` if no prompt was played to its end.
    pub success: Option<f64>,
    /// Standard error of that share over distinct prompts; `None` for fewer than two of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_error: Option<f64>,
    /// Mean reward; `None` if no prompt was played to its end.
    pub reward: Option<f64>,
    /// Prompts that were played to the end.
    pub prompts: u32,
    /// Distinct prompts among them, by the first observation; 0 in a report of an older version.
    #[serde(default)]
    pub distinct: u32,
    /// Rollouts of each prompt.
    #[serde(default = "one")]
    pub samples: u32,
    /// Pass@k by k, ascending; empty if prompts have one rollout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pass: Vec<PassAt>,
    /// Prompts whose rollout failed for good; they count as neither solved nor unsolved.
    pub failed: u32,
    /// Why the last of these failed; `None` if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Milliseconds since the run's start.
    pub at_ms: u64,
}

const fn one() -> u32 {
    1
}

/// The chance that at least one of `k` rollouts of a held-out prompt reaches the goal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PassAt {
    /// Rollouts.
    pub k: u32,
    /// The unbiased estimate, averaged over prompts.
    pub success: f64,
}

/// The books of a run, in rollouts, without evaluation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ledger {
    /// Rollouts started, including replacements.
    pub admitted: u64,
    /// Rollouts that a committed version was trained on.
    pub trained: u64,
    /// Rollouts dropped, by reason: `stale`, `filtered`, `failed`, `lost`, `group_failed`, `cancelled`,
    /// `surplus`.
    pub dropped: BTreeMap<String, u64>,
    /// Rollouts in the coordinator's state: playing, waiting for a batch, or in training.
    pub in_flight: u64,
}

impl Ledger {
    /// Whether every rollout admitted is trained, dropped or in flight.
    #[must_use]
    pub fn balanced(&self) -> bool {
        self.admitted == self.trained + self.dropped.values().sum::<u64>() + self.in_flight
    }
}
