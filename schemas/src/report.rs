//! The result of a run, which `millrace up` writes as `report.json`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{DomainStatus, Evaluation, Ledger, StoredStatus};
use crate::counters::RunCounters;

/// The standard error of a share of rollouts that reached the goal, of which `clusters` gives, for
/// each distinct prompt, how many were played and how many of them reached it. Rollouts of one
/// prompt, drawn repeatedly or sampled several times, are not independent: they are one cluster
/// (Miller 2024, <https://arxiv.org/abs/2411.00640>, section 2.2), here with the correction for few
/// clusters. `None` for fewer than two prompts.
#[must_use]
pub fn clustered_error(clusters: impl Iterator<Item = (u32, u32)> + Clone) -> Option<f64> {
    let (mut count, mut rollouts, mut solved) = (0.0, 0.0, 0.0);
    for (n, c) in clusters.clone() {
        count += 1.0;
        rollouts += f64::from(n);
        solved += f64::from(c);
    }
    let squares = clusters.map(|(n, c)| (f64::from(c) - f64::from(n) * solved / rollouts).powi(2));
    let variance = squares.sum::<f64>() * count / (count - 1.0);
    (count >= 2.0).then(|| variance.sqrt() / rollouts)
}

/// A rule that learns nothing, played on the held-out prompts of a run by the environment's own
/// code.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Baseline {
    /// `random`, `memoryless_reflex`, `reflex` or `shortest_path`; on slippery ice also
    /// `best_policy`.
    pub name: String,
    /// Description of the rule.
    pub rule: String,
    /// Share of prompts solved.
    pub success: f64,
    /// Standard error of that share over distinct prompts; 0 for fewer than two of them.
    pub standard_error: f64,
    /// Prompts played.
    pub prompts: u32,
    /// Distinct prompts among them.
    pub distinct: u32,
}

/// The result of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The run's name.
    pub run: String,
    /// `finished`, `cancelled` or `failed`.
    pub state: String,
    /// Share of held-out prompts solved by version 0; `None` if none were evaluated.
    pub success_before: Option<f64>,
    /// Share of held-out prompts solved by the last version.
    pub success_after: Option<f64>,
    /// Held-out prompts of an evaluation that were played to the end, at most.
    pub evaluate_prompts: u32,
    /// Those that failed for good, at most.
    #[serde(default)]
    pub evaluate_failed: u32,
    /// Why the last of these failed; `None` if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluate_reason: Option<String>,
    /// All evaluations, oldest first, each with its temperature, standard error and distinct
    /// prompts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<Evaluation>,
    /// Baselines, rules that learn nothing, on the same held-out prompts; empty if the environment
    /// has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<Baseline>,
    /// Seconds from the submit to the end, in the log's time.
    pub wall_s: f64,
    /// Train steps done.
    pub steps: u64,
    /// The async ratio, α.
    pub alpha: f64,
    /// Greatest staleness of a trained rollout, in versions.
    pub max_staleness: u64,
    /// Rollouts trained by staleness; the index is the staleness.
    pub staleness: Vec<u64>,
    /// Tokens sampled a second, over the whole wall time.
    pub tokens_per_s: f64,
    /// Tokens and turns, counted from the run's start.
    #[serde(flatten)]
    pub counters: RunCounters,
    /// Turns from which groups started; `None` for a run whose groups all started at their prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_turns: Option<StoredStatus>,
    /// The books, in rollouts.
    pub ledger: Ledger,
    /// Final status by domain, in the run file's order; empty for a run with one domain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<DomainStatus>,
    /// Whether admitted = trained + dropped + in flight.
    pub balanced: bool,
    /// Whether a recount from the committed versions and their batches in the object store agrees:
    /// every version once, no rollout twice, the same number trained, the same greatest staleness.
    pub audited: bool,
    /// Findings of the recount; empty if it agrees.
    pub audit_findings: Vec<String>,
    /// The last version.
    pub final_version: u64,
    /// Folder with the last version as a model directory.
    pub weights_path: String,
    /// The learning curve as SVG.
    pub curve_path: String,
    /// Share of wall time in which a generate worker was executing, 0 to 1.
    pub generate_busy: f64,
    /// Share of wall time in which a train worker was executing, 0 to 1.
    pub train_busy: f64,
    /// Restarts of processes (workers, coordinator, nats-server).
    pub restarts: u64,
    /// Workers that generated; 0 in a report of an older version.
    #[serde(default)]
    pub generate_workers: u64,
    /// Workers that trained; 0 in a report of an older version.
    #[serde(default)]
    pub train_workers: u64,
    /// Mean seconds between two steps, from the first to the last; 0 for fewer than two.
    #[serde(default)]
    pub step_s: f64,
    /// Worker microseconds spent, by stage name, evaluation included.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub busy_us: BTreeMap<String, u64>,
}
