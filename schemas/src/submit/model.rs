//! The policy's model in a run file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The policy's model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ModelSpec {
    /// A decoder of the Llama architecture, made from scratch. Needs workers with torch.
    Decoder {
        /// Tokens in the vocabulary; at least as many as the environment uses.
        vocabulary: u32,
        /// Decoder layers. Default 2.
        #[serde(default = "two")]
        layers: u32,
        /// Hidden width; a multiple of twice `heads`. Default 64.
        #[serde(default = "sixty_four")]
        width: u32,
        /// Attention heads. Default 4.
        #[serde(default = "four")]
        heads: u32,
        /// Width of the feed-forward layers. Default 4 × 64 = 256.
        #[serde(default = "two_hundred_fifty_six")]
        feed_forward: u32,
        /// Tokens that a rollout may have, observations included. Default 512.
        #[serde(default = "five_hundred_twelve")]
        context: u32,
        /// Standard deviation of the initial weights. Default 0.02.
        #[serde(default = "point_zero_two")]
        init_std: f64,
    },
    /// A pretrained decoder from a directory as the Hugging Face hub has it. Needs workers with
    /// torch.
    HuggingFace {
        /// The directory, on the machine of the train worker that makes version 0: `config.json`,
        /// the weights as safetensors, and the tokenizer. A relative path starts at that worker's
        /// working directory.
        path: String,
        /// Tokens that a rollout may have, observations included; at most as many as the model
        /// takes. Default 1024.
        #[serde(default = "one_thousand_twenty_four")]
        context: u32,
        /// Number format of forward and backward, and of published versions. With `bf16`, losses,
        /// sums and the optimiser are f32, and the trainer also keeps the weights in f32. Default
        /// `f32`.
        #[serde(default)]
        precision: Precision,
    },
    /// No model: turns follow from the seed, weights from the batches. For checks of queue and
    /// coordinator.
    Scripted,
}

impl ModelSpec {
    /// Vocabulary: token ids are below this. `None` if the model takes any, or if its directory has
    /// the number.
    #[must_use]
    pub const fn vocabulary(&self) -> Option<u32> {
        match self {
            Self::Decoder { vocabulary, .. } => Some(*vocabulary),
            Self::HuggingFace { .. } | Self::Scripted => None,
        }
    }

    /// Tokens that a rollout may have. `None` for a model that takes any number.
    #[must_use]
    pub const fn context(&self) -> Option<u32> {
        match self {
            Self::Decoder { context, .. } | Self::HuggingFace { context, .. } => Some(*context),
            Self::Scripted => None,
        }
    }
}

/// A number format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats with the range of `f32` and 8 bits of precision.
    Bf16,
}

impl Precision {
    /// Its name as `dtype` in a `config.json`.
    #[must_use]
    pub const fn dtype(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
        }
    }

    /// Bytes of one number.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

const fn two() -> u32 {
    2
}
const fn four() -> u32 {
    4
}
const fn sixty_four() -> u32 {
    64
}
const fn two_hundred_fifty_six() -> u32 {
    256
}
const fn five_hundred_twelve() -> u32 {
    512
}
const fn one_thousand_twenty_four() -> u32 {
    1_024
}
const fn point_zero_two() -> f64 {
    0.02
}
