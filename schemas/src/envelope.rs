//! A task as it travels: MessagePack with field names, so that a later version may add fields.

use bytes::Bytes;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::env_step::{EnvAction, EnvStepTask};
use crate::generate::GenerateTask;
use crate::ids::{PoolName, RunId, TaskKey};
use crate::publish_weights::PublishWeightsTask;
use crate::reward::RewardTask;
use crate::stage::Stage;
use crate::train_shard::{TrainShardTask, TrainWork};
use crate::trajectory::EntryRef;
use crate::version::PolicyVersion;

/// Work for one worker, whole in itself: any worker of the pool can do it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    /// The run.
    pub run: RunId,
    /// The task's name in the run.
    pub key: TaskKey,
    /// The workers meant.
    pub pool: PoolName,
    /// The version that staleness is counted from: the rollout's start version, or the version that was
    /// current when the task was put if the rollout has no token yet. Work below the run's floor is stale.
    pub version: PolicyVersion,
    /// Evaluation work: no staleness check, never trained.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evaluate: bool,
    /// What to do.
    pub body: TaskBody,
}

/// The stage's own part of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskBody {
    /// Sample a turn.
    Generate(GenerateTask),
    /// Reset or step an environment.
    EnvStep(EnvStepTask),
    /// Score a rollout.
    Reward(RewardTask),
    /// One rank's share of a step.
    TrainShard(TrainShardTask),
    /// Commit a version.
    PublishWeights(PublishWeightsTask),
}

impl Task {
    /// The stage whose workers do this task.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        self.key.stage()
    }

    /// A number that follows from what the task asks: of two tasks of the same name it is the same if they ask
    /// the same. The version that is stamped on it has no part in it, nor who should do it. Of what is stored elsewhere
    /// the checks count, so it is taken before the task is resolved.
    #[must_use]
    pub fn question(&self) -> u64 {
        let mut asked = Mixer::default();
        match &self.body {
            TaskBody::Generate(task) => {
                asked.add(task.seed);
                asked.add_checks(&task.prefix);
                task.context.iter().for_each(|token| asked.add(u64::from(*token)));
            }
            TaskBody::EnvStep(task) => {
                asked.add(task.seed);
                asked.add_checks(&task.prefix);
                if let EnvAction::Step { state, tokens } = &task.action
                    && task.prefix.is_empty()
                {
                    state.iter().for_each(|byte| asked.add(u64::from(*byte)));
                    tokens.iter().for_each(|token| asked.add(u64::from(*token)));
                }
            }
            TaskBody::Reward(task) => {
                asked.add(u64::from(task.success));
                for turn in &task.turns {
                    asked.add(turn.reward.to_bits());
                    asked.add(u64::from(turn.tokens));
                }
                asked.add_checks(&task.prefix);
                task.conversation.iter().for_each(|utterance| asked.add_bytes(utterance.text.as_bytes()));
            }
            TaskBody::TrainShard(task) => match &task.work {
                TrainWork::Initialise { seed, .. } => asked.add(*seed),
                TrainWork::Step { manifest, batch, .. } => {
                    asked.add_bytes(&manifest.0);
                    asked.add_bytes(&batch.sha256.0);
                }
            },
            // What stands is reported, whoever wrote it: the answer says what it is.
            TaskBody::PublishWeights(_) => {}
        }
        asked.0
    }

    /// Whether name and content speak of the same stage.
    #[must_use]
    pub const fn is_coherent(&self) -> bool {
        let body = match &self.body {
            TaskBody::Generate(_) => Stage::Generate,
            TaskBody::EnvStep(_) => Stage::EnvStep,
            TaskBody::Reward(_) => Stage::Reward,
            TaskBody::TrainShard(_) => Stage::TrainShard,
            TaskBody::PublishWeights(_) => Stage::PublishWeights,
        };
        body as u8 == self.stage() as u8
    }
}

/// Mixes content into a number. Stays the same for ever: outcomes in logs are compared by it.
#[derive(Default)]
pub(crate) struct Mixer(u64);

impl Mixer {
    pub(crate) const fn add(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.0 = mixed ^ (mixed >> 29);
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.add(u64::from(*byte)));
    }

    /// As one unit, eight bytes at a time.
    pub(crate) fn add_block(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    /// What the entries hold, wherever they are.
    fn add_checks(&mut self, entries: &[EntryRef]) {
        entries.iter().for_each(|entry| self.add(entry.check));
    }

    pub(crate) const fn finish(self) -> u64 {
        self.0
    }
}

/// Bytes that are no message of the type asked for.
#[derive(Debug, thiserror::Error)]
#[error("failed to decode {what} bytes={bytes}: {reason}")]
pub struct DecodeError {
    /// The message type.
    pub what: &'static str,
    /// Length of the input.
    pub bytes: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// MessagePack with field names.
///
/// # Panics
/// Never for the types of this crate: they hold nothing that MessagePack cannot express.
#[must_use]
pub fn encode<T: Serialize>(message: &T) -> Bytes {
    rmp_serde::to_vec_named(message).expect("messages hold only what MessagePack can express").into()
}

/// Reads a message.
///
/// # Errors
/// The bytes are cut short, have bytes left over, or hold another shape.
pub fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, DecodeError> {
    let fail = |reason: String| DecodeError { what, bytes: bytes.len(), reason };
    let mut rest = bytes;
    let mut reader = rmp_serde::Deserializer::new(&mut rest);
    reader.set_max_depth(64);
    let message = T::deserialize(&mut reader).map_err(|e| fail(e.to_string()))?;
    let left = rest.len();
    if left > 0 {
        return Err(fail(format!("{left} bytes follow the message")));
    }
    Ok(message)
}
