//! How many workers a pool needs. Pure: demand and supply in, a number and its reason out.
//!
//! The rule. A trainer that takes `T` seconds for a step consumes a batch of `B` rollouts every `T`.
//! The next batch lacks `m` rollouts and is due in `d` seconds, when the step at hand ends; those in play
//! have the share `p` of their turns. A pool that does `k` tasks for a rollout must therefore do
//!
//! ```text
//! r = max( k·B / T,  k·m·(1 − p) / max(d, T/2) )     tasks a second
//! ```
//!
//! The first term is what keeps the trainer busy in the long run. It does not depend on what is
//! finished at the moment, so it does not swing between one step's beginning and its end. The second
//! catches up. A trainer that already waits (`d = 0`) gives at most half a step's time for that, so
//! that a pool is never made larger than twice what keeps the trainer busy. `r` over the measured
//! speed of a busy worker is the number of workers, bounded by the tasks that there are: with a full
//! window there are none, and while the trainer is the bottleneck `T` is long and the pool small.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_coordinator::fold::demand::Demand;
use millrace_schemas::scale::{Budget, ScaleCause, ScaleLimit, ScaleReason};
use millrace_schemas::{PolicyVersion, RunId, Stage};
use tokio::time::Instant;

use crate::fleet::{Supply, kept};
use crate::spec::PoolSpec;

/// More than the mean: rollouts differ, and a batch waits for its last one.
const HEADROOM: f64 = 1.1;
/// Workers for uneven tasks, over those whose slots the tasks fill.
const UNEVEN: f64 = 1.5;
/// Half-life of the mean of tasks: longer than a rollout's tasks of one stage take.
const LATELY: Duration = Duration::from_secs(60);
/// Below this, a step counts as so long, in seconds: it is too short to be planned in.
const SHORTEST_STEP_S: f64 = 1.0;

/// A run's pace, as measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pace {
    /// Seconds of a train step; `None` before the first.
    pub step_s: Option<f64>,
    /// Seconds since the step at hand began; 0 between steps.
    pub elapsed_s: f64,
    /// Tasks that were queued or in flight lately, by stage: a mean. Rollouts that began together
    /// are all sampled now and all at their environments a moment later.
    pub tasks: BTreeMap<Stage, f64>,
}

/// What a pool needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Need {
    /// Workers, before the pool's bounds.
    pub workers: u32,
    /// Why.
    pub reason: ScaleReason,
}

