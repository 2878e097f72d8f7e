//! What the workers of a fleet share: how long everything takes, and what happened when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_schemas::RolloutId;
use tokio::time::Instant;

use super::draw::{Draw, unit};
use super::lockstep::Lockstep;
use super::scenario::{DeviceModel, Fleet, Workload};

/// The model of a fleet at work.
pub(super) struct Plant {
    pub(super) seed: u64,
    pub(super) workload: Workload,
    pub(super) device: DeviceModel,
    pub(super) fleet: Fleet,
    pub(super) lockstep: Option<Lockstep>,
    journal: Mutex<Journal>,
}

/// What happened when.
#[derive(Default)]
pub(super) struct Journal {
    /// What was offered, in the order in which it was begun.
    pub(super) offered: Vec<(RolloutId, Demand)>,
    /// What was trained on, by the version that it made, from 1.
    pub(super) trained: BTreeMap<u64, Vec<RolloutId>>,
    /// When each version was published.
    pub(super) published: BTreeMap<u64, Instant>,
    /// Seconds of rewards, over all slots.
    pub(super) rewards_s: f64,
    /// Seconds of training, over all trainers.
    pub(super) trained_s: f64,
    /// From when to when the gang trained.
    pub(super) train_spans: Vec<(Instant, Instant)>,
    /// When a reset hung, so that it does so once.
    hung: BTreeSet<RolloutId>,
}

/// What a rollout asks of the fleet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Demand {
    /// Tokens of all turns.
    pub(super) tokens: f64,
    /// Seconds of its environment and its reward.
    pub(super) elsewhere_s: f64,
}

impl Plant {
    pub(super) fn new(seed: u64, workload: Workload, device: DeviceModel, fleet: Fleet) -> Self {
        let lockstep = fleet.lockstep.then(Lockstep::new);
        Self { seed, workload, device, fleet, lockstep, journal: Mutex::default() }
    }

    pub(super) fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When this version was published.
    pub(super) fn published(&self, version: u64) -> Option<Instant> {
        self.journal().published.get(&version).copied()
    }

    pub(super) fn turns(&self, id: RolloutId) -> u8 {
        self.workload.turns.of(self.seed, &format!("{id} turns")).round().clamp(1.0, 250.0) as u8
    }

    pub(super) fn tokens(&self, id: RolloutId, turn: u32) -> f64 {
        let drawn = self.workload.tokens.of(self.seed, &format!("{id} tokens {turn}"));
        (drawn * self.prompt_factor(id)).min(self.workload.tokens.most()).ceil().max(1.0)
    }

    /// By how much all turns of a prompt are longer than usual.
    fn prompt_factor(&self, id: RolloutId) -> f64 {
        let sigma = self.workload.prompt_sigma;
        let draw = Draw::LogNormal { median: 1.0, sigma, most: f64::INFINITY };
        if sigma > 0.0 { draw.of(self.seed, &format!("prompt {}", id.group)) } else { 1.0 }
    }

    /// Of turn 0, the reset.
    pub(super) fn env(&self, id: RolloutId, turn: u32) -> Duration {
        let draw = if turn == 0 { &self.workload.reset_s } else { &self.workload.step_s };
        Duration::from_secs_f64(draw.of(self.seed, &format!("{id} env {turn}")))
    }

    pub(super) fn reward(&self, id: RolloutId) -> Duration {
        Duration::from_secs_f64(self.workload.reward_s.of(self.seed, &format!("{id} reward")))
    }

    /// The score of a rollout: all of a group that says nothing are equal.
    pub(super) fn score(&self, id: RolloutId) -> f64 {
        let is_equal = unit(self.seed, &format!("{} says nothing", id.group)) < self.workload.filtered;
        if is_equal { 1.0 } else { f64::from(id.index % 2) }
    }

    /// Whether this reset hangs now. Its next try does not.
    pub(super) fn hangs(&self, id: RolloutId) -> bool {
        let hangs = self.fleet.resets_hang;
        hangs > 0.0 && unit(self.seed, &format!("{id} hangs")) < hangs && self.journal().hung.insert(id)
    }

    /// Notes that the rollout was begun.
    pub(super) fn begin(&self, id: RolloutId) {
        let demand = self.demand(id);
        self.journal().offered.push((id, demand));
    }

    /// All that the rollout asks for, whether it comes to it or not.
    fn demand(&self, id: RolloutId) -> Demand {
        let turns = u32::from(self.turns(id));
        let env: Duration = (0..=turns).map(|turn| self.env(id, turn)).sum();
        Demand {
            tokens: (1..=turns).map(|turn| self.tokens(id, turn)).sum(),
            elsewhere_s: (env + self.reward(id)).as_secs_f64(),
        }
    }

    /// Seconds of a train step.
    pub(super) fn train_s(&self) -> f64 {
        self.workload.train_gpu_s / f64::from(self.fleet.trainers()) + self.workload.train_overhead_s
    }

    /// Seconds of a rollout that is never in anybody's way, if engines are as slow as full ones.
    pub(super) fn alone_s(&self, demand: Demand) -> f64 {
        self.sampled_s(demand) + demand.elsewhere_s
    }

    /// Seconds of a slot that the rollout takes, if engines are as slow as full ones.
    pub(super) fn sampled_s(&self, demand: Demand) -> f64 {
        demand.tokens * self.device.decode.iteration_s(self.fleet.slots as usize)
    }
}
