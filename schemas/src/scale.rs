//! What the autoscaler decided, and why. Decisions are events of the log, for all runs
//! (`mr.log.all.scaled`), so that a standby that takes over knows them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::ids::WorkerId;
use crate::omit;

/// How many workers a pool of workers is to have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Scaled {
    /// The pool's name in the scaling file.
    pub pool: String,
    /// Workers that it had by the decision before.
    pub before: u32,
    /// Workers that it is to have.
    pub desired: u32,
    /// The workers that leave, in the order in which they were chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leave: Vec<WorkerId>,
    /// Milliseconds since 1970, by the leader's clock.
    pub unix_ms: u64,
    /// It was only computed: no worker starts or ends by it.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub dry_run: bool,
    /// Why.
    pub reason: ScaleReason,
}

/// Why a pool is to have so many workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScaleReason {
    /// What asks for workers.
    pub cause: ScaleCause,
    /// What allows no more, or no fewer; `None` if nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ScaleLimit>,
    /// Workers that the cause asks for, before limits.
    pub wanted: f64,
    /// The figures behind `wanted`, of the run that asks for most; `None` where it takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}

/// What asks for workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScaleCause {
    /// No run works: nothing asks.
    NoRun,
    /// A run makes its first version: a step's worth of workers starts meanwhile.
    Starting,
    /// The ranks of gangs.
    Gang,
    /// Rollouts that the next steps of a run will consume in time.
    Budget,
    /// Tasks wait, and no worker has shown yet how fast it is.
    Unmeasured,
}

/// What bounds a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScaleLimit {
    /// The pool's lower bound.
    Min,
    /// The pool's upper bound.
    Max,
    /// The most workers started or ended in one decision.
    Step,
    /// A pool shrinks only after a time in which it never needed more.
    CoolDown,
    /// There are no more tasks at once than that.
    Tasks,
    /// A worker that starts now would be ready after the work is done.
    StartUp,
}

/// The staleness budget of one run at one pool, as measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Budget {
    /// The run.
    pub run: String,
    /// Rollouts that the next batch still lacks.
    pub missing_rollouts: u64,
    /// Seconds until the trainer can take that batch; 0 if it waits already.
    pub due_s: f64,
    /// Seconds of a train step; 0 before the first.
    pub step_s: f64,
    /// Tasks of the pool's stages that a rollout takes.
    pub tasks_per_rollout: f64,
    /// Tasks a second that the pool must do, for the batches to be there in time.
    pub needed_per_s: f64,
    /// Tasks a second that one busy worker does; 0 before any was measured.
    pub worker_per_s: f64,
}

/// What is known of one pool of workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolScale {
    /// The last decision.
    pub last: Scaled,
    /// The decisions before it, newest first; a few.
    #[serde(default)]
    pub earlier: Vec<Scaled>,
}

/// Decisions kept of a pool, besides the last.
const KEPT: usize = 16;

/// The reply of the API's `scale`: by pool.
pub type ScaleStatus = BTreeMap<String, PoolScale>;

impl PoolScale {
    /// Records a decision.
    pub fn record(pools: &mut BTreeMap<String, Self>, scaled: Scaled) {
        match pools.get_mut(&scaled.pool) {
            Some(pool) => {
                let before = std::mem::replace(&mut pool.last, scaled);
                pool.earlier.insert(0, before);
                pool.earlier.truncate(KEPT);
            }
            None => {
                pools.insert(scaled.pool.clone(), Self { last: scaled, earlier: Vec::new() });
            }
        }
    }
}

impl fmt::Display for ScaleReason {
    /// One line for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause {
            ScaleCause::NoRun => write!(f, "no run works")?,
            ScaleCause::Starting => write!(f, "a run makes its first version")?,
            ScaleCause::Gang => write!(f, "gangs have {} ranks", self.wanted)?,
            ScaleCause::Unmeasured => write!(f, "tasks wait, and no worker is measured yet")?,
            ScaleCause::Budget => write!(f, "{:.1} workers keep the trainer busy", self.wanted)?,
        }
        if let Some(budget) = &self.budget {
            let Budget { run, missing_rollouts, due_s, step_s, needed_per_s, worker_per_s, .. } = budget;
            let due = if *due_s > 0.0 { format!("due in {due_s:.1} s") } else { "due now".to_owned() };
            write!(f, ": {run} lacks {missing_rollouts} rollouts {due}")?;
            if *step_s > 0.0 {
                write!(f, ", a train step takes {step_s:.1} s")?;
            }
            write!(f, "; {needed_per_s:.1} tasks/s needed")?;
            if *worker_per_s > 0.0 {
                write!(f, ", a worker does {worker_per_s:.1}/s")?;
            }
        }
        let Some(limit) = self.limit else { return Ok(()) };
        write!(
            f,
            "; {}",
            match limit {
                ScaleLimit::Min => "min holds it up",
                ScaleLimit::Max => "max holds it down",
                ScaleLimit::Step => "one step at a time",
                ScaleLimit::CoolDown => "it was needed within the cool-down",
                ScaleLimit::Tasks => "there are no more tasks at once",
                ScaleLimit::StartUp => "another worker would be ready too late",
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_tells_its_figures_in_one_line() {
        let budget = Budget {
            run: "lake".into(),
            missing_rollouts: 128,
            due_s: 2.5,
            step_s: 4.0,
            tasks_per_rollout: 9.0,
            needed_per_s: 460.8,
            worker_per_s: 100.0,
        };
        let reason = ScaleReason {
            cause: ScaleCause::Budget,
            limit: Some(ScaleLimit::Max),
            wanted: 4.608,
            budget: Some(budget),
        };
        assert_eq!(
            reason.to_string(),
            "4.6 workers keep the trainer busy: lake lacks 128 rollouts due in 2.5 s, a train step takes 4.0 s; \
             460.8 tasks/s needed, a worker does 100.0/s; max holds it down"
        );
    }
}