/// How many workers a pool needs for these demands. Each comes with its pace. `now` is the number
/// of workers that the pool is to have by the last decision.
#[must_use]
pub fn plan(pool: &PoolSpec, demands: &[(Demand, Pace)], supply: &Supply, now: u32) -> Need {
    let gang = gang(pool, demands);
    let budgets: Vec<_> =
        demands.iter().filter_map(|(demand, pace)| budget(pool, demand, pace, supply)).collect();
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
        bound(&mut need, pool, demands, supply, now);
        // With a task waiting, one worker is needed however little there is to do.
        need.workers = need.workers.max(u32::from(tasks > 0));
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
fn gang(pool: &PoolSpec, demands: &[(Demand, Pace)]) -> u32 {
    let trains = pool.stages.contains(&Stage::TrainShard);
    let ranks = demands.iter().map(|(demand, _)| demand.ranks.max(1)).max().unwrap_or(0);
    match trains {
        true => ranks,
        // Any one worker commits.
        false => u32::from(pool.stages.contains(&Stage::PublishWeights) && ranks > 0),
    }
}

/// Tasks of a stage that are queued or in flight, over all runs.
fn tasks(stage: Stage, demands: &[(Demand, Pace)]) -> u64 {
    demands.iter().map(|(demand, _)| demand.tasks(stage)).sum()
}

/// Workers that one run needs of the pool, and the figures; `None` while they are not measured.
fn budget(pool: &PoolSpec, demand: &Demand, pace: &Pace, supply: &Supply) -> Option<(f64, Budget)> {
    let step_s = pace.step_s?.max(SHORTEST_STEP_S);
    let due_s = if demand.makes.is_some() { (step_s - pace.elapsed_s).max(0.0) } else { 0.0 };
    let missing = match demand.steps_left {
        0 => 0,
        _ => demand.batch_rollouts.saturating_sub(demand.ready_rollouts),
    };
    let rest = missing as f64 * (1.0 - demand.played);
    let catch_up = due_s.max(step_s / 2.0);
    let in_the_long_run = if demand.steps_left > 1 { demand.batch_rollouts as f64 / step_s } else { 0.0 };
    let (mut workers, mut budget) = (0.0, None::<Budget>);
    for stage in inference(pool) {
        let (k, speed) = (demand.per_rollout.get(&stage)?, supply.per_s.get(&stage)?);
        // The next step waits for an evaluation, whose rollouts are counted by their tasks.
        let evaluated = if demand.evaluating { demand.tasks(stage) } else { 0 };
        let needed = k * (rest.max(evaluated as f64) / catch_up).max(in_the_long_run);
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
fn bound(need: &mut Need, pool: &PoolSpec, demands: &[(Demand, Pace)], supply: &Supply, now: u32) {
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
fn at_once(pool: &PoolSpec, demands: &[(Demand, Pace)], supply: &Supply) -> u32 {
    let tasks = |stage: Stage, (demand, pace): &(Demand, Pace)| {
        pace.tasks.get(&stage).copied().unwrap_or_default().max(demand.tasks(stage) as f64)
    };
    let of = |stage: Stage| {
        let slots = supply.slots.get(&stage).copied().filter(|slots| *slots > 0).unwrap_or(1);
        let tasks: f64 = demands.iter().map(|run| tasks(stage, run)).sum();
        UNEVEN * tasks / slots as f64
    };
    // What is left of a mean that decays is no task.
    let workers: f64 = inference(pool).map(of).filter(|workers| *workers > 0.01).sum();
    workers.ceil().min(f64::from(u32::MAX)) as u32
}

/// Seconds until `workers` have done all work of all runs.
fn left_s(demands: &[(Demand, Pace)], supply: &Supply, workers: u32) -> f64 {
    let of = |(demand, pace): &(Demand, Pace)| {
        let rollouts =
            demand.steps_left.saturating_mul(demand.batch_rollouts).saturating_sub(demand.ready_rollouts);
        let share = |(stage, speed): (&Stage, &f64)| {
            let k = demand.per_rollout.get(stage).copied().unwrap_or(1.0);
            k * rollouts as f64 / (speed * f64::from(workers))
        };
        let play = supply.per_s.iter().map(share).sum::<f64>();
        play.max(pace.step_s.unwrap_or(0.0) * demand.steps_left as f64)
    };
    demands.iter().map(of).fold(0.0, f64::max)
}

/// What was seen of the runs before.
#[derive(Debug, Default)]
pub struct Runs(BTreeMap<RunId, RunSeen>);

#[derive(Debug)]
struct RunSeen {
    /// When the step at hand was first seen.
    begun: Option<(PolicyVersion, Instant)>,
    tasks: BTreeMap<Stage, f64>,
    at: Instant,
}

impl Runs {
    /// The paces of all runs, in the order of their demands. `step_s` is the seconds of a train step.
    pub fn paces(&mut self, demands: &[Demand], step_s: Option<f64>, now: Instant) -> Vec<Pace> {
        self.0.retain(|run, _| demands.iter().any(|demand| demand.run.as_ref() == Some(run)));
        demands.iter().map(|demand| self.pace(demand, step_s, now)).collect()
    }

    fn pace(&mut self, demand: &Demand, step_s: Option<f64>, now: Instant) -> Pace {
        let Some(run) = &demand.run else { return Pace { step_s, ..Pace::default() } };
        let new = || RunSeen { begun: None, tasks: BTreeMap::new(), at: now };
        let seen = self.0.entry(run.clone()).or_insert_with(new);
        seen.begun = demand.makes.map(|makes| match seen.begun {
            Some(begun) if begun.0 == makes => begun,
            _ => (makes, now),
        });
        let kept = kept(now.duration_since(seen.at), LATELY);
        for (stage, tasks) in &demand.outstanding {
            let mean = seen.tasks.entry(*stage).or_insert(*tasks as f64);
            *mean = *mean * kept + *tasks as f64 * (1.0 - kept);
        }
        seen.at = now;
        let elapsed_s = seen.begun.map_or(0.0, |(_, begun)| now.duration_since(begun).as_secs_f64());
        Pace { step_s, elapsed_s, tasks: seen.tasks.clone() }
    }
}

#[cfg(test)]
mod tests;
