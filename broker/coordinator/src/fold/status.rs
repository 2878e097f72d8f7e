//! A run as the API reports it.

use std::collections::BTreeMap;

use millrace_schemas::Stage;
use millrace_schemas::api::{Ledger, RunSummary, Status};
use millrace_schemas::limits::MAX_SHOWN_BYTES;
use millrace_schemas::text::shown;

use crate::fold::books::by_reason;
use crate::fold::domains;
use crate::fold::rollout::Phase;
use crate::fold::state::Run;

/// The ledger of a run. Rollouts in flight are counted from the groups, so that a balanced ledger
/// is evidence.
#[must_use]
pub fn ledger(run: &Run) -> Ledger {
    Ledger {
        admitted: run.books.admitted,
        trained: run.books.trained,
        dropped: by_reason(&run.books.dropped),
        in_flight: run.groups_in_flight().map(|group| group.rollouts.len() as u64).sum(),
    }
}

/// A run in a list.
#[must_use]
pub fn summary(run: &Run) -> RunSummary {
    let short = |text: &Option<String>| text.as_ref().map(|text| shown(text, MAX_SHOWN_BYTES));
    RunSummary {
        run: run.spec.name.clone(),
        state: run.state,
        reason: short(&run.reason),
        remedy: short(&run.remedy),
        version: run.version(),
        steps: run.spec.steps,
        started_unix_ms: run.started_unix_ms,
        now_unix_ms: if run.ended_unix_ms > 0 { run.ended_unix_ms } else { run.now_unix_ms() },
        success: run.books.curve.last().map(|point| point.success),
    }
}

/// The status of a run.
#[must_use]
pub fn status(run: &Run) -> Status {
    let ended = if run.ended_unix_ms > 0 { run.ended_unix_ms } else { run.now_unix_ms() };
    let ready = run.ready.len() as u64;
    Status {
        run: run.spec.name.clone(),
        state: run.state,
        reason: run.reason.clone(),
        remedy: run.remedy.clone(),
        version: run.version(),
        steps: run.spec.steps,
        alpha: run.spec.rollout.alpha,
        started_unix_ms: run.started_unix_ms,
        now_unix_ms: ended,
        quiet_ms: if run.state.works() { run.at_ms.saturating_sub(run.progress.moved_ms) } else { 0 },
        held_for_ms: run.held_since_ms.map_or(0, |since| run.at_ms.saturating_sub(since)),
        curve: run.books.curve.clone(),
        evaluations: run.books.evaluations.clone(),
        staleness: run.books.staleness.clone(),
        counters: run.books.counters,
        groups_in_flight: run.groups.len() as u64 - ready,
        groups_ready: ready,
        window_groups: run.spec.window_groups(),
        tasks: outstanding_tasks(run).into_iter().map(|(stage, n)| (stage.name().to_owned(), n)).collect(),
        wasted_us: by_reason(&run.books.wasted_us),
        busy_us: run.books.busy_us.iter().map(|(stage, us)| (stage.name().to_owned(), *us)).collect(),
        metrics: run.books.metrics.clone(),
        ledger: ledger(run),
        domains: domains::statuses(run),
        stored_turns: run.spec.rollout.stored_turns.is_on().then(|| run.stored.status()),
    }
}

/// Tasks that are queued or in flight, by stage.
pub(crate) fn outstanding_tasks(run: &Run) -> BTreeMap<Stage, u64> {
    let mut counts: BTreeMap<Stage, u64> = Stage::QUEUED.iter().map(|stage| (*stage, 0)).collect();
    let mut count = |stage: Stage, n: u64| *counts.entry(stage).or_default() += n;
    let evaluation = run.evaluation.iter().flat_map(|evaluation| evaluation.groups.values());
    for rollout in run.groups.values().chain(evaluation).flat_map(|group| &group.rollouts) {
        match rollout.phase {
            Phase::Reset | Phase::EnvStep => count(Stage::EnvStep, 1),
            Phase::Generate => count(Stage::Generate, 1),
            Phase::Calls => {
                let calls = rollout.calls.as_deref();
                count(Stage::EnvStep, calls.map_or(0, |calls| calls.steps.len() as u64));
                count(Stage::Generate, calls.map_or(0, |calls| calls.open.len() as u64));
            }
            Phase::Reward => {
                count(Stage::Reward, rollout.scores.iter().filter(|score| score.is_none()).count() as u64);
            }
            Phase::Finished => {}
        }
    }
    match &run.training {
        Some(training) if training.manifest.is_some() => count(Stage::PublishWeights, 1),
        Some(_) => count(Stage::TrainShard, 1),
        None => {}
    }
    counts
}
