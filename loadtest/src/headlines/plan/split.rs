//! One simulated run of one split.

use std::cmp::Ordering;

use millrace_schemas::plan::{PlanRequest, Spread};
use serde::Serialize;

use crate::headlines::draw::Draw;
use crate::headlines::engine::DecodePace;
use crate::headlines::figures::Figures;
use crate::headlines::play::play;
use crate::headlines::scenario::{DeviceModel, Fleet, Role, Scenario, Workload};
use crate::headlines::timeline::Timeline;
use crate::virtual_time::in_virtual_time;

/// Rollouts of a batch in the first look: a simulated rollout costs as much of this machine's time as a
/// real one's way through the queue.
const COARSE_ROLLOUTS: u32 = 128;
/// Rollouts of a whole batch, at most; a greater one is simulated on a part of its slots.
pub(super) const WHOLE_ROLLOUTS: u32 = 512;
/// Rewards at once: they are no part of the question.
const REWARD_SLOTS: u32 = 65_536;

/// How many GPUs do what, and how far rollouts may be behind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Division {
    pub(super) generate: u32,
    pub(super) train: u32,
    /// They generate and train in turn.
    pub(super) both: u32,
    pub(super) alpha: f64,
}

/// What a simulated split gave. Shares are 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Split {
    pub(super) generate: u32,
    pub(super) train: u32,
    /// GPUs that do both in turn.
    pub(super) both: u32,
    pub(super) alpha: f64,
    /// Mean seconds of a step.
    pub(super) step_s: f64,
    /// Share of the time in which a GPU that generates decodes nothing.
    pub(super) generators_idle: f64,
    /// Share of the time in which a GPU that trains does not.
    pub(super) trainers_idle: f64,
    /// Share of the slots that decode.
    pub(super) slots_filled: f64,
    /// Rollouts trained on by staleness in versions; the shares add up to 1.
    pub(super) staleness: Vec<f64>,
    /// Share of the rollouts begun that were dropped.
    pub(super) dropped: f64,
    /// For the picture.
    #[serde(skip)]
    pub(super) timeline: Timeline,
}

impl Split {
    /// By step time; of equal ones, that which leaves more GPUs for training.
    pub(super) fn quicker(&self, other: &Self) -> Ordering {
        self.step_s.total_cmp(&other.step_s).then(self.generate.cmp(&other.generate))
    }

    /// Share of the time of all GPUs in which they do nothing.
    pub(super) fn idle(&self) -> f64 {
        let (generate, train) = (f64::from(self.generate + self.both), f64::from(self.train));
        (generate * self.generators_idle + train * self.trainers_idle) / (generate + train)
    }

    pub(super) fn mean_staleness(&self) -> f64 {
        self.staleness.iter().zip(0_u32..).map(|(share, versions)| share * f64::from(versions)).sum()
    }
}

/// A batch and the slots that it is decoded on, both smaller by the same factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scale {
    groups: u32,
    slots: u32,
    redundant_groups: u32,
}

impl Scale {
    pub(super) fn coarse(request: &PlanRequest) -> Self {
        Self::of(request, COARSE_ROLLOUTS)
    }

    pub(super) fn whole(request: &PlanRequest) -> Self {
        Self::of(request, WHOLE_ROLLOUTS)
    }

    /// At most so many rollouts, as far as slots and groups can be divided.
    fn of(request: &PlanRequest, rollouts: u32) -> Self {
        let PlanRequest { groups, group_size, slots, redundant_groups, .. } = *request;
        let factor = u64::from(groups) * u64::from(group_size);
        let factor = factor.div_ceil(u64::from(rollouts)).clamp(1, u64::from(slots.min(groups))) as u32;
        Self { groups: groups / factor, slots: slots / factor, redundant_groups: redundant_groups / factor }
    }

    /// Simulates a division.
    ///
    /// # Errors
    /// The run fails or does not end.
    pub(super) fn play(self, request: &PlanRequest, division: Division) -> anyhow::Result<Split> {
        let request = PlanRequest {
            groups: self.groups,
            slots: self.slots,
            redundant_groups: self.redundant_groups,
            ..request.clone()
        };
        let (scenario, fleet) = (scenario(&request, division), fleet(&request, division));
        let figures: Figures = in_virtual_time(play(&scenario, &fleet, request.seed))?;
        let trained = figures.staleness.iter().sum::<u64>().max(1) as f64;
        Ok(Split {
            generate: division.generate,
            train: division.train,
            both: division.both,
            alpha: division.alpha,
            step_s: figures.step_s,
            generators_idle: figures.generators_idle.clamp(0.0, 1.0),
            trainers_idle: figures.trainers_idle.clamp(0.0, 1.0),
            slots_filled: figures.filled,
            staleness: figures.staleness.iter().map(|count| *count as f64 / trained).collect(),
            dropped: figures.dropped_share,
            timeline: figures.timeline,
        })
    }
}

fn fleet(request: &PlanRequest, division: Division) -> Fleet {
    let Division { generate, train, both, alpha } = division;
    Fleet {
        name: format!("{generate} generate, {train} train, {both} in turn"),
        role: Role::Ours,
        alpha,
        generate,
        train,
        both,
        slots: request.slots,
        lockstep: false,
        pinned: false,
        redundant_groups: request.redundant_groups,
        patience_s: request.patience_s,
        reward_slots: REWARD_SLOTS,
        resets_hang: 0.0,
        biased_because: None,
    }
}

fn scenario(request: &PlanRequest, division: Division) -> Scenario {
    // A window's worth of steps to fill the window, two to measure, and one in which it runs empty.
    let window = division.alpha.ceil() as u64 + 1;
    let (warm, measured, cool) = (window + 1, (2 * window).max(4), window);
    Scenario {
        name: request.run.clone(),
        claim: String::new(),
        published: String::new(),
        goal: 1.0,
        assumptions: vec![],
        same_hardware: false,
        workload: Workload {
            gpus: request.gpus,
            steps: warm + measured + cool,
            warm,
            cool,
            groups: request.groups,
            group_size: request.group_size,
            turns: draw(&request.turns),
            tokens: draw(&request.tokens),
            prompt_sigma: 0.0,
            reset_s: draw(&request.env_s),
            step_s: draw(&request.env_s),
            reward_s: Draw::Constant { value: request.reward_s },
            filtered: 0.0,
            train_gpu_s: request.train_gpu_s,
            train_overhead_s: request.train_step_s,
        },
        device: DeviceModel {
            decode: pace(request),
            reload_s: request.load_s,
            // Weights change places once a step, as if they were loaded.
            switch_s: request.load_s,
            gpus_per_worker: 1,
            one_trainer: true,
        },
        fleets: vec![],
    }
}

/// An iteration's time grows with its sequences, from that of one to that of all slots.
fn pace(request: &PlanRequest) -> DecodePace {
    let (all_ms, one_ms) = (1e3 / request.slot_tokens_per_s, 1e3 / request.lone_tokens_per_s);
    let per_sequence_ms =
        if request.slots > 1 { (all_ms - one_ms) / f64::from(request.slots - 1) } else { 0.0 };
    DecodePace { base_ms: one_ms - per_sequence_ms, per_sequence_ms }
}

pub(super) fn draw(spread: &Spread) -> Draw {
    match spread {
        Spread::LogNormal { median, sigma: 0.0, .. } => Draw::Constant { value: *median },
        Spread::LogNormal { median, sigma, most } => {
            Draw::LogNormal { median: *median, sigma: *sigma, most: *most }
        }
        Spread::Quantiles { values } => Draw::Quantiles { values: values.clone().into() },
    }
}
