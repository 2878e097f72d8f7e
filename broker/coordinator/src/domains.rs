//! The domains of a run that has several: whose the next group is, how many of each a batch takes, and what became of
//! each one's rollouts.
//!
//! The mix deals places, not groups: a place that is dealt to a domain stays its own, and a group that is dropped is
//! followed by another of the same domain. So the mix of what is trained is as asked, however many groups of one
//! domain are left out or lost.

use std::collections::BTreeMap;

use millrace_schemas::PolicyVersion;
use millrace_schemas::api::{DomainStatus, Evaluation, Ledger};
use millrace_schemas::event::AdoptedRollout;
use millrace_schemas::submit::{DomainSpec, mix};
use serde::{Deserialize, Serialize};

use crate::books::{DropReason, count_staleness};
use crate::rollout::Group;
use crate::state::Run;
use crate::status::by_reason;

/// One domain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DomainState {
    /// Places of the mix that were dealt to it.
    pub places: u64,
    /// Training prompts given out.
    pub prompts: u64,
    /// Groups that a committed version was trained on.
    pub groups: u64,
    /// Rollouts begun, replacements included.
    pub admitted: u64,
    /// Rollouts that a committed version was trained on.
    pub trained: u64,
    /// Those of them that reached the goal.
    pub solved: u64,
    /// The sum of their rewards.
    pub reward: f64,
    /// Those of them by staleness.
    pub staleness: Vec<u64>,
    /// Rollouts dropped.
    pub dropped: BTreeMap<DropReason, u64>,
    /// Of the last step's batch, the share that reached the goal and the mean reward.
    pub last: Option<(f64, f64)>,
    /// Evaluations so far.
    pub evaluations: Vec<Evaluation>,
}

/// What is counted of the domain of this number, if the run has several.
pub(crate) fn of(domains: &mut [DomainState], number: u32) -> Option<&mut DomainState> {
    domains.get_mut(number as usize)
}

/// Deals prompts to groups that are admitted one after another.
#[derive(Debug)]
pub(crate) struct Dealer {
    /// Groups of each domain that hold a place: playing, finished, in training or trained. Empty for a run with one.
    held: Vec<u64>,
}

impl Dealer {
    pub(crate) fn of(run: &Run) -> Self {
        let mut held: Vec<u64> = run.domains.iter().map(|domain| domain.groups).collect();
        if !held.is_empty() {
            let training =
                run.training.iter().flat_map(|training| training.groups.iter().map(|(_, group)| group));
            for group in run.groups.values().chain(training) {
                held[group.domain as usize] += 1;
            }
        }
        Self { held }
    }

    /// The domain of the next group and its prompt's number within that domain.
    pub(crate) fn next(&mut self, run: &mut Run) -> (u32, u64) {
        let number = run.next_prompt;
        run.next_prompt += 1;
        if self.held.is_empty() {
            return (0, number);
        }
        let vacant = run.domains.iter().zip(&self.held).position(|(domain, held)| domain.places > *held);
        let domain = vacant.unwrap_or_else(|| self.open(run));
        self.held[domain] += 1;
        let prompt = run.domains[domain].prompts;
        run.domains[domain].prompts += 1;
        (domain as u32, prompt)
    }

    /// Deals places until one is not filled yet; says whose.
    fn open(&self, run: &mut Run) -> usize {
        let shares = run.spec.shares();
        let mut places: Vec<u64> = run.domains.iter().map(|domain| domain.places).collect();
        loop {
            let domain = mix::deal(&shares, &mut places);
            run.domains[domain].places = places[domain];
            if places[domain] > self.held[domain] {
                return domain;
            }
        }
    }
}

/// How many groups of each domain the next batch takes: those whose places come next. Since the batches before took
/// theirs, what is trained is the mix as it was dealt, to the group.
#[must_use]
pub fn room(run: &Run) -> Vec<u64> {
    let batch = u64::from(run.spec.rollout.groups_per_step);
    if run.domains.is_empty() {
        return vec![batch];
    }
    let shares = run.spec.shares();
    let trained: Vec<u64> = run.domains.iter().map(|domain| domain.groups).collect();
    let mut dealt = trained.clone();
    for _ in 0..batch {
        mix::deal(&shares, &mut dealt);
    }
    dealt.iter().zip(&trained).map(|(dealt, trained)| dealt - trained).collect()
}

/// The group in play, if there is one, that holds no place since `domain` has more groups than places: the newest.
pub(crate) fn beyond_its_places(run: &Run, domain: u32) -> Option<u64> {
    let held = Dealer::of(run).held;
    let places = run.domains.get(domain as usize)?.places;
    let newest = run.groups.iter().rev().find(|(_, group)| group.domain == domain).map(|(id, _)| *id);
    newest.filter(|_| held[domain as usize] > places)
}

impl DomainState {
    /// Books a step's groups of this domain, with the weights of its rewards.
    pub(crate) fn book_step<'a>(
        &mut self,
        base: PolicyVersion,
        groups: impl Iterator<Item = &'a Group>,
        weights: &[f64],
    ) {
        let (mut count, mut solved, mut reward) = (0_u64, 0_u64, 0.0);
        for group in groups {
            self.groups += 1;
            for rollout in &group.rollouts {
                self.train_rollout(base, rollout.version());
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

    /// Books a rollout as trained on at `base`.
    pub(crate) fn train_rollout(&mut self, base: PolicyVersion, start: PolicyVersion) {
        count_staleness(&mut self.staleness, base, start);
        self.trained += 1;
    }

    /// Books a rollout of a version that the log had lost.
    pub(crate) fn adopt_rollout(&mut self, base: PolicyVersion, rollout: &AdoptedRollout) {
        self.train_rollout(base, rollout.start_version);
        self.solved += u64::from(rollout.success);
        self.reward += rollout.reward;
    }

    pub(crate) fn drop_rollout(&mut self, reason: DropReason) {
        *self.dropped.entry(reason).or_default() += 1;
    }

    /// Books as not dropped what was.
    pub(crate) fn take_back(&mut self, reason: DropReason) {
        let dropped = self.dropped.entry(reason).or_default();
        *dropped = dropped.saturating_sub(1);
    }
}

/// How each domain stands; empty for a run with one. Rollouts in flight are counted one by one, so that the balance is
/// a check.
#[must_use]
pub fn statuses(run: &Run) -> Vec<DomainStatus> {
    let total: u64 = run.spec.shares().iter().sum();
    let shares = run.spec.shares().into_iter().map(|share| share as f64 / total as f64);
    let status = |((domain, spec), (share, number)): ((&DomainState, &DomainSpec), (f64, u32))| {
        let training =
            run.training.iter().flat_map(|training| training.groups.iter().map(|(_, group)| group));
        let flying = run.groups.values().chain(training).filter(|group| group.domain == number);
        let mean = |sum: f64| sum / domain.trained.max(1) as f64;
        let (last_success, last_reward) = domain.last.unzip();
        DomainStatus {
            name: spec.name.clone(),
            share,
            groups: domain.groups,
            success: mean(domain.solved as f64),
            reward: mean(domain.reward),
            last_success,
            last_reward,
            staleness: domain.staleness.clone(),
            ledger: Ledger {
                admitted: domain.admitted,
                trained: domain.trained,
                dropped: by_reason(&domain.dropped),
                in_flight: flying.map(|group| group.rollouts.len() as u64).sum(),
            },
            evaluations: domain.evaluations.clone(),
        }
    };
    run.domains.iter().zip(&run.spec.domains).zip(shares.zip(0..)).map(status).collect()
}
