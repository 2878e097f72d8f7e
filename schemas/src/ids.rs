//! Identifiers, checked where they enter. All of them are single subject tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::limits;
use crate::stage::Stage;

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is empty or too long, or has a character that a subject token or an object path
    /// cannot have.
    #[error("{kind} value={value:?} may hold only a-z, 0-9, '-' and '_', 1 to {max} of them")]
    Name {
        /// The kind of identifier.
        kind: &'static str,
        /// The text.
        value: String,
        /// The longest allowed, in characters.
        max: usize,
    },
    /// The text is not a task key.
    #[error(
        "task key value={0:?} is not of the form g<group>r<rollout>a<attempt>-<e|s|w><number>, s<step>k<rank>a<attempt> or p<version>a<attempt>"
    )]
    TaskKey(String),
}

/// Whether a name has only a-z, 0-9, `-` and `_`, 1 to `max` of them.
pub(crate) fn is_name(value: &str, max: usize) -> bool {
    let ok = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'_';
    (1..=max).contains(&value.len()) && value.bytes().all(ok)
}

fn check(kind: &'static str, value: &str, max: usize) -> Result<(), IdError> {
    if !is_name(value, max) {
        return Err(IdError::Name { kind, value: value.chars().take(2 * max).collect(), max });
    }
    Ok(())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(#[schemars(regex(pattern = r"^[a-z0-9_-]+$"))] String);

        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(s: &str) -> Result<Self, IdError> {
                check($kind, s, $max)?;
                Ok(Self(s.to_owned()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let word = <Cow<'de, str>>::deserialize(d)?;
                word.parse().map_err(de::Error::custom)
            }
        }
    };
}

name_type!(
    /// One training job.
    RunId, "run", limits::MAX_RUN_NAME_CHARS
);
name_type!(
    /// The workers that serve one kind of work of a stage; the pool's tasks share a consumer.
    PoolName, "pool", limits::MAX_POOL_NAME_CHARS
);
name_type!(
    /// A part of a run's prompts.
    DomainName, "domain", limits::MAX_DOMAIN_NAME_CHARS
);
name_type!(
    /// One worker process.
    WorkerId, "worker", limits::MAX_WORKER_NAME_CHARS
);

/// One trajectory: rollout `index` of group `group`; `attempt` counts replacements of a lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct RolloutId {
    /// The group: counts up over the run, evaluation groups included.
    pub group: u64,
    /// Position in the group, from 0.
    pub index: u32,
    /// Number of the replacement, from 0.
    pub attempt: u32,
}

impl fmt::Display for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}r{}a{}", self.group, self.index, self.attempt)
    }
}

/// Names one task of a run. It follows from the coordinator's state alone, so queueing a task twice
/// is harmless: the server refuses the second while the first is queued, and the fold counts one
/// outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskKey {
    /// Reset (`turn` 0) or step number `turn` of a rollout's environment.
    EnvStep {
        /// The rollout.
        rollout: RolloutId,
        /// 0 resets; step `n` takes the action of turn `n`.
        turn: u32,
    },
    /// Sample turn `turn` (from 1) of a rollout.
    Generate {
        /// The rollout.
        rollout: RolloutId,
        /// The turn, from 1.
        turn: u32,
    },
    /// Score a finished rollout with the run's reward number `reward`.
    Reward {
        /// The rollout.
        rollout: RolloutId,
        /// Index into the run's list of rewards.
        reward: u32,
    },
    /// One rank's shard of the step that makes version `makes`.
    TrainShard {
        /// The version that the step makes; 0 makes the initial model.
        makes: u64,
        /// Rank in the gang.
        rank: u32,
        /// Attempt of the step, from 0.
        attempt: u32,
    },
    /// Commit version `version`.
    PublishWeights {
        /// The version to commit.
        version: u64,
        /// Attempt of the step, from 0.
        attempt: u32,
    },
}

impl TaskKey {
    /// The stage whose workers do this task.
    #[must_use]
    pub const fn stage(self) -> Stage {
        match self {
            Self::EnvStep { .. } => Stage::EnvStep,
            Self::Generate { .. } => Stage::Generate,
            Self::Reward { .. } => Stage::Reward,
            Self::TrainShard { .. } => Stage::TrainShard,
            Self::PublishWeights { .. } => Stage::PublishWeights,
        }
    }

    /// The rollout that the task belongs to; `None` for the steps that concern a whole version.
    #[must_use]
    pub const fn rollout(self) -> Option<RolloutId> {
        match self {
            Self::EnvStep { rollout, .. } | Self::Generate { rollout, .. } | Self::Reward { rollout, .. } => {
                Some(rollout)
            }
            Self::TrainShard { .. } | Self::PublishWeights { .. } => None,
        }
    }
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EnvStep { rollout, turn } => write!(f, "{rollout}-e{turn}"),
            Self::Generate { rollout, turn } => write!(f, "{rollout}-s{turn}"),
            Self::Reward { rollout, reward } => write!(f, "{rollout}-w{reward}"),
            Self::TrainShard { makes, rank, attempt } => write!(f, "s{makes}k{rank}a{attempt}"),
            Self::PublishWeights { version, attempt } => write!(f, "p{version}a{attempt}"),
        }
    }
}

/// Reads `<letter><number>` off the front of `rest`.
fn take<T: FromStr>(rest: &mut &str, letter: char) -> Option<T> {
    let tail = rest.strip_prefix(letter)?;
    let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
    let (digits, after) = tail.split_at(end);
    // A leading zero would be a second spelling of the same key.
    if digits.len() > 1 && digits.starts_with('0') {
        return None;
    }
    *rest = after;
    digits.parse().ok()
}

fn parse_key(mut s: &str) -> Option<TaskKey> {
    let rest = &mut s;
    let key = match rest.chars().next()? {
        'g' => {
            let rollout =
                RolloutId { group: take(rest, 'g')?, index: take(rest, 'r')?, attempt: take(rest, 'a')? };
            *rest = rest.strip_prefix('-')?;
            match rest.chars().next()? {
                'e' => TaskKey::EnvStep { rollout, turn: take(rest, 'e')? },
                's' => TaskKey::Generate { rollout, turn: take(rest, 's')? },
                'w' => TaskKey::Reward { rollout, reward: take(rest, 'w')? },
                _ => return None,
            }
        }
        's' => {
            TaskKey::TrainShard { makes: take(rest, 's')?, rank: take(rest, 'k')?, attempt: take(rest, 'a')? }
        }
        'p' => TaskKey::PublishWeights { version: take(rest, 'p')?, attempt: take(rest, 'a')? },
        _ => return None,
    };
    rest.is_empty().then_some(key)
}

impl FromStr for TaskKey {
    type Err = IdError;

    fn from_str(s: &str) -> Result<Self, IdError> {
        parse_key(s).ok_or_else(|| IdError::TaskKey(s.chars().take(64).collect()))
    }
}

impl Serialize for TaskKey {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TaskKey {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let word = <Cow<'de, str>>::deserialize(d)?;
        word.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for TaskKey {
    fn schema_name() -> Cow<'static, str> {
        "TaskKey".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": "^(g[0-9]+r[0-9]+a[0-9]+-[esw][0-9]+|s[0-9]+k[0-9]+a[0-9]+|p[0-9]+a[0-9]+)$",
        })
    }
}
