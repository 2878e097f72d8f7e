//! `train_shard`: one rank's shard of an optimiser step. A step is wholly described by its batch,
//! which is immutable, so it can be redone and gives the same weights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::blob::{BlobRef, Sha};
use crate::fork::{self, Fork};
use crate::generate::Segment;
use crate::ids::{RolloutId, RunId};
use crate::omit;
use crate::submit::{Algorithm, ModelSpec};
use crate::trajectory::EntryRef;
use crate::version::PolicyVersion;

/// One rank's shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainShardTask {
    /// This rank, below `world`.
    pub rank: u32,
    /// Ranks in the gang.
    pub world: u32,
    /// The gang's generation: members that made the step before under the same number keep their
    /// connections and their state. Incremented with each generation of a run; 0 if `world` is 1.
    #[serde(default)]
    pub gang: u64,
    /// Milliseconds that a rank waits for the others before the step is void; 0 if `world` is 1.
    #[serde(default)]
    pub timeout_ms: u64,
    /// What to compute.
    pub work: TrainWork,
}

/// What a step computes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrainWork {
    /// Make version 0.
    Initialise {
        /// The model to make.
        model: ModelSpec,
        /// Seeds the initial weights.
        seed: u64,
    },
    /// Train version `base` on `batch`.
    Step {
        /// The version trained on. The step makes the next.
        base: PolicyVersion,
        /// Hash of the manifest of `base`.
        manifest: Sha,
        /// A [`Batch`], encoded.
        batch: BlobRef,
        /// How to train.
        algorithm: Box<Algorithm>,
        /// The new version keeps its optimiser state: later versions can be trained on from there.
        #[serde(default = "yes")]
        checkpoint: bool,
        /// The weights of the new version may be stored as what changed since the anchor of `base`.
        #[serde(default, skip_serializing_if = "omit::is_default")]
        delta: bool,
        /// Hash of the manifest of version 0, the reference policy if the algorithm has a `kl`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reference: Option<Sha>,
    },
}

impl TrainWork {
    /// The version that it makes.
    #[must_use]
    pub const fn makes(&self) -> PolicyVersion {
        match self {
            Self::Initialise { .. } => PolicyVersion(0),
            Self::Step { base, .. } => base.next(),
        }
    }
}

const fn yes() -> bool {
    true
}

/// The manifest of a step: everything that the new weights depend on, besides device and build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Batch {
    /// The run.
    pub run: RunId,
    /// The version trained on.
    pub base: PolicyVersion,
    /// Hash of the manifest of `base`.
    pub manifest: Sha,
    /// Hash of the run file.
    pub config: Sha,
    /// Seeds all that the step draws, minibatches for example.
    pub seed: u64,
    /// The temperature that the rollouts were sampled at: the trainer's log-probs are under the
    /// same distribution, or every ratio would be wrong. 0 reads as 1, as in the recorded
    /// log-probabilities. Where unlikely tokens were cut off, both leave out the cut and nothing
    /// else.
    pub temperature: f64,
    /// Only tokens below this were drawn, as in
    /// [`Sampling::sample_below`](crate::generate::Sampling).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_below: Option<u32>,
    /// The groups, oldest first. `[B]`
    pub groups: Vec<BatchGroup>,
}

impl Batch {
    /// Whether all tokens are included.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        self.groups.iter().flat_map(|group| &group.rollouts).all(|rollout| rollout.stored.is_none())
    }
}

/// Rollouts of one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchGroup {
    /// The group's number.
    pub group: u64,
    /// Number of its domain in the run file; 0 for a run with one domain.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub domain: u32,
    /// Its rollouts by index. `[G]`
    pub rollouts: Vec<BatchRollout>,
}

/// One trajectory, as sampled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchRollout {
    /// The rollout.
    pub id: RolloutId,
    /// The version that sampled the first token.
    pub start_version: PolicyVersion,
    /// The weighted sum of its scores, finite.
    pub reward: f64,
    /// The goal was reached.
    pub success: bool,
    /// It was truncated: its last turn ended by length, or it took its most turns without reaching
    /// the goal.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub truncated: bool,
    /// Observations and turns in order: the tokens that were sampled, never re-tokenised text.
    /// `[T]`, empty until `stored` is resolved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<u32>,
    /// The sampled spans of `tokens`, in order, without overlap.
    pub turns: Vec<BatchTurn>,
    /// Turns that do not follow the one before them, in order. Tokens between such a turn and the one
    /// before it are its observation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forks: Vec<Fork>,
    /// Log entries of the tokens and their log-probs; `None` if they are included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredTrajectory>,
}

/// A trajectory by its log entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoredTrajectory {
    /// The first observation, then alternately turn and observation, up to the last turn.
    /// `[2·turns]`; entries before the rollout's own turns are those of the rollout that it
    /// continues.
    pub entries: Vec<EntryRef>,
    /// Training uses the turns' log-probs before unlikely tokens were cut off.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub uncut_logprobs: bool,
}

/// Tokens of a rollout that follow one another, as indices of its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// What other sequences have sampled and observed, in order.
    pub before: Vec<Range<usize>>,
    /// What comes after it and is this sequence's alone.
    pub own: Range<usize>,
}

impl Sequence {
    /// Tokens before its own.
    #[must_use]
    pub fn shared(&self) -> usize {
        self.before.iter().map(ExactSizeIterator::len).sum()
    }

