//! A decoder driven by its configuration: one for Llama, Mistral, Qwen2 and Qwen3. It reads and
//! writes the files of transformers: `config.json` and `model.safetensors` with Hugging Face names.
//! Only the computation needs libtorch (feature `torch`).
//!
//! The same forward serves sampling and training. Both run flat rows of tokens through the layers.
//! They differ in attention: within whole rollouts one after another, or to the KV cache.

mod architecture;
mod rope_parameters;
mod config;
mod layout;
#[cfg(feature = "torch")]
mod init;
#[cfg(feature = "torch")]
mod files;
#[cfg(feature = "torch")]
mod rope;
#[cfg(feature = "torch")]
mod model;
#[cfg(feature = "torch")]
mod linear;
#[cfg(feature = "torch")]
mod attention;
#[cfg(feature = "torch")]
mod packed;
#[cfg(feature = "torch")]
#[cfg(test)]
mod kernel_tests;
#[cfg(feature = "torch")]
mod cache;

pub use architecture::{Architecture, Biases};
#[cfg(feature = "torch")]
pub use attention::Attend;
#[cfg(feature = "torch")]
pub use cache::{BLOCK, Cached, KvCache, Lane};
pub use config::{CONTEXT_KEY, Config, ConfigError};
#[cfg(feature = "torch")]
pub use files::{FilesError, read_tensors, write_tensors};
pub use layout::{Layout, Part};
#[cfg(feature = "torch")]
pub use model::{Decoder, LayerContext, Rows};
#[cfg(feature = "torch")]
pub use packed::{Extent, Packed};
pub use rope_parameters::{RopeParameters, RopeScaling};
