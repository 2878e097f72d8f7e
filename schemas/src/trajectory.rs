//! Trajectories by reference. Observations and sampled turns stay in the log, where they were first
//! stored. Tasks and batches refer to them by position. A reader fetches the content, and verifies
//! it by the checksum.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::env_step::{EnvAction, EnvStepDone};
use crate::envelope::{Mixer, Task, TaskBody};
use crate::generate::GenerateDone;
use crate::limits::MAX_CARRIED_TOKENS;
use crate::outcome::{OutcomeBody, Returned};
use crate::train_shard::BatchRollout;

/// Reference to an outcome in the log: a turn or an observation. An array of its three numbers on
/// the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(from = "(u64, u32, u64)", into = "(u64, u32, u64)")]
#[schemars(with = "(u64, u32, u64)")]
pub struct EntryRef {
    /// Position in the log.
    pub seq: u64,
    /// Tokens that it adds to its trajectory.
    pub tokens: u32,
    /// Checksum of the outcome's content. An entry with another checksum is not the one referred
    /// to.
    pub check: u64,
}

impl From<(u64, u32, u64)> for EntryRef {
    fn from((seq, tokens, check): (u64, u32, u64)) -> Self {
        Self { seq, tokens, check }
    }
}

impl From<EntryRef> for (u64, u32, u64) {
    fn from(EntryRef { seq, tokens, check }: EntryRef) -> Self {
        (seq, tokens, check)
    }
}

/// Why a reference cannot be resolved. It is a failure of the machines, never of the policy: no
/// reward follows from it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// There is no entry at this position.
    #[error("log entry seq={0} is not there")]
    Missing(u64),
    /// The entry is another kind of outcome.
    #[error("log entry seq={0} is not the kind of outcome that its reference means")]
    OtherKind(u64),
    /// The turn has more or fewer log-probs than the batch has it.
    #[error("the turn in log entry seq={seq} has logprobs={found}, not {expected} as in its batch")]
    OtherLength {
        /// The entry.
        seq: u64,
        /// Log-probs of the turn.
        found: usize,
        /// Sampled tokens of the turn in the batch.
        expected: u64,
    },
}

impl EntryRef {
    /// The reference to a turn at `seq`.
    #[must_use]
    pub fn of_turn(seq: u64, done: &GenerateDone) -> Self {
        let mut mixer = Mixer::default();
        let logprobs = |logprobs: &[f32], mixer: &mut Mixer| {
            mixer.add(logprobs.len() as u64);
            logprobs.iter().for_each(|logprob| mixer.add(u64::from(logprob.to_bits())));
        };
        mixer.add(done.tokens.len() as u64);
        done.tokens.iter().for_each(|token| mixer.add(u64::from(*token)));
        logprobs(&done.logprobs, &mut mixer);
        logprobs(&done.uncut_logprobs, &mut mixer);
        for segment in &done.segments {
            mixer.add(segment.version.0);
            mixer.add(u64::from(segment.tokens));
        }
        Self { seq, tokens: done.tokens.len() as u32, check: mixer.finish() }
    }

    /// The reference to an environment's step at `seq`.
    #[must_use]
    pub fn of_step(seq: u64, done: &EnvStepDone) -> Self {
        let mut mixer = Mixer::default();
        mixer.add_block(&done.state);
        mixer.add(done.observation.len() as u64);
        done.observation.iter().for_each(|token| mixer.add(u64::from(*token)));
        mixer.add(done.reward.to_bits());
        for flag in [done.done, done.success, done.valid] {
            mixer.add(u64::from(flag));
        }
        done.said.iter().for_each(|said| mixer.add_block(said.text.as_bytes()));
        for (name, value) in &done.row {
            mixer.add_block(name.as_bytes());
            mixer.add_block(value.to_string().as_bytes());
        }
        done.follows.into_iter().for_each(|follows| mixer.add(u64::from(follows)));
        Self { seq, tokens: done.observation.len() as u32, check: mixer.finish() }
    }

    /// The reference to an outcome at `seq`; `None` if it is not part of a trajectory or of a turn.
    #[must_use]
    pub fn of(seq: u64, body: &OutcomeBody) -> Option<Self> {
        match body {
            OutcomeBody::Generate(done) => Some(Self::of_turn(seq, done)),
            OutcomeBody::EnvStep(done) => Some(Self::of_step(seq, done)),
            OutcomeBody::TurnBrief(brief) => Some(brief.entry(seq)),
            OutcomeBody::StepBrief(brief) => Some(brief.entry(seq)),
            OutcomeBody::Returned(returned) => returned.part().map(|part| part.entry(seq)),
            OutcomeBody::Reward(_)
            | OutcomeBody::TrainShard(_)
            | OutcomeBody::Void(_)
            | OutcomeBody::Lost(_)
            | OutcomeBody::PublishWeights(_) => None,
        }
    }
}

