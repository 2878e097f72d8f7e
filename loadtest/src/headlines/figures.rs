//! The figures of one run of one fleet.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use millrace_coordinator::fold::books::{Books, DropReason};
use serde::Serialize;

use super::lockstep::QUIET;
use super::plant::{Demand, Journal, Plant};
use super::play::Meters;
use super::theory::{Bound, Premises, SameDistribution};
use super::timeline::Timeline;

/// Seconds a step that tasks take through the queue, the coordinator's ticks among them.
const QUEUE_S: f64 = 1.5;

/// What one run gave. Shares are 0 to 1, and of the measured steps.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    pub(super) fleet: String,
    pub(super) seed: u64,
    /// Mean seconds of a measured step.
    pub(super) step_s: f64,
    /// Share of the generators' time in which they decoded nothing.
    pub(super) generators_idle: f64,
    /// Share of the trainers' time in which they did not train.
    pub(super) trainers_idle: f64,
    /// Share of the slots of the generators' time that decoded.
    pub(super) filled: f64,
    /// Share of the time of reward slots in which they scored.
    pub(super) rewards_busy: f64,
    /// Rollouts dropped, by reason; over the whole run.
    pub(super) dropped: BTreeMap<&'static str, u64>,
    /// Share of the rollouts begun that were dropped.
    pub(super) dropped_share: f64,
    /// Rollouts trained on by staleness, over the whole run: the index is the staleness in versions.
    pub(super) staleness: Vec<u64>,
    /// The longest rollout that was begun over the median, in tokens.
    pub(super) tail: f64,
    pub(super) premises: Premises,
    pub(super) bounds: Vec<Bound>,
    /// Whether what was trained on is distributed as what was offered: tokens and the environment's time.
    pub(super) lengths: SameDistribution,
    /// Why it is not, where the scenario expects that.
    pub(super) biased_because: Option<String>,
    /// For the picture; too long for a table.
    #[serde(skip)]
    pub(super) timeline: Timeline,
}

impl Figures {
    /// The figures of a run that is over, and used `meters` in so many seconds.
    ///
    /// # Errors
    /// A version was not published.
    pub(super) fn of(
        plant: &Plant,
        books: &Books,
        (from, to): (u64, u64),
        (meters, seconds): (Meters, f64),
    ) -> anyhow::Result<Self> {
        let at = |version| plant.published(version).context("a version was not published");
        let steps = (to - from) as f64;
        let step_s = (at(to)? - at(from)?).as_secs_f64() / steps;
        let (journal, fleet) = (plant.journal(), &plant.fleet);
        let premises = premises(plant, &journal, steps);
        let of_time = |used: f64, count: u32| used / (seconds * f64::from(count.max(1)));
        let trained = of_time(meters.trained_s, 1);
        // Where GPUs do both, they are no generators while they train.
        let generates = if fleet.both > 0 { 1.0 - trained } else { 1.0 };
        let dropped: BTreeMap<&'static str, u64> =
            books.dropped.iter().map(|(reason, count)| (DropReason::name(*reason), *count)).collect();
        let busy = of_time(meters.engines.busy_s, fleet.generators());
        Ok(Self {
            fleet: fleet.name.clone(),
            seed: plant.seed,
            step_s,
            generators_idle: if fleet.both > 0 { 1.0 - busy - trained } else { 1.0 - busy },
            trainers_idle: if fleet.both > 0 { 1.0 - busy - trained } else { 1.0 - trained },
            filled: of_time(meters.engines.slots_s, fleet.generators() * fleet.slots) / generates,
            rewards_busy: of_time(meters.rewards_s, fleet.reward_slots),
            dropped_share: books.dropped.values().sum::<u64>() as f64 / books.admitted.max(1) as f64,
            dropped,
            staleness: books.staleness.clone(),
            tail: tail(&journal),
            bounds: premises.bounds(step_s),
            premises,
            lengths: lengths(plant, &journal, (from, to)),
            biased_because: fleet.biased_because.clone(),
            timeline: Timeline::default(),
        })
    }

