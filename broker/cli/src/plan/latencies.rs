//! Latencies and lengths that a person gives: as options, or in a TOML file.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// Declares [`Latencies`]: documentation, name and type of each option.
macro_rules! latencies {
    ($($(#[$attribute:meta])* $name:ident: $kind:ty;)+) => {
        /// What a person gives, each optional.
        #[derive(Debug, Clone, Default, PartialEq, Deserialize, clap::Args)]
        #[command(next_help_heading = "Latencies and lengths")]
        #[serde(deny_unknown_fields, default)]
        pub(super) struct Latencies {
            $($(#[$attribute])* #[arg(long, value_name = "X", allow_negative_numbers = true)] pub(super) $name: Option<$kind>,)+
        }

        impl Latencies {
            /// These, and `other` where these say nothing.
            pub(super) fn or(self, other: Self) -> Self {
                Self { $($name: self.$name.or(other.$name),)+ }
            }
        }
    };
}

latencies! {
    /// Sequences that a GPU decodes at once
    slots: u32;
    /// Tokens a second of each of them when all slots are taken
    slot_tokens_per_s: f64;
    /// Tokens a second of a sequence that is alone on its GPU [default: as with all slots taken]
    lone_tokens_per_s: f64;
    /// Turns of a rollout, the median [default: 1]
    turns: f64;
    /// Standard deviation of the logarithm of the turns [default: 0]
    turns_sigma: f64;
    /// Tokens sampled in a turn, the mean
    tokens: f64;
    /// The median of the same, instead of the mean
    tokens_median: f64;
    /// Standard deviation of the logarithm of the tokens [default: 0]
    tokens_sigma: f64;
    /// Seconds of an environment's reset or step, the median [default: 0]
    env_s: f64;
    /// Standard deviation of the logarithm of these seconds [default: 0]
    env_sigma: f64;
    /// Seconds of a rollout's rewards [default: 0]
    reward_s: f64;
    /// GPU-seconds of training on a rollout, once; multiplied by algorithm.epochs
    train_sample_s: f64;
    /// GPU-seconds of training on a sampled token, once; instead of those on a rollout
    train_token_s: f64;
    /// Seconds of a train step that more GPUs do not shorten [default: 0]
    train_step_s: f64;
    /// Seconds from the end of a train step until its version is committed [default: 0]
    publish_s: f64;
    /// Seconds in which a GPU that generates loads a version [default: 0]
    load_s: f64;
    /// GPUs that the gang needs at least, for its memory [default: 1]
    least_trainers: u32;
}

impl Latencies {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// It cannot be read, or has a field that is none.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let failed = || format!("failed to read latencies path={}", path.display());
        let text = std::fs::read_to_string(path).with_context(failed)?;
        toml::from_str(&text).with_context(failed)
    }
}