/// Resolves references.
pub trait Find: FnMut(&EntryRef) -> Option<Arc<OutcomeBody>> {}

impl<F: FnMut(&EntryRef) -> Option<Arc<OutcomeBody>>> Find for F {}

fn found(entry: &EntryRef, find: &mut impl Find) -> Result<Arc<OutcomeBody>, Unresolved> {
    find(entry).ok_or(Unresolved::Missing(entry.seq))
}

/// The tokens that an outcome adds to its trajectory.
fn tokens(body: &OutcomeBody) -> Option<&[u32]> {
    match body {
        OutcomeBody::Generate(done) => Some(&done.tokens),
        OutcomeBody::EnvStep(done) => Some(&done.observation),
        _ => None,
    }
}

impl Task {
    /// Log entries that the task refers to. The tokens of the last one may be included.
    #[must_use]
    pub fn prefix(&self) -> &[EntryRef] {
        match &self.body {
            TaskBody::Generate(task) => &task.prefix,
            TaskBody::EnvStep(task) => &task.prefix,
            TaskBody::Reward(task) => &task.prefix,
            TaskBody::TrainShard(_) | TaskBody::PublishWeights(_) => &[],
        }
    }

    /// Tokens of the last entry of the prefix, if the task includes them.
    #[must_use]
    pub fn carried(&self) -> &[u32] {
        match &self.body {
            TaskBody::Generate(task) => &task.latest,
            TaskBody::EnvStep(task) => match &task.action {
                EnvAction::Step { tokens, .. } if !task.prefix.is_empty() => tokens,
                EnvAction::Step { .. } | EnvAction::Reset => &[],
            },
            _ => &[],
        }
    }

    /// Includes the tokens of the last entry of the prefix in the task, so that the worker need not
    /// fetch them. Long entries are not included.
    pub fn carry(&mut self, latest: Vec<u32>) {
        if latest.len() > MAX_CARRIED_TOKENS {
            return;
        }
        match &mut self.body {
            TaskBody::Generate(task) if !task.prefix.is_empty() => task.latest = latest,
            TaskBody::EnvStep(task) if task.prefix.len() == 2 => {
                if let EnvAction::Step { tokens, .. } = &mut task.action {
                    *tokens = latest;
                }
            }
            _ => {}
        }
    }

    /// The entries that must be fetched before the task can be done.
    #[must_use]
    pub fn needs(&self) -> &[EntryRef] {
        let prefix = self.prefix();
        let at_hand = usize::from(!self.carried().is_empty());
        &prefix[..prefix.len().saturating_sub(at_hand)]
    }

    /// The entry of a turn that another worker began, which is needed whole.
    #[must_use]
    pub const fn begun(&self) -> Option<EntryRef> {
        match &self.body {
            TaskBody::Generate(task) => task.begun,
            _ => None,
        }
    }

    /// Whether only the tokens of the fetched entries are needed, but for [`Self::begun`].
    #[must_use]
    pub const fn needs_tokens_alone(&self) -> bool {
        matches!(self.body, TaskBody::Generate(_))
    }

    /// Takes the tokens of the first `entries` of the prefix, all of them needed, as known: they need not be
    /// fetched. Without effect on other tasks than a turn.
    pub fn know(&mut self, entries: usize, tokens: &[u32]) {
        if let TaskBody::Generate(task) = &mut self.body {
            task.prefix.drain(..entries);
            task.context.extend(tokens);
        }
    }

