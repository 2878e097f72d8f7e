//! What a policy is, whichever library computes it: the files of a version, and what is asked of an
//! engine and of a trainer. Nothing here needs libtorch.
//!
//! - `version`, `probe`: a version's files, and how a server proves that it has them; `output_layer`:
//!   a file that some servers need besides;
//! - `engine`, `trainer`, `error`: the interfaces of both, and why either fails;
//! - `gang`: how trainers that make a step together find one another; `share`: which rollouts each
//!   of them computes;
//! - `decoder`: the shape of a decoder, from its `config.json`;
//! - `text_codec`, `stop_criteria`: between words and tokens, and what ends a turn;
//! - `directory`: a model directory, made version 0 of a run;
//! - `random`: draws that are the same everywhere.

pub mod version;
pub mod probe;
pub mod output_layer;
pub mod engine;
pub mod trainer;
pub mod error;
pub mod gang;
pub mod share;
pub mod decoder;
pub mod text_codec;
pub mod stop_criteria;
pub mod directory;
pub mod random;

pub use engine::{Engine, EngineRequest, Finished, ReadyWeights, Ticket, own_weights};
pub use error::PolicyError;
pub use share::{Place, Share};
pub use trainer::{NoPast, Past, TrainStep, Trained, Trainer};
pub use version::{CONFIG_FILE, CRITIC_FILE, LoadedVersion, MODEL_FILE, OPTIMIZER_PREFIX, is_for_training};
