//! Rollouts of set lengths with tokens and rewards that are drawn.

use std::path::Path;

use millrace_policy::random::Stream;
use millrace_schemas::blob::Sha;
use millrace_schemas::train_shard::{Batch, BatchGroup, BatchRollout, BatchTurn};
use millrace_schemas::{PolicyVersion, RolloutId};
use millrace_workers::torch::math::advantage::grpo::grpo;
use serde::Serialize;

use super::super::model::Shape;

/// The rollouts of every step, and the shape of the model that they are for.
#[derive(Debug)]
pub(in super::super) struct Data {
    pub(super) rollouts: Vec<Rollout>,
    rewards: Vec<f64>,
    shape: Shape,
}

/// One rollout, as the rival reads it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Rollout {
    pub(super) tokens: Vec<u32>,
    /// Tokens that were not sampled, at the beginning.
    pub(super) prompt: usize,
    pub(super) advantage: f64,
}

impl Data {
    /// A quarter of each rollout is its prompt.
    pub(super) fn new(model: &Path, short: usize, long: (usize, usize)) -> anyhow::Result<Self> {
        Ok(Self::drawn(Shape::read(model)?, 7, short, long))
    }

    /// Drawn by `seed`, for a model of this shape.
    pub(in super::super) fn drawn(shape: Shape, seed: u64, short: usize, long: (usize, usize)) -> Self {
        let mut random = Stream::new(seed);
        let mut lengths: Vec<usize> = (0..short).map(|_| 40 + random.below(161) as usize).collect();
        lengths.extend(std::iter::repeat_n(long.1, long.0));
        let rewards: Vec<f64> = lengths.iter().map(|_| random.unit()).collect();
        let rollouts = lengths.iter().zip(grpo(&rewards)).map(|(&length, advantage)| Rollout {
            tokens: (0..length).map(|_| random.below(shape.vocab_size as u64) as u32).collect(),
            prompt: (length / 4).max(1),
            advantage,
        });
        Self { rollouts: rollouts.collect(), rewards, shape }
    }

    pub(super) fn tokens(&self) -> usize {
        self.rollouts.iter().map(|rollout| rollout.tokens.len()).sum()
    }

    pub(super) fn sampled(&self) -> usize {
        self.rollouts.iter().map(|rollout| rollout.tokens.len() - rollout.prompt).sum()
    }

    /// Floating-point operations of one forward and backward that nobody can do without.
    pub(super) fn flops(&self) -> f64 {
        3.0 * self
            .shape
            .forward_flops(self.rollouts.iter().map(|rollout| rollout.tokens.len()), self.sampled())
    }

    /// The batch of a step on `base`, whose manifest has this hash. One group, all of whose log-probabilities are
    /// recorded as −1: the loss that is measured does not look at them.
    pub(in super::super) fn batch(&self, base: PolicyVersion, manifest: Sha) -> anyhow::Result<Batch> {
        let rollout = |(index, (rollout, &reward)): (usize, (&Rollout, &f64))| BatchRollout {
            id: RolloutId { group: 0, index: index as u32, attempt: 0 },
            start_version: base,
            reward,
            success: false,
            truncated: false,
            tokens: rollout.tokens.clone(),
            turns: vec![BatchTurn {
                at: rollout.prompt as u32,
                logprobs: vec![-1.0; rollout.tokens.len() - rollout.prompt],
                segments: Vec::new(),
                reward,
            }],
            forks: Vec::new(),
            stored: None,
        };
        let rollouts = self.rollouts.iter().zip(&self.rewards).enumerate().map(rollout).collect();
        Ok(Batch {
            run: "bench".parse()?,
            base,
            manifest,
            config: manifest,
            seed: base.0,
            temperature: 1.0,
            sample_below: None,
            groups: vec![BatchGroup { group: 0, domain: 0, rollouts }],
        })
    }
}