    /// Fills in what is stored elsewhere, so that the task is self-contained. Its request
    /// fingerprint is the one from before.
    ///
    /// # Errors
    /// An entry is not found; the task is then unusable.
    pub fn resolve(&mut self, mut find: impl Find) -> Result<(), Unresolved> {
        match &mut self.body {
            TaskBody::Generate(task) => {
                let prefix = std::mem::take(&mut task.prefix);
                let mut latest = std::mem::take(&mut task.latest);
                let stored = prefix.len() - usize::from(!latest.is_empty() && !prefix.is_empty());
                for entry in &prefix[..stored] {
                    let body = found(entry, &mut find)?;
                    task.context.extend(tokens(&body).ok_or(Unresolved::OtherKind(entry.seq))?);
                }
                task.context.append(&mut latest);
                if let Some(begun) = task.begun.take() {
                    let OutcomeBody::Returned(Returned { sampled: Some(sampled), .. }) =
                        &*found(&begun, &mut find)?
                    else {
                        return Err(Unresolved::OtherKind(begun.seq));
                    };
                    task.sampled = Some(sampled.clone());
                }
            }
            TaskBody::EnvStep(task) => {
                let prefix = std::mem::take(&mut task.prefix);
                let ([before, turn @ ..], EnvAction::Step { state, tokens: taken }) =
                    (prefix.as_slice(), &mut task.action)
                else {
                    return Ok(());
                };
                let OutcomeBody::EnvStep(done) = &*found(before, &mut find)? else {
                    return Err(Unresolved::OtherKind(before.seq));
                };
                state.clone_from(&done.state);
                if let [turn] = turn
                    && taken.is_empty()
                {
                    let body = found(turn, &mut find)?;
                    *taken = tokens(&body).ok_or(Unresolved::OtherKind(turn.seq))?.to_vec();
                }
            }
            TaskBody::Reward(task) => {
                for (entry, index) in std::mem::take(&mut task.prefix).iter().zip(0..) {
                    let OutcomeBody::EnvStep(done) = &*found(entry, &mut find)? else {
                        return Err(Unresolved::OtherKind(entry.seq));
                    };
                    task.conversation.extend(done.said.iter().cloned());
                    if index == 0 {
                        task.row.clone_from(&done.row);
                    }
                }
            }
            TaskBody::TrainShard(_) | TaskBody::PublishWeights(_) => {}
        }
        Ok(())
    }
}

impl BatchRollout {
    /// Fills in tokens and log-probs that are stored elsewhere.
    ///
    /// # Errors
    /// An entry is not found; the rollout is then unusable.
    pub fn resolve(&mut self, mut find: impl Find) -> Result<(), Unresolved> {
        let Some(stored) = self.stored.take() else { return Ok(()) };
        // Turns of the rollout that it continues are context.
        let first_own = stored.entries.len() / 2 - self.turns.len().min(stored.entries.len() / 2);
        let mut turns = self.turns.iter_mut();
        for (entry, index) in stored.entries.iter().zip(0..) {
            let body = found(entry, &mut find)?;
            let sampled = index % 2 == 1;
            match &*body {
                OutcomeBody::EnvStep(done) if !sampled => self.tokens.extend(&done.observation),
                OutcomeBody::Generate(done) if sampled => {
                    if index / 2 >= first_own
                        && let Some(turn) = turns.next()
                    {
                        let logprobs =
                            if stored.uncut_logprobs { &done.uncut_logprobs } else { &done.logprobs };
                        // Other ranks of a gang go by the batch alone, so they must agree.
                        let (seq, found, expected) = (entry.seq, logprobs.len(), turn.tokens());
                        if found as u64 != expected {
                            return Err(Unresolved::OtherLength { seq, found, expected });
                        }
                        turn.at = self.tokens.len() as u32;
                        turn.logprobs.clone_from(logprobs);
                    }
                    self.tokens.extend(&done.tokens);
                }
                _ => return Err(Unresolved::OtherKind(entry.seq)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Finish, Segment};
    use crate::version::PolicyVersion;

    fn turn(tokens: &[u32], logprob: f32) -> GenerateDone {
        GenerateDone {
            tokens: tokens.to_vec(),
            logprobs: vec![logprob; tokens.len()],
            segments: vec![Segment { version: PolicyVersion(3), tokens: tokens.len() as u32 }],
            finish: Finish::Stop,
            ..GenerateDone::begun(0)
        }
    }

    #[test]
    fn the_check_follows_from_the_content_and_not_from_the_position() {
        let check = |done: &GenerateDone, seq| EntryRef::of_turn(seq, done).check;
        let done = turn(&[1, 2], -0.5);
        assert_eq!(check(&done, 1), check(&done, 9));
        assert_ne!(check(&done, 1), check(&turn(&[1, 3], -0.5), 1));
        assert_ne!(check(&done, 1), check(&turn(&[1, 2], -0.25), 1));
        let step = EnvStepDone { state: vec![0; 9], ..EnvStepDone::default() };
        let longer = EnvStepDone { state: vec![0; 10], ..EnvStepDone::default() };
        assert_ne!(EntryRef::of_step(1, &step), EntryRef::of_step(1, &longer));
        // Checksums are in snapshots, tasks and batches: the function must never change.
        assert_eq!(check(&done, 1), CHECK_OF_TURN);
        assert_eq!(EntryRef::of_step(1, &step).check, CHECK_OF_STEP);
    }

    const CHECK_OF_TURN: u64 = 1_321_080_568_927_324_721;
    const CHECK_OF_STEP: u64 = 539971721463984015;
}
