//! Who takes part.

use millrace_schemas::Stage;
use serde::Serialize;

/// A role; each has one or more processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// nats-server.
    Server,
    /// `millrace coordinator`: a leader and a standby.
    Coordinator,
    /// A worker that samples.
    Generate,
    /// A worker that steps environments and scores.
    Env,
    /// A worker that trains.
    Train,
    /// A worker that commits versions.
    Publish,
    /// The object store's disk; no process.
    Objects,
}

/// The roles that have processes.
pub const ALL: [Role; 6] =
    [Role::Server, Role::Coordinator, Role::Generate, Role::Env, Role::Train, Role::Publish];

impl Role {
    /// The word in names and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "nats-server",
            Self::Coordinator => "coordinator",
            Self::Generate => "generate",
            Self::Env => "env",
            Self::Train => "train",
            Self::Publish => "publish",
            Self::Objects => "object store",
        }
    }

    /// What its workers do.
    #[must_use]
    pub const fn stages(self) -> &'static [Stage] {
        match self {
            Self::Generate => &[Stage::Generate],
            Self::Env => &[Stage::EnvStep, Stage::Reward],
            Self::Train => &[Stage::TrainShard],
            Self::Publish => &[Stage::PublishWeights],
            Self::Server | Self::Coordinator | Self::Objects => &[],
        }
    }

    /// How many processes it has at least, in a cluster or not.
    #[must_use]
    pub const fn processes(self, cluster: bool) -> usize {
        match self {
            Self::Server => {
                if cluster {
                    3
                } else {
                    1
                }
            }
            Self::Coordinator | Self::Env => 2,
            Self::Generate | Self::Train | Self::Publish => 1,
            Self::Objects => 0,
        }
    }
}