    /// What theory says and this run contradicts.
    pub(super) fn findings(&self) -> Vec<String> {
        let (fleet, seed) = (&self.fleet, self.seed);
        let broken =
            self.bounds.iter().filter(|bound| bound.is_broken()).map(|Bound { name, bound_s, .. }| {
                format!(
                    "fleet={fleet:?} seed={seed}: a step takes {:.1} s, the bound {name} is {bound_s:.1} s",
                    self.step_s
                )
            });
        let SameDistribution { distance, p, sizes, tail, tail_sigmas } = self.lengths;
        let biased = (!self.is_as_expected()).then(|| {
            format!(
                "fleet={fleet:?} seed={seed}: what is trained on is not distributed as what is offered: \
                 Kolmogorov–Smirnov distance {distance:.3}, p = {p:.1e}, sizes {sizes:?}; of the longest hundredth \
                 {tail:.2} of its share ({tail_sigmas:.1} standard deviations)"
            )
        });
        broken.chain(biased).collect()
    }

    /// No lengths are favoured, or the scenario expects that.
    pub(super) fn is_as_expected(&self) -> bool {
        !self.lengths.is_refused() || self.biased_because.is_some()
    }
}

fn premises(plant: &Plant, journal: &Journal, steps: f64) -> Premises {
    let (work, fleet) = (&plant.workload, &plant.fleet);
    let offered: Vec<Demand> = journal.offered.iter().map(|(_, demand)| *demand).collect();
    let rollouts = f64::from(work.groups * work.group_size);
    let sampled_s: f64 = offered.iter().map(|demand| plant.sampled_s(*demand)).sum();
    let trained: usize = journal.trained.values().map(Vec::len).sum();
    let turnover = if fleet.both > 0 { plant.device.switch_s } else { 0.0 };
    let turns = offered.len() as f64 / rollouts;
    let rounds = if fleet.lockstep { 2.0 * turns * QUIET.as_secs_f64() } else { 0.0 };
    Premises {
        rollouts,
        mean_s: sampled_s / offered.len().max(1) as f64,
        longest_s: offered.iter().map(|demand| plant.alone_s(*demand)).fold(0.0, f64::max),
        slots: f64::from(fleet.slots),
        gpus: f64::from(fleet.gpus()),
        generators: f64::from(fleet.generators()),
        trainers: f64::from(fleet.trainers()),
        in_turn: fleet.both > 0,
        train_gpu_s: work.train_gpu_s,
        overhead_s: plant.device.reload_s + turnover + work.train_overhead_s + QUEUE_S + rounds,
        alpha: fleet.alpha,
        steps,
        lockstep: fleet.lockstep,
        pinned: fleet.pinned,
        hangs: fleet.resets_hang > 0.0,
        extra: (offered.len() - trained) as f64,
    }
}

/// The longest over the median.
fn tail(journal: &Journal) -> f64 {
    let mut tokens: Vec<f64> = journal.offered.iter().map(|(_, demand)| demand.tokens).collect();
    tokens.sort_unstable_by(f64::total_cmp);
    let median = tokens.get(tokens.len() / 2).copied().unwrap_or(f64::NAN);
    tokens.last().copied().unwrap_or(f64::NAN) / median
}

/// What the measured steps trained on, beside all that was begun. The first is a part of the second, so the tests refuse
/// less often than their p and σ say.
fn lengths(plant: &Plant, journal: &Journal, (from, to): (u64, u64)) -> SameDistribution {
    let trained: BTreeSet<_> = journal.trained.range(from + 1..=to).flat_map(|(_, ids)| ids).collect();
    let length = |demand: &Demand| demand.tokens * plant.device.decode.iteration_s(1) + demand.elsewhere_s;
    let offered = journal.offered.iter().map(|(_, demand)| length(demand)).collect();
    let kept = journal.offered.iter().filter(|(id, _)| trained.contains(id));
    SameDistribution::of(kept.map(|(_, demand)| length(demand)).collect(), offered)
}
