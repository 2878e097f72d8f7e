//! What a run asks of its workers: the rollouts that its next steps will consume. The autoscaler
//! reads it. Nothing here decides.

use std::collections::BTreeMap;

use millrace_schemas::api::RunState;
use millrace_schemas::{PolicyVersion, RunId, Stage};

use crate::fold::rollout::Group;
use crate::fold::state::{Run, State};
use crate::fold::status::outstanding_tasks;

/// The demand of one run that works.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Demand {
    /// The run; `None` only in a demand without one.
    pub run: Option<RunId>,
    /// It makes its first version.
    pub starting: bool,
    /// Ranks of its gang.
    pub ranks: u32,
    /// Rollouts that a step consumes.
    pub batch_rollouts: u64,
    /// Finished rollouts that wait for a step.
    pub ready_rollouts: u64,
    /// Steps that are neither done nor in training.
    pub steps_left: u64,
    /// The version that is being made; `None` between steps.
    pub makes: Option<PolicyVersion>,
    /// An evaluation is being played, for which the next step waits.
    pub evaluating: bool,
    /// Tasks that are queued or in flight, by stage.
    pub outstanding: BTreeMap<Stage, u64>,
    /// Tasks that a finished rollout took, by stage; a stage is missing until a rollout is finished.
    pub per_rollout: BTreeMap<Stage, f64>,
    /// The part of its turns that a rollout in play has, on average, from 0 to 1; 0 until a rollout is finished.
    pub played: f64,
}

impl Demand {
    /// Tasks of a stage that are queued or in flight.
    #[must_use]
    pub fn tasks(&self, stage: Stage) -> u64 {
        self.outstanding.get(&stage).copied().unwrap_or_default()
    }
}

/// The demands of all runs that work.
#[must_use]
pub fn of(state: &State) -> Vec<Demand> {
    state.runs.values().filter(|run| run.state.works()).map(of_run).collect()
}

fn of_run(run: &Run) -> Demand {
    let group = u64::from(run.spec.rollout.group_size);
    let (playing, turns_played) = in_play(run);
    let per_rollout = per_rollout(run, turns_played);
    let done = run.version().0 + u64::from(run.training.is_some());
    Demand {
        run: Some(run.spec.name.clone()),
        starting: run.state == RunState::Starting,
        ranks: run.spec.gang.ranks,
        batch_rollouts: group * u64::from(run.spec.rollout.groups_per_step),
        ready_rollouts: group * run.ready.len() as u64,
        steps_left: run.spec.steps.saturating_sub(done),
        makes: run.training.as_ref().map(|training| training.makes),
        evaluating: run.evaluation.is_some(),
        outstanding: outstanding_tasks(run),
        played: per_rollout
            .get(&Stage::Generate)
            .map_or(0.0, |turns| turns_played as f64 / playing.max(1) as f64 / turns)
            .min(1.0),
        per_rollout,
    }
}

/// The means over the rollouts that ended. Turns are counted when they are sampled, so those of the
/// rollouts that still play are taken off: at a run's start they are most of all.
fn per_rollout(run: &Run, turns_played: u64) -> BTreeMap<Stage, f64> {
    let books = &run.books;
    let group = u64::from(run.spec.rollout.group_size);
    let trained_now = run.training.as_ref().map_or(0, |training| training.groups.len() as u64);
    let ended = books.trained + books.dropped.values().sum::<u64>();
    let ended = ended + group * (run.ready.len() as u64 + trained_now);
    let played = books.counters.turns.saturating_sub(turns_played);
    if ended == 0 || played == 0 {
        return BTreeMap::new();
    }
    let turns = played as f64 / ended as f64;
    let rewards = run.spec.parts().map(|domain| domain.rewards.len()).max().unwrap_or_default();
    // Each turn is one step of the environment, after one reset.
    BTreeMap::from([(Stage::Generate, turns), (Stage::EnvStep, turns + 1.0), (Stage::Reward, rewards as f64)])
}

/// The rollouts in play, and the turns that they have together.
fn in_play(run: &Run) -> (u64, u64) {
    let ready = || run.ready.iter().filter_map(|number| run.groups.get(number));
    let groups = run.groups.len().saturating_sub(ready().count()) as u64;
    let turns = turns(run.groups.values()).saturating_sub(turns(ready()));
    (groups * u64::from(run.spec.rollout.group_size), turns)
}

fn turns<'a>(groups: impl Iterator<Item = &'a Group>) -> u64 {
    groups.flat_map(|group| &group.rollouts).map(|rollout| rollout.turns.len() as u64).sum()
}
