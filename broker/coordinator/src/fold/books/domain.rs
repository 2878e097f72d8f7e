//! The books of one domain of a run that has several. The run's books count single rollouts, in
//! both places.

use std::collections::BTreeMap;

use millrace_schemas::api::Evaluation;
use millrace_schemas::event::AdoptedGroup;
use serde::{Deserialize, Serialize};

use super::DropReason;
use crate::fold::rollout::Group;

/// Counters of one domain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DomainBooks {
    /// Places of the mix that were given to it.
    pub places: u64,
    /// Training prompts issued.
    pub prompts: u64,
    /// Groups that a committed version was trained on.
    pub groups: u64,
    /// Rollouts started, including replacements.
    pub admitted: u64,
    /// Rollouts that a committed version was trained on.
    pub trained: u64,
    /// Trained rollouts that reached the goal.
    pub solved: u64,
    /// The sum of the trained rollouts' rewards.
    pub reward: f64,
    /// Trained rollouts; the index is the staleness, in versions.
    pub staleness: Vec<u64>,
    /// Rollouts dropped.
    pub dropped: BTreeMap<DropReason, u64>,
    /// Share of the last step's rollouts that reached the goal, and their mean reward.
    pub last: Option<(f64, f64)>,
    /// Evaluations so far.
    pub evaluations: Vec<Evaluation>,
}

impl DomainBooks {
    /// Counts the results of this domain's groups in a step. `weights` are those of its rewards.
    pub(crate) fn book_step<'a>(&mut self, groups: impl Iterator<Item = &'a Group>, weights: &[f64]) {
        let (mut count, mut solved, mut reward) = (0_u64, 0_u64, 0.0);
        for group in groups {
            self.groups += 1;
            for rollout in &group.rollouts {
                count += 1;
                solved += u64::from(rollout.success);
                reward += rollout.reward(weights.iter().copied());
            }
        }
        self.solved += solved;
        self.reward += reward;
        let mean = |sum: f64| sum / count.max(1) as f64;
        self.last = (count > 0).then(|| (mean(solved as f64), mean(reward))).or(self.last);
    }

    /// Counts the results of a group of a version that the log had lost. `is_new`: the log did not
    /// know the group.
    pub(crate) fn adopt_group(&mut self, group: &AdoptedGroup, is_new: bool) {
        self.groups += 1;
        // Its prompt was issued in the part of the log that was lost.
        self.prompts += u64::from(is_new);
        for rollout in &group.rollouts {
            self.solved += u64::from(rollout.success);
            self.reward += rollout.reward;
        }
    }
}
