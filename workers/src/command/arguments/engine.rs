//! The options of the generate stage's engine: `--engine` and those that begin with it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::policy::openai::{Dialect, Seeds, ServerSettings};

/// Where turns are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum EngineKind {
    /// This process.
    #[default]
    BuiltIn,
    /// A server: vLLM, SGLang, llama.cpp's.
    Openai,
}

/// The engine of the generate stage.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// Where turns are sampled: in this process, or by a server over HTTP
    #[arg(long, env = "MILLRACE_ENGINE", value_enum, default_value_t)]
    engine: EngineKind,
    /// Address of the server, without a path: http://127.0.0.1:8000
    #[arg(long, env = "MILLRACE_ENGINE_URL", required_if_eq("engine", "openai"))]
    engine_url: Option<String>,
    /// The name under which the server serves the model. Default: its only one
    #[arg(long, env = "MILLRACE_ENGINE_MODEL")]
    engine_model: Option<String>,
    /// The server's dialect: vllm, sglang, llama_cpp
    #[arg(long, env = "MILLRACE_ENGINE_DIALECT", default_value = "vllm")]
    engine_dialect: Dialect,
    /// A file with the server's key
    #[arg(long, env = "MILLRACE_ENGINE_KEY_FILE")]
    engine_key_file: Option<PathBuf>,
    /// Folder for the versions, which the server must find by the same path. Of this worker alone
    #[arg(long, env = "MILLRACE_ENGINE_WEIGHTS_DIR", required_if_eq("engine", "openai"))]
    engine_weights_dir: Option<PathBuf>,
    /// A command, run by sh, that makes the server load other weights; MILLRACE_WEIGHTS is their
    /// folder
    #[arg(long, env = "MILLRACE_ENGINE_RELOAD_COMMAND")]
    engine_reload_command: Option<String>,
    /// Seconds for the server to load other weights
    #[arg(long, env = "MILLRACE_ENGINE_RELOAD_TIMEOUT", default_value_t = 600.0)]
    engine_reload_timeout: f64,
    /// Seconds of silence after which the server counts as hung; more than a request may wait in
    /// the server's queue
    #[arg(long, env = "MILLRACE_ENGINE_SILENCE", default_value_t = 300.0)]
    engine_silence: f64,
    /// By how much two measurements of the same weights may differ, in nats a token. The default is
    /// for a server that computes in bf16; give 0.0001 for one that computes in f32
    #[arg(long, env = "MILLRACE_ENGINE_TOLERANCE", default_value_t = 0.2)]
    engine_tolerance: f64,
    /// Whether requests carry the task's seed: auto leaves it out for vLLM, which may die of it on a
    /// CPU. Choose on for vLLM on a GPU
    #[arg(long, env = "MILLRACE_ENGINE_SEEDS", value_enum, default_value_t)]
    engine_seeds: Seeds,
}

/// Why the options are refused.
#[derive(Debug, thiserror::Error)]
pub enum EngineArgsError {
    /// The key cannot be read.
    #[error("failed to read --engine-key-file path={path:?}: {source}")]
    Key {
        /// The path.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// Not a time.
    #[error("{flag} value={value} is not a number of seconds above 0")]
    Seconds {
        /// The option.
        flag: &'static str,
        /// Its value.
        value: f64,
    },
    /// Not a bound.
    #[error("--engine-tolerance value={0} is not a number of nats, 0 or more")]
    Tolerance(f64),
}

impl EngineArgs {
    /// The settings of the inference server; `None` to sample in this process.
    ///
    /// # Errors
    /// A file cannot be read, or a number is out of range.
    pub fn server(&self) -> Result<Option<ServerSettings>, EngineArgsError> {
        let (EngineKind::Openai, Some(url), Some(dir)) =
            (self.engine, &self.engine_url, &self.engine_weights_dir)
        else {
            return Ok(None);
        };
        if !(self.engine_tolerance.is_finite() && self.engine_tolerance >= 0.0) {
            return Err(EngineArgsError::Tolerance(self.engine_tolerance));
        }
        Ok(Some(ServerSettings {
            model: self.engine_model.clone(),
            key: self.key()?,
            reload: self.engine_reload_command.clone(),
            silence: seconds("--engine-silence", self.engine_silence)?,
            reload_timeout: seconds("--engine-reload-timeout", self.engine_reload_timeout)?,
            tolerance: self.engine_tolerance,
            seeds: self.engine_seeds,
            ..ServerSettings::new(url, self.engine_dialect, dir)
        }))
    }

    fn key(&self) -> Result<Option<String>, EngineArgsError> {
        let Some(path) = &self.engine_key_file else { return Ok(None) };
        let key = std::fs::read_to_string(path)
            .map_err(|source| EngineArgsError::Key { path: path.clone(), source })?;
        Ok(Some(key.trim().to_owned()))
    }
}

fn seconds(flag: &'static str, value: f64) -> Result<Duration, EngineArgsError> {
    match Duration::try_from_secs_f64(value) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(EngineArgsError::Seconds { flag, value }),
    }
}