    /// All its tokens, of those of its rollout.
    #[must_use]
    pub fn tokens<'a>(&self, all: &'a [u32]) -> Cow<'a, [u32]> {
        if self.before.is_empty() {
            return all[self.own.clone()].into();
        }
        let parts = self.before.iter().chain([&self.own]).map(|range| &all[range.clone()]);
        parts.collect::<Vec<_>>().concat().into()
    }
}

/// One sampled span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchTurn {
    /// Index of its first token in `tokens`, 1 or more; 0 while it is stored elsewhere.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub at: u32,
    /// Log-probability of each token under the policy that sampled it. `[N]`, empty while it is
    /// stored elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<f32>,
    /// The versions that sampled the tokens, in order; the counts add up to N.
    pub segments: Vec<Segment>,
    /// The environment's reward for the turn.
    pub reward: f64,
}

impl BatchRollout {
    /// Its tokens, observed and sampled, also while they are stored elsewhere.
    #[must_use]
    pub fn length(&self) -> usize {
        let stored =
            |stored: &StoredTrajectory| stored.entries.iter().map(|entry| entry.tokens as usize).sum();
        self.stored.as_ref().map_or(self.tokens.len(), stored)
    }

    /// Where each turn lies among its tokens, also while they are stored elsewhere. `[turns]`, fewer
    /// where its log entries have fewer.
    #[must_use]
    pub fn spans(&self) -> Vec<Range<usize>> {
        // Of a stored turn, the lengths of its segments are known.
        let sampled = |turn: &BatchTurn| match self.stored {
            None => turn.logprobs.len(),
            Some(_) => turn.tokens() as usize,
        };
        let span = |(at, turn): (usize, &BatchTurn)| at..at + sampled(turn);
        self.turns_at().into_iter().zip(&self.turns).map(span).collect()
    }

    fn turns_at(&self) -> Vec<usize> {
        let Some(stored) = &self.stored else {
            return self.turns.iter().map(|turn| turn.at as usize).collect();
        };
        let mut at = 0;
        let mut starts = Vec::new();
        for (entry, index) in stored.entries.iter().zip(0..) {
            if index % 2 == 1 {
                starts.push(at);
            }
            at += entry.tokens as usize;
        }
        // Turns of the rollout that it continues are context.
        starts.split_off(starts.len().saturating_sub(self.turns.len()))
    }

    /// The sequences of its tokens, in order: one, and another for each fork. `None` if its forks are
    /// malformed. `[1 + forks]`
    #[must_use]
    pub fn sequences(&self) -> Option<Vec<Sequence>> {
        let spans = self.spans();
        let end_of = |turn: u32| turn.checked_sub(1).map_or(0, |before| spans[before as usize].end);
        // A turn with its observation.
        let block = |turn: u32| end_of(turn - 1)..end_of(turn);
        let mut sequences = vec![Sequence { before: Vec::new(), own: 0..self.length() }];
        let mut last = 1;
        for fork in &self.forks {
            if fork.turn <= last || fork.follows >= fork.turn - 1 {
                return None;
            }
            let (at, from) = (spans.get(fork.turn as usize - 1)?.start, end_of(fork.turn - 1));
            // What follows none has nothing but its observation before it.
            if from >= at {
                return None;
            }
            let end = std::mem::replace(&mut sequences.last_mut()?.own.end, from);
            let before = fork::path(&self.forks, fork.turn).into_iter().map(block).collect();
            sequences.push(Sequence { before, own: from..end });
            last = fork.turn;
        }
        Some(sequences)
    }

    /// Tokens that were sampled and not observed.
    #[must_use]
    pub fn sampled_tokens(&self) -> u64 {
        self.turns.iter().map(BatchTurn::tokens).sum()
    }
}

impl BatchTurn {
    /// Tokens that were sampled.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.tokens)).sum()
    }
}

/// A named file of a version, by content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileRef {
    /// `model.safetensors`, `config.json`, `optimizer.safetensors`, …
    pub name: String,
    /// The content. Stored under this hash only where there is no `delta`.
    pub blob: BlobRef,
    /// How the content is stored as changes; `None` where it is stored whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<DeltaRef>,
}

/// A file as changes against an earlier one of the same length, which is stored whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeltaRef {
    /// The earlier file.
    pub anchor: BlobRef,
    /// What changed since.
    pub changes: BlobRef,
}

impl FileRef {
    /// A file that is stored whole.
    #[must_use]
    pub fn whole(name: impl Into<String>, blob: BlobRef) -> Self {
        Self { name: name.into(), blob, delta: None }
    }

    /// The blob that a delta against this file starts from.
    #[must_use]
    pub fn anchor(&self) -> BlobRef {
        self.delta.map_or(self.blob, |delta| delta.anchor)
    }

    /// The blobs that it is made of, in the object store.
    pub fn stored(&self) -> impl Iterator<Item = BlobRef> + use<> {
        let whole = self.delta.is_none().then_some(self.blob);
        whole.into_iter().chain(self.delta.into_iter().flat_map(|delta| [delta.anchor, delta.changes]))
    }

    /// Bytes that were written for it.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.delta.map_or(self.blob, |delta| delta.changes).bytes
    }
}

/// The outcome of a rank's shard. Its blobs are in the object store before it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainShardDone {
    /// The files of the new version that this rank wrote.
    pub files: Vec<FileRef>,
    /// Means over the batch, by name: `loss`, `entropy`, `grad_norm`, `kl_k1`, `kl_k3`,
    /// `clip_share`, …
    pub metrics: BTreeMap<String, f64>,
}

/// A gang lost a member during a step, or its rendezvous failed: the attempt is void.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepVoid {
    /// What this rank observed, for people.
    pub reason: String,
}
