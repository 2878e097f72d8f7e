//! A decoder of the Llama architecture in libtorch. Its files are what transformers' `LlamaForCausalLM`
//! reads: `config.json` and `model.safetensors` with Hugging Face names.
//!
//! One forward serves sampling and training. Both run flat rows of tokens through the layers and differ in
//! how the rows attend to one another: within a padded batch of whole rollouts, or to the key-value cache.

mod config;
mod layout;
mod init;
mod files;
mod rope;
mod model;
mod attention;
mod cache;

pub use attention::{Attend, Padded};
pub use cache::{Cached, KvCache, Lane};
pub use config::{Config, ConfigError};
pub use files::{FilesError, read_tensors, write_tensors};
pub use layout::{Layout, Part};
pub use model::{Decoder, Rows, Shared};
