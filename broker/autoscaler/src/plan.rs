//! How many workers a pool needs. Pure: demand and supply in, a number and its reason out.
//!
//! The rule. A trainer that takes `T` seconds for a step consumes a batch of `B` rollouts every `T`.
//! The next batch lacks `m` rollouts and is due in `d` seconds, when the step at hand ends; the batch
//! after it is due `T` later. A pool that does `k` tasks for a rollout must therefore do
//!
//! ```text
//! r = max( k·m / max(d, T/2),  k·(m + B) / (max(d, T/2) + T) )     tasks a second
//! ```
//!
//! The second term counts what the window admits, and no more. A trainer that already waits (`d = 0`)
//! gives at most half a step's time to catch up, so that a pool is never made larger than twice what
//! keeps the trainer busy. `r` over the measured speed of a busy worker is the number of workers.
//! While the trainer is the bottleneck, `m` goes to zero, and with it the pool.

use std::collections::BTreeMap;

use millrace_coordinator::fold::demand::Demand;
use millrace_schemas::scale::{Budget, ScaleCause, ScaleLimit, ScaleReason};
use millrace_schemas::{PolicyVersion, RunId, Stage};
use tokio::time::Instant;

use crate::fleet::Supply;
use crate::spec::PoolSpec;

/// More than the mean: rollouts differ, and a batch waits for its last one.
const HEADROOM: f64 = 1.2;
/// Workers for uneven tasks, over those whose slots the tasks fill.
const UNEVEN: f64 = 1.5;
/// Below this, a step counts as so long, in seconds: it is too short to be planned in.
const SHORTEST_STEP_S: f64 = 1.0;

/// The trainer, as measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trainer {
    /// Seconds of a step; `None` before the first.
    pub step_s: Option<f64>,
    /// Seconds since the step at hand began; 0 between steps.
    pub elapsed_s: f64,
}

/// What a pool needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Need {
    /// Workers, before the pool's bounds.
    pub workers: u32,
    /// Why.
    pub reason: ScaleReason,
}

/// How many workers a pool needs for these demands. Each comes with its trainer. `now` is the number
/// of workers that the pool is to have by the last decision.
#[must_use]
pub fn plan(pool: &PoolSpec, demands: &[(Demand, Trainer)], supply: &Supply, now: u32) -> Need {
    let gang = gang(pool, demands);
    let budgets: Vec<_> =
        demands.iter().filter_map(|(demand, trainer)| budget(pool, demand, *trainer, supply)).collect();
    let wanted = budgets.iter().map(|(workers, _)| workers).sum::<f64>();
    let most = budgets.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    if demands.is_empty() {
        return need(ScaleCause::NoRun, 0.0, None);
    }
    if gang > 0 && f64::from(gang) >= wanted {
        return need(ScaleCause::Gang, f64::from(gang), None);
    }
    // A worker more than that would have nothing to do.
    let tasks: u64 = inference(pool).map(|stage| tasks(stage, demands)).sum();
    if let Some((_, budget)) = most {
        let mut need = need(ScaleCause::Budget, wanted, Some(budget));
        // With a task waiting, one worker is needed however little there is to do.
        need.workers = need.workers.max(u32::from(tasks > 0));
        bound(&mut need, pool, demands, supply, now);
        return need;
    }
    if tasks > 0 {
        let first = u32::try_from(tasks).unwrap_or(u32::MAX).min(pool.step.max(now));
        return need(ScaleCause::Unmeasured, f64::from(first), None);
    }
    let starting = demands.iter().any(|(demand, _)| demand.starting) && inference(pool).next().is_some();
    need(ScaleCause::Starting, if starting { f64::from(pool.step) } else { 0.0 }, None)
}

fn need(cause: ScaleCause, wanted: f64, budget: Option<Budget>) -> Need {
    let workers = wanted.ceil().min(f64::from(u32::MAX)) as u32;
    Need { workers, reason: ScaleReason { cause, limit: None, wanted, budget } }
}

/// The pool's stages whose work is counted by the rollout.
fn inference(pool: &PoolSpec) -> impl Iterator<Item = Stage> {
    pool.stages
        .iter()
        .copied()
        .filter(|stage| matches!(stage, Stage::Generate | Stage::EnvStep | Stage::Reward))
}

/// The ranks of all gangs, for a pool that trains.
fn gang(pool: &PoolSpec, demands: &[(Demand, Trainer)]) -> u32 {
    let trains = pool.stages.contains(&Stage::TrainShard);
    let ranks = demands.iter().map(|(demand, _)| demand.ranks.max(1)).max().unwrap_or(0);
    match trains {
        true => ranks,
        // Any one worker commits.
        false => u32::from(pool.stages.contains(&Stage::PublishWeights) && ranks > 0),
    }
}

/// Tasks of a stage that are queued or in flight, over all runs.
fn tasks(stage: Stage, demands: &[(Demand, Trainer)]) -> u64 {
    demands.iter().map(|(demand, _)| demand.tasks(stage)).sum()
}

