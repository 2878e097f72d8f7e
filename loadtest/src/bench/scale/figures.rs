//! What runs gave, and the tables.

use serde::Serialize;

use super::rules::Rule;
use crate::bench::mean_and_deviation;

/// What one run gave, in seconds of virtual time: those of a run that was played faster are as many
/// times more than passed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    pub(super) rule: Rule,
    pub(super) seed: u64,
    /// It was played so many times as fast.
    pub(super) faster: f64,
    /// Seconds between two of its interruptions of a worker; `None` without any.
    pub(super) interrupted_every_s: Option<u64>,
    /// Interruptions are announced two minutes before.
    pub(super) announced: bool,
    /// Seconds of a step.
    pub(super) step_s: f64,
    /// Seconds of workers that were paid for, from the request of each to its end.
    pub(super) worker_s: f64,
    /// Rollouts dropped, by whatever reason.
    pub(super) dropped: u64,
    /// Turns that were sampled and belong to no trained rollout.
    pub(super) wasted_turns: u64,
    /// Workers interrupted.
    pub(super) interrupted: u64,
}

/// What the replay of a trace gave.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Replayed {
    pub(super) seed: u64,
    /// Tasks took so many times less than in virtual time.
    pub(super) work_faster: f64,
    /// The trace, start-up delays and notices took so many times less.
    pub(super) fleet_faster: f64,
    /// Interruptions were announced two minutes before.
    pub(super) announced: bool,
    /// Instances that the trace takes; 0 of an undisturbed fleet.
    pub(super) taken: u32,
    /// Instances that were taken.
    pub(super) interrupted: u64,
    /// Workers that served, as a mean over the time.
    pub(super) workers: f64,
    /// Trained turns of a second in which a worker served, in seconds of virtual time.
    pub(super) turns_per_worker_s: f64,
    /// Rollouts dropped, by whatever reason.
    pub(super) dropped: u64,
}

pub(super) fn of_runs(figures: &[Figures]) -> String {
    let mut rows = String::from(
        "| fleet | interrupted | s a step | worker-seconds | of static | goodput | rollouts dropped | turns wasted |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let mut kinds: Vec<(Rule, Option<u64>, bool)> = Vec::new();
    for figure in figures {
        let kind = (figure.rule, figure.interrupted_every_s, figure.announced);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let of = |kind: (Rule, Option<u64>, bool), value: fn(&Figures) -> f64| {
        let values: Vec<f64> = figures
            .iter()
            .filter(|f| (f.rule, f.interrupted_every_s, f.announced) == kind)
            .map(value)
            .collect();
        mean_and_deviation(&values)
    };
    let undisturbed = (Rule::Static, None, false);
    let (all, _) = of(undisturbed, |f| f.worker_s);
    let (usual, _) = of(undisturbed, |f| f.step_s);
    for kind in kinds {
        let (step, step_d) = of(kind, |f| f.step_s);
        let (worker, worker_d) = of(kind, |f| f.worker_s);
        let (dropped, _) = of(kind, |f| f.dropped as f64);
        let (wasted, _) = of(kind, |f| f.wasted_turns as f64);
        let interrupted = match (kind.1, kind.2) {
            (None, _) => "no".to_owned(),
            (Some(every), true) => format!("each worker every {every} s, announced"),
            (Some(every), false) => format!("each worker every {every} s, killed"),
        };
        rows += &format!(
            "| {} | {interrupted} | {step:.1} ± {step_d:.1} | {worker:.0} ± {worker_d:.0} | {} | {} | {dropped:.0} | \
             {wasted:.0} |\n",
            kind.0.name(),
            percent(worker / all),
            percent(usual / step),
        );
    }
    rows
}

pub(super) fn of_replays(replayed: &[Replayed]) -> String {
    let mut rows = String::from(
        "| fleet | taken | workers | turns of a worker's second | of undisturbed | rollouts dropped |\n|---|---|---|---|---|---|\n",
    );
    let kind = |of: &Replayed| (of.taken > 0, of.announced);
    let of = |wanted: (bool, bool), value: fn(&Replayed) -> f64| {
        let same = replayed.iter().filter(|one| kind(one) == wanted);
        mean_and_deviation(&same.map(value).collect::<Vec<_>>())
    };
    let (usual, _) = of((false, true), |of| of.turns_per_worker_s);
    for (wanted, name) in [
        ((false, true), "undisturbed"),
        ((true, true), "by the trace, announced"),
        ((true, false), "by the trace, killed"),
    ] {
        let (turns, spread) = of(wanted, |of| of.turns_per_worker_s);
        let (workers, _) = of(wanted, |of| of.workers);
        let (taken, _) = of(wanted, |of| of.interrupted as f64);
        let (dropped, _) = of(wanted, |of| of.dropped as f64);
        rows += &format!(
            "| {name} | {taken:.0} | {workers:.1} | {turns:.2} ± {spread:.2} | {} | {dropped:.0} |\n",
            percent(turns / usual)
        );
    }
    rows
}

/// A share; nothing where what it is of was not measured.
pub(super) fn percent(share: f64) -> String {
    if share.is_finite() && share > 0.0 { format!("{:.1} %", 100.0 * share) } else { "–".to_owned() }
}
