//! The part of a turn or of an environment's step that decisions need, when the content is in the
//! object store. It is in the log beside the claim check, so that the fold never depends on the
//! object store.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::env_step::{EnvStepDone, TurnLimits};
use crate::generate::{Finish, GenerateDone, MalformedTurn, Segment, check_lengths};
use crate::outcome::{OutcomeBody, Returned};
use crate::trajectory::EntryRef;

/// A turn in brief.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TurnBrief {
    /// Checksum of the turn's content, see [`EntryRef::check`].
    pub check: u64,
    /// Tokens sampled.
    pub tokens: u32,
    /// The highest token id.
    pub highest: u32,
    /// Whether it also has log-probs under the uncut distribution.
    pub uncut: bool,
    /// The versions that sampled it, with token counts, in order.
    pub segments: Vec<Segment>,
    /// Why it ended.
    pub finish: Finish,
    /// Context tokens that the engine prefilled.
    pub prefill_tokens: u32,
    /// Context tokens that were in the engine's prefix cache.
    pub cached_tokens: u32,
}

/// An environment's step in brief.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepBrief {
    /// Checksum of the step's content, see [`EntryRef::check`].
    pub check: u64,
    /// Tokens of the observation.
    pub tokens: u32,
    /// The highest token id; 0 for an empty observation.
    pub highest: u32,
    /// The environment's own reward for the step.
    pub reward: f64,
    /// The episode is over.
    pub done: bool,
    /// The goal was reached.
    pub success: bool,
    /// The tokens were an action of this environment.
    pub valid: bool,
    /// Limits of the next turn.
    #[serde(default, skip_serializing_if = "TurnLimits::is_none")]
    pub limits: TurnLimits,
    /// The turn that the observation follows, see [`EnvStepDone::follows`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<u32>,
}

fn highest(tokens: &[u32]) -> u32 {
    tokens.iter().copied().max().unwrap_or(0)
}

impl TurnBrief {
    /// The brief of a complete turn.
    #[must_use]
    pub fn of(done: &GenerateDone) -> Self {
        let EntryRef { tokens, check, .. } = EntryRef::of_turn(0, done);
        Self {
            check,
            tokens,
            highest: highest(&done.tokens),
            uncut: !done.uncut_logprobs.is_empty(),
            segments: done.segments.clone(),
            finish: done.finish,
            prefill_tokens: done.prefill_tokens,
            cached_tokens: done.cached_tokens,
        }
    }

    /// The reference to the turn at `seq`.
    #[must_use]
    pub const fn entry(&self, seq: u64) -> EntryRef {
        EntryRef { seq, tokens: self.tokens, check: self.check }
    }

    /// Refuses the brief of a turn that could not be trained on.
    ///
    /// # Errors
    /// Lengths disagree or are beyond bounds.
    pub fn check(&self) -> Result<(), MalformedTurn> {
        let tokens = self.tokens as usize;
        check_lengths(tokens, tokens, &self.segments)
    }
}

impl StepBrief {
    /// The brief of a complete step.
    #[must_use]
    pub fn of(done: &EnvStepDone) -> Self {
        let EntryRef { tokens, check, .. } = EntryRef::of_step(0, done);
        let EnvStepDone { reward, done: over, success, valid, follows, .. } = *done;
        let (highest, limits) = (highest(&done.observation), done.limits.clone());
        Self { check, tokens, highest, reward, done: over, success, valid, limits, follows }
    }

    /// The reference to the step at `seq`.
    #[must_use]
    pub const fn entry(&self, seq: u64) -> EntryRef {
        EntryRef { seq, tokens: self.tokens, check: self.check }
    }
}

impl OutcomeBody {
    /// The brief of a part of a trajectory; `None` for other outcomes, and for what is in brief
    /// already.
    #[must_use]
    pub fn brief(&self) -> Option<Self> {
        match self {
            Self::Generate(done) => Some(Self::TurnBrief(TurnBrief::of(done))),
            Self::EnvStep(done) => Some(Self::StepBrief(StepBrief::of(done))),
            Self::Returned(Returned { reason, sampled: Some(sampled), .. }) => {
                let begun = Some(TurnBrief::of(sampled));
                Some(Self::Returned(Returned { reason: reason.clone(), sampled: None, begun }))
            }
            Self::TurnBrief(_)
            | Self::StepBrief(_)
            | Self::Reward(_)
            | Self::TrainShard(_)
            | Self::Void(_)
            | Self::Lost(_)
            | Self::PublishWeights(_)
            | Self::Returned(_) => None,
        }
    }

    /// The brief of a part of a trajectory, and its tokens if they are present.
    #[must_use]
    pub fn into_brief(self) -> (Self, Vec<u32>) {
        match (self.brief(), self) {
            (Some(brief), Self::Generate(done)) => (brief, done.tokens),
            (Some(brief), Self::EnvStep(done)) => (brief, done.observation),
            (_, body) => (body, Vec::new()),
        }
    }

    /// Whether it is in brief: its content is stored elsewhere.
    #[must_use]
    pub const fn is_brief(&self) -> bool {
        match self {
            Self::TurnBrief(_) | Self::StepBrief(_) => true,
            Self::Returned(returned) => returned.begun.is_some(),
            _ => false,
        }
    }
}
