//! The shape of a decoder, driven by its `config.json`: Llama, Mistral, Qwen2 and Qwen3, with the
//! names of Hugging Face. To compute with one takes libtorch, and is elsewhere.

mod architecture;
mod rope_parameters;
mod config;
mod layout;

pub use architecture::{Architecture, Biases};
pub use config::{CONTEXT_KEY, Config, ConfigError};
pub use layout::{Layout, Part};
pub use rope_parameters::{RopeParameters, RopeScaling};