/// Workers that one run needs of the pool, and the figures; `None` while they are not measured.
fn budget(pool: &PoolSpec, demand: &Demand, trainer: Trainer, supply: &Supply) -> Option<(f64, Budget)> {
    let step_s = trainer.step_s?.max(SHORTEST_STEP_S);
    let due_s = if demand.makes.is_some() { (step_s - trainer.elapsed_s).max(0.0) } else { 0.0 };
    let missing = match demand.steps_left {
        0 => 0,
        _ => demand.batch_rollouts.saturating_sub(demand.ready_rollouts),
    };
    // What the window admits of the batch after the next one, while the next one waits or trains.
    let training = if demand.makes.is_some() { demand.batch_rollouts } else { 0 };
    let room = demand.window_rollouts.saturating_sub(training + demand.ready_rollouts);
    let after =
        if demand.steps_left > 1 { demand.batch_rollouts.min(room.saturating_sub(missing)) } else { 0 };
    let catch_up = due_s.max(step_s / 2.0);
    let (mut workers, mut budget) = (0.0, None::<Budget>);
    for stage in inference(pool) {
        let (k, speed) = (demand.per_rollout.get(&stage)?, supply.per_s.get(&stage)?);
        let soon = k * missing as f64 / catch_up;
        let later = k * (missing + after) as f64 / (catch_up + step_s);
        // The next step waits for an evaluation, whose rollouts are counted by their tasks.
        let played = if demand.evaluating { demand.tasks(stage) } else { 0 };
        let needed = soon.max(later).max(k * played as f64 / catch_up);
        workers += HEADROOM * needed / speed;
        if budget.as_ref().is_none_or(|of| needed / speed > of.needed_per_s / of.worker_per_s) {
            budget = Some(Budget {
                run: demand.run.as_ref().map(ToString::to_string).unwrap_or_default(),
                missing_rollouts: missing,
                due_s,
                step_s,
                tasks_per_rollout: *k,
                needed_per_s: needed,
                worker_per_s: *speed,
            });
        }
    }
    budget.map(|budget| (workers, budget))
}

/// Takes back what could not be used.
fn bound(need: &mut Need, pool: &PoolSpec, demands: &[(Demand, Trainer)], supply: &Supply, now: u32) {
    let at_once = at_once(pool, demands, supply);
    if need.workers > at_once {
        need.workers = at_once;
        need.reason.limit = Some(ScaleLimit::Tasks);
    }
    if need.workers > now
        && now > 0
        && left_s(demands, supply, now) < supply.start_up_s.0 + 2.0 * supply.start_up_s.1
    {
        need.workers = now;
        need.reason.limit = Some(ScaleLimit::StartUp);
    }
}

/// Workers whose slots the tasks fill, and half as many again, for tasks come unevenly. A rollout has
/// one task at a time, so nothing fills the slots of more.
fn at_once(pool: &PoolSpec, demands: &[(Demand, Trainer)], supply: &Supply) -> u32 {
    let of = |stage: Stage| {
        let slots = supply.slots.get(&stage).copied().filter(|slots| *slots > 0).unwrap_or(1);
        UNEVEN * tasks(stage, demands) as f64 / slots as f64
    };
    inference(pool).map(of).sum::<f64>().ceil().clamp(1.0, f64::from(u32::MAX)) as u32
}

/// Seconds until `workers` have done all work of all runs.
fn left_s(demands: &[(Demand, Trainer)], supply: &Supply, workers: u32) -> f64 {
    let of = |(demand, trainer): &(Demand, Trainer)| {
        let rollouts = (demand.steps_left * demand.batch_rollouts).saturating_sub(demand.ready_rollouts);
        let share = |(stage, speed): (&Stage, &f64)| {
            let k = demand.per_rollout.get(stage).copied().unwrap_or(1.0);
            k * rollouts as f64 / (speed * f64::from(workers))
        };
        let play = supply.per_s.iter().map(share).sum::<f64>();
        play.max(trainer.step_s.unwrap_or(0.0) * demand.steps_left as f64)
    };
    demands.iter().map(of).fold(0.0, f64::max)
}

/// When each run's step was first seen.
#[derive(Debug, Default)]
pub struct Steps {
    begun: BTreeMap<RunId, (PolicyVersion, Instant)>,
}

impl Steps {
    /// Seconds since the step of this demand was first seen; 0 between steps.
    pub fn elapsed_s(&mut self, demand: &Demand, now: Instant) -> f64 {
        let Some(run) = &demand.run else { return 0.0 };
        let Some(makes) = demand.makes else {
            self.begun.remove(run);
            return 0.0;
        };
        let begun = self.begun.entry(run.clone()).or_insert((makes, now));
        if begun.0 != makes {
            *begun = (makes, now);
        }
        now.duration_since(begun.1).as_secs_f64()
    }
}

#[cfg(test)]
mod tests;
