//! A task as it travels: MessagePack with field names, so that a later version may add fields.

use std::cell::Cell;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::env_step::{EnvAction, EnvStepTask};
use crate::event::Event;
use crate::generate::GenerateTask;
use crate::ids::{PoolName, RunId, TaskKey};
use crate::publish_weights::PublishWeightsTask;
use crate::reward::RewardTask;
use crate::stage::Stage;
use crate::train_shard::{TrainShardTask, TrainWork};
use crate::trajectory::EntryRef;
use crate::version::PolicyVersion;

/// Work for one worker. It is self-contained: any worker of the pool can do it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    /// The run.
    pub run: RunId,
    /// The task's key in the run.
    pub key: TaskKey,
    /// The pool whose workers do it.
    pub pool: PoolName,
    /// The version from which staleness is counted: the rollout's start version or, if it has no
    /// token yet, the version that was current when the task was queued. Work below the run's floor
    /// is stale.
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
    /// One rank's shard of a step.
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

    /// The request fingerprint: a hash of what the task requests. Two tasks of the same key have
    /// the same fingerprint if they request the same. It does not depend on the stamped version or
    /// on the pool. Content that is stored elsewhere enters by its checksums, so compute it before
    /// the task is resolved.
    #[must_use]
    pub fn request_fingerprint(&self) -> u64 {
        let mut fingerprint = Mixer::default();
        match &self.body {
            TaskBody::Generate(task) => {
                fingerprint.add(task.seed);
                fingerprint.add_checks(&task.prefix);
                task.context.iter().for_each(|token| fingerprint.add(u64::from(*token)));
            }
            TaskBody::EnvStep(task) => {
                fingerprint.add(task.seed);
                fingerprint.add_checks(&task.prefix);
                if let EnvAction::Step { state, tokens } = &task.action
                    && task.prefix.is_empty()
                {
                    state.iter().for_each(|byte| fingerprint.add(u64::from(*byte)));
                    tokens.iter().for_each(|token| fingerprint.add(u64::from(*token)));
                }
            }
            TaskBody::Reward(task) => {
                fingerprint.add(u64::from(task.success));
                for turn in &task.turns {
                    fingerprint.add(turn.reward.to_bits());
                    fingerprint.add(u64::from(turn.tokens));
                }
                fingerprint.add_checks(&task.prefix);
                task.conversation
                    .iter()
                    .for_each(|utterance| fingerprint.add_bytes(utterance.text.as_bytes()));
            }
            TaskBody::TrainShard(task) => match &task.work {
                TrainWork::Initialise { seed, .. } => fingerprint.add(*seed),
                TrainWork::Step { manifest, batch, .. } => {
                    fingerprint.add_bytes(&manifest.0);
                    fingerprint.add_bytes(&batch.sha256.0);
                }
            },
            // A commit reports the manifest that exists, so its outcome identifies itself.
            TaskBody::PublishWeights(_) => {}
        }
        fingerprint.0
    }

    /// Whether key and body are of the same stage.
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

/// A hash of content. It must never change: outcomes in old logs are compared by it.
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

    /// Adds length and content, eight bytes at a time.
    pub(crate) fn add_block(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    /// Adds the entries' checksums.
    fn add_checks(&mut self, entries: &[EntryRef]) {
        entries.iter().for_each(|entry| self.add(entry.check));
    }

    pub(crate) const fn finish(self) -> u64 {
        self.0
    }
}

/// Bytes that are not a message of the expected type.
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

/// Bytes of the buffer that a thread keeps between two messages, at most.
const KEPT: usize = 1 << 20;

thread_local! {
    /// The buffer of the thread's last message, for the next one: a new one would be copied each time that it grows.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// MessagePack with field names.
///
/// # Panics
/// Never for the types of this crate: they hold nothing that MessagePack cannot express.
#[must_use]
pub fn encode<T: Serialize>(message: &T) -> Bytes {
    let mut buffer = BUFFER.take();
    buffer.clear();
    let mut writer = rmp_serde::Serializer::new(&mut buffer).with_struct_map();
    message.serialize(&mut writer).expect("messages hold only what MessagePack can express");
    let bytes = Bytes::copy_from_slice(&buffer);
    if buffer.capacity() <= KEPT {
        BUFFER.set(buffer);
    }
    bytes
}

// The two messages that every step of a rollout passes through. These functions are compiled here, in one unit; what is
// generic, or async, is compiled where it is used.
macro_rules! compiled_here {
    ($message:ty, $what:literal) => {
        impl $message {
            /// As it travels: [`encode`].
            #[must_use]
            pub fn to_bytes(&self) -> Bytes {
                encode(self)
            }

            /// Reads it: [`decode`].
            ///
            /// # Errors
            /// As [`decode`].
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
                decode($what, bytes)
            }
        }
    };
}
compiled_here!(Task, "task");
compiled_here!(Event, "event");

/// Decodes a message.
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
