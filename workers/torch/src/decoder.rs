//! A decoder computed by libtorch: one for Llama, Mistral, Qwen2 and Qwen3. It reads and writes the
//! files of transformers: `config.json` and `model.safetensors` with Hugging Face names.
//!
//! The same forward serves sampling and training. Both run flat rows of tokens through the layers.
//! They differ in attention: within whole rollouts one after another, or to the KV cache.

use millrace_policy::decoder::{RopeParameters, RopeScaling};

mod precision;
mod init;
mod files;
mod rope;
mod model;
mod hollow;
mod linear;
pub(crate) mod one_pass;
mod attention;
mod packed;
mod sequences;
#[cfg(test)]
mod kernel_tests;
mod cache;
mod step;

pub use attention::Attend;
pub use cache::{BLOCK, Cached, KvCache, Lane};
pub use files::{FilesError, read_tensors, read_tensors_to, write_tensors};
pub use millrace_policy::decoder::{Config, Layout, Part};
pub use model::{Decoder, LayerContext, Rows};
pub use packed::{Extent, Packed};
pub(crate) use precision::kind;
pub use step::{StepInputs, can_step};
