//! What `--engine` and its like say: who generates, and how it is reached.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::policy::openai::{Dialect, Seeds, ServerSettings};

/// Who generates.
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
    /// Who generates: this process, or a server that is reached by HTTP
    #[arg(long, env = "MILLRACE_ENGINE", value_enum, default_value_t)]
    engine: EngineKind,
    /// Where the server is, without a path: http://127.0.0.1:8000
    #[arg(long, env = "MILLRACE_ENGINE_URL", required_if_eq("engine", "openai"))]
    engine_url: Option<String>,
    /// The name under which the server serves the model. Default: its only one
    #[arg(long, env = "MILLRACE_ENGINE_MODEL")]
    engine_model: Option<String>,
    /// How the server speaks: vllm, sglang, llama_cpp
    #[arg(long, env = "MILLRACE_ENGINE_DIALECT", default_value = "vllm")]
    engine_dialect: Dialect,
    /// A file with the key that the server wants
    #[arg(long, env = "MILLRACE_ENGINE_KEY_FILE")]
    engine_key_file: Option<PathBuf>,
    /// Where versions are laid out for the server, which must find them by the same path. Of this worker alone
    #[arg(long, env = "MILLRACE_ENGINE_WEIGHTS_DIR", required_if_eq("engine", "openai"))]
    engine_weights_dir: Option<PathBuf>,
    /// Make the server read other weights by this command, run by sh; MILLRACE_WEIGHTS is their folder
    #[arg(long, env = "MILLRACE_ENGINE_RELOAD_COMMAND")]
    engine_reload_command: Option<String>,
    /// Seconds for the server to read other weights
    #[arg(long, env = "MILLRACE_ENGINE_RELOAD_TIMEOUT", default_value_t = 600.0)]
    engine_reload_timeout: f64,
    /// Seconds of silence after which the server counts as hung; more than a request may wait in its queue
    #[arg(long, env = "MILLRACE_ENGINE_SILENCE", default_value_t = 300.0)]
    engine_silence: f64,
    /// By how much two measurements of the same weights may differ, in nats a token. The default is for a
    /// server that computes in bf16; one that computes in f32 is held to 0.001
    #[arg(long, env = "MILLRACE_ENGINE_TOLERANCE", default_value_t = 0.2)]
    engine_tolerance: f64,
    /// Whether requests carry the task's seed: auto leaves it out where the server says that it runs on a CPU,
    /// for vLLM dies of it there
    #[arg(long, env = "MILLRACE_ENGINE_SEEDS", value_enum, default_value_t)]
    engine_seeds: Seeds,
}

/// Why the words make no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineArgsError {
    /// The key cannot be read.
    #[error("failed to read --engine-key-file path={path:?}: {source}")]
    Key {
        /// Where it was looked for.
        path: PathBuf,
        /// Why it was not read.
        source: std::io::Error,
    },
    /// Not a time.
    #[error("{flag} value={value} is not a number of seconds above 0")]
    Seconds {
        /// Which.
        flag: &'static str,
        /// What it says.
        value: f64,
    },
    /// Not a bound.
    #[error("--engine-tolerance value={0} is not a number of nats, 0 or more")]
    Tolerance(f64),
}

impl EngineArgs {
    /// The server that generates; `None` where this process does.
    ///
    /// # Errors
    /// A file cannot be read, or a number is none.
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
