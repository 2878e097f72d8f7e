//! The fastest split at one async ratio, from coarse to fine.

use std::collections::BTreeMap;

use millrace_schemas::plan::PlanRequest;

use super::split::{Division, Scale, Split, draw};

/// Splits of the first look, about.
const FIRST_LOOK: u32 = 8;
/// A climb on whole batches begins with this share of the GPUs.
const FIRST_STEP: u32 = 16;
/// A bound on a step's time is trusted this far: a finite run's mean work differs a little.
const TRUST: f64 = 0.97;
/// Draws of which a rollout's mean work is estimated.
const DRAWS: u32 = 4_096;

/// A search at one async ratio.
pub(super) struct Search<'a> {
    request: &'a PlanRequest,
    pub(super) alpha: f64,
    /// Seconds of a slot that a batch takes at the pace of a full engine.
    slot_s: f64,
    scale: Scale,
    /// What was simulated at this scale, by the GPUs that generate.
    played: BTreeMap<u32, Split>,
    /// Runs that were simulated.
    pub(super) simulated: usize,
}

impl<'a> Search<'a> {
    pub(super) fn new(request: &'a PlanRequest, alpha: f64) -> Self {
        let (turns, tokens) = (draw(&request.turns), draw(&request.tokens));
        let mean = |of: &dyn Fn(u32) -> f64| (0..DRAWS).map(of).sum::<f64>() / f64::from(DRAWS);
        let turns = mean(&|n| turns.of(request.seed, &format!("turns {n}")).round().max(1.0));
        let tokens = mean(&|n| tokens.of(request.seed, &format!("tokens {n}")));
        let rollouts = f64::from(request.groups) * f64::from(request.group_size);
        let slot_s = rollouts * turns * tokens / request.slot_tokens_per_s;
        let scale = Scale::coarse(request);
        Self { request, alpha, slot_s, scale, played: BTreeMap::new(), simulated: 0 }
    }

    /// Looks at small batches: splits on a grid first, those first whose bound is least, and a split
    /// whose bound is above the best so far cannot be better. Then the grid is halved around the best.
    /// At its end the best is simulated with whole batches.
    ///
    /// # Errors
    /// A run fails.
    pub(super) fn coarse(mut self) -> anyhow::Result<Self> {
        let most = self.most();
        let stride = (most / FIRST_LOOK).max(1);
        let balance = (1..=most).min_by(|one, other| self.bound_s(*one).total_cmp(&self.bound_s(*other)));
        let mut grid: Vec<u32> = (1..=most).step_by(stride as usize).chain([most]).chain(balance).collect();
        grid.sort_by(|one, other| self.bound_s(*one).total_cmp(&self.bound_s(*other)));
        for generate in grid {
            self.try_out(generate)?;
        }
        self.climb(stride)?;
        let best = self.best().generate;
        let whole = Scale::whole(self.request);
        if self.scale != whole {
            self.scale = whole;
            self.played.clear();
            self.try_out(best)?;
        }
        Ok(self)
    }

    /// Looks around the best with whole batches.
    ///
    /// # Errors
    /// A run fails.
    pub(super) fn fine(&mut self) -> anyhow::Result<()> {
        self.climb((self.most() / FIRST_STEP).max(1))
    }

    /// The fastest so far.
    ///
    /// # Panics
    /// Before anything was simulated.
    pub(super) fn best(&self) -> &Split {
        let best = self.played.values().min_by(|one, other| one.quicker(other));
        best.expect("the first split of a search is simulated, whatever its bound")
    }

    /// All that was simulated with whole batches.
    pub(super) fn splits(&self) -> impl Iterator<Item = &Split> {
        self.played.values()
    }

    fn climb(&mut self, mut stride: u32) -> anyhow::Result<()> {
        let most = self.most();
        loop {
            let best = self.best().generate;
            for generate in [best.saturating_sub(stride).max(1), (best + stride).min(most)] {
                self.try_out(generate)?;
            }
            match (self.best().generate == best, stride) {
                (false, _) => {}
                (true, 1) => return Ok(()),
                (true, _) => stride = (stride / 2).max(1),
            }
        }
    }

    fn try_out(&mut self, generate: u32) -> anyhow::Result<()> {
        let best_s = self.played.values().map(|split| split.step_s).fold(f64::INFINITY, f64::min);
        if self.played.contains_key(&generate) || TRUST * self.bound_s(generate) > best_s {
            return Ok(());
        }
        let train = self.request.gpus - generate;
        let division = Division { generate, train, both: 0, alpha: self.alpha };
        self.played.insert(generate, self.scale.play(self.request, division)?);
        self.simulated += 1;
        Ok(())
    }

    const fn most(&self) -> u32 {
        self.request.gpus - self.request.least_trainers
    }

    /// A step is not shorter: neither side is faster than when it never waits.
    fn bound_s(&self, generate: u32) -> f64 {
        let slots = f64::from(generate) * f64::from(self.request.slots);
        let trains_s = self.request.train_gpu_s / f64::from(self.request.gpus - generate);
        (self.slot_s / slots).max(trains_s + self.request.train_step_s)
    }
}
