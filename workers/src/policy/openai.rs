//! An engine over HTTP: vLLM, SGLang, llama.cpp's server, or a compatible one. Requests and replies
//! have token ids, and each sampled token has its log-probability under the distribution that it
//! was drawn from. A reply that lacks something is refused with the name of what is missing. Text
//! is never tokenised again.
//!
//! `vllm.rs`, `sglang.rs` and `llama_cpp.rs` document the flags that each server needs.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub use ask::{Ask, Piece};
pub use error::ServerError;
use http::Http;
pub(crate) use layout::{LayoutError, OutputLayer, VersionFolders};
pub(crate) use weight_probe::{Measured, ProbedWeights, prove, same};

mod ask;
mod error;
mod fitness;
pub(crate) mod http;
mod vllm;
mod sglang;
mod llama_cpp;
mod layout;
mod reload;
mod weight_probe;

/// The API of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `vllm serve`.
    Vllm,
    /// `python -m sglang.launch_server`.
    Sglang,
    /// `llama-server`.
    LlamaCpp,
}

/// A word that names no dialect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("dialect value={0:?} is not known; known: vllm, sglang, llama_cpp")]
pub struct UnknownDialect(String);

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(s: &str) -> Result<Self, UnknownDialect> {
        match s {
            "vllm" => Ok(Self::Vllm),
            "sglang" => Ok(Self::Sglang),
            "llama_cpp" => Ok(Self::LlamaCpp),
            _ => Err(UnknownDialect(s.to_owned())),
        }
    }
}

/// Whether requests carry the task's seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Seeds {
    /// Not to vLLM, which may die of a seed on a CPU and does not report what it runs on.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never: the server draws with a seed of its own. A turn that is sampled twice differs then;
    /// nothing else does.
    Off,
}

/// How to reach and use a server.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Its address, without a path: `http://127.0.0.1:8000`.
    pub url: String,
    /// The name under which it serves the model; `None` for its only one.
    pub model: Option<String>,
    /// Its API.
    pub dialect: Dialect,
    /// Its bearer token, if it needs one.
    pub key: Option<String>,
    /// Folder of its versions, which its own process must find by the same path. Of this worker
    /// alone.
    pub weights_dir: PathBuf,
    /// A command that makes it load another version, run by `sh -c` with `MILLRACE_WEIGHTS` (the
    /// folder) and `MILLRACE_WEIGHTS_LABEL` set. After a success the worker waits for the server.
    /// `None` for the call of its dialect.
    pub reload: Option<String>,
    /// After this long without a byte it counts as hung. Longer than a request may wait in its
    /// queue. Default 300 s.
    pub silence: Duration,
    /// Time to load another version, until it answers again. Default 600 s.
    pub reload_timeout: Duration,
    /// For how long a request to a busy server is retried before its task returns to the queue.
    /// Default 60 s.
    pub patience: Duration,
    /// After this long without a task of the run that it serves, a task of another run has the server load that run's
    /// weights. Default 60 s.
    pub idle: Duration,
    /// By how much two measurements of the same weights may differ: nats a token, mean over the
    /// probe. Default 0.2, for a server that computes in bf16.
    pub tolerance: f64,
    /// Whether requests carry the task's seed.
    pub seeds: Seeds,
}

impl ServerSettings {
    /// The defaults, for the server at `url`.
    #[must_use]
    pub fn new(url: &str, dialect: Dialect, weights_dir: &Path) -> Self {
        Self {
            url: url.trim_end_matches('/').to_owned(),
            model: None,
            dialect,
            key: None,
            weights_dir: weights_dir.to_owned(),
            reload: None,
            silence: Duration::from_secs(300),
            reload_timeout: Duration::from_secs(600),
            patience: Duration::from_secs(60),
            idle: Duration::from_secs(60),
            tolerance: 0.2,
            seeds: Seeds::Auto,
        }
    }
}

/// A server. Many tasks may call it at once.
#[derive(Debug)]
pub struct Server {
    settings: ServerSettings,
    http: Http,
}

impl Server {
    /// A client; it connects at the first call.
    #[must_use]
    pub fn new(settings: ServerSettings) -> Self {
        let http = Http::new(&settings.url, settings.key.clone(), settings.silence);
        Self { settings, http }
    }

    /// As given to [`Self::new`].
    #[must_use]
    pub const fn settings(&self) -> &ServerSettings {
        &self.settings
    }

    /// Samples after a context until the server stops, `max_new_tokens`, or `boundary`, at which
    /// the tokens so far are kept. The piece is validated: it has ids and log-probabilities, for
    /// the context that was sent. It may go beyond the end of the turn, which the caller must find.
    ///
    /// # Errors
    /// The server cannot be reached, is busy, refuses, or its reply could not be trained on.
    /// Nothing of the piece is kept.
    pub async fn sample(&self, ask: &Ask<'_>, boundary: &CancellationToken) -> Result<Piece, ServerError> {
        let piece = match self.settings.dialect {
            Dialect::Vllm => vllm::sample(&self.http, self.model(), ask, boundary).await?,
            Dialect::Sglang => sglang::sample(&self.http, ask, boundary).await?,
            Dialect::LlamaCpp => llama_cpp::sample(&self.http, ask).await?,
        };
        piece.checked(ask)
    }

    /// The probe, by which weights are told apart: the log-probabilities of `tokens[1..]`, each
    /// given those before it, at temperature 1; `[T - 1]`. llama.cpp's server computes none for a
    /// prompt; there, those of the tokens that it samples greedily after it.
    ///
    /// # Errors
    /// The server cannot be reached, or does not support this.
    pub async fn probe(&self, tokens: &[u32]) -> Result<Vec<f32>, ServerError> {
        let measured = match self.settings.dialect {
            Dialect::Vllm => vllm::probe(&self.http, self.model(), tokens).await?,
            Dialect::Sglang => sglang::probe(&self.http, tokens).await?,
            Dialect::LlamaCpp => llama_cpp::probe(&self.http, tokens).await?,
        };
        match measured.iter().find(|logprob| !logprob.is_finite()) {
            Some(value) => {
                Err(ServerError::malformed(&format!("its probe gave the log-probability {value}")))
            }
            None => Ok(measured),
        }
    }

    /// Log-probabilities of `tokens` `[N]` after a context, at temperature 1 over the whole
    /// vocabulary. `[N]`
    ///
    /// # Errors
    /// As [`Self::probe`]; llama.cpp's server does not support it.
    pub async fn score(&self, context: &[u32], tokens: &[u32]) -> Result<Vec<f32>, ServerError> {
        if !self.measures_prompts() {
            return Err(ServerError::Unfit(
                "llama.cpp's server computes nothing of a prompt's tokens".to_owned(),
            ));
        }
        let mut measured = self.probe(&[context, tokens].concat()).await?;
        Ok(measured.split_off(context.len() - 1))
    }

    /// Whether log-probabilities are those of the distribution drawn from, at a temperature other
    /// than 1. llama.cpp's server gets a request for those.
    ///
    /// # Errors
    /// The server cannot be reached, or returns no likeliest tokens.
    pub async fn scales_logprobs(&self, tokens: &[u32]) -> Result<bool, ServerError> {
        let at = async |temperature: f64| match self.settings.dialect {
            Dialect::Vllm => vllm::likeliest(&self.http, self.model(), tokens, temperature).await.map(Some),
            Dialect::Sglang => sglang::likeliest(&self.http, tokens, temperature).await.map(Some),
            Dialect::LlamaCpp => Ok(None),
        };
        Ok(match (at(1.0).await?, at(2.0).await?) {
            (Some(one), Some(two)) => weight_probe::is_scaled(&one, &two),
            _ => true,
        })
    }

    /// Whether requests carry a seed. On a CPU, vLLM's engine dies of a request with one whose
    /// prompt it computes in parts ("CPU Generator does not use offset"). Its version does not tell
    /// a CPU (`0.32.0`), so it gets none unless that is asked for.
    #[must_use]
    pub const fn takes_seeds(&self) -> bool {
        match (self.settings.seeds, self.settings.dialect) {
            (Seeds::On, _) | (Seeds::Auto, Dialect::Sglang | Dialect::LlamaCpp) => true,
            (Seeds::Off, _) | (Seeds::Auto, Dialect::Vllm) => false,
        }
    }

    /// The form in which the server must find a tied output layer.
    pub(crate) const fn output_layer(&self) -> OutputLayer {
        match (&self.settings.reload, self.settings.dialect) {
            (None, Dialect::Vllm) => OutputLayer::Separate,
            (Some(_), _) | (None, Dialect::Sglang | Dialect::LlamaCpp) => OutputLayer::AsPublished,
        }
    }

    /// Whether it computes log-probabilities of a prompt's tokens, so that its probe can be
    /// compared with what a trainer recorded.
    #[must_use]
    pub fn measures_prompts(&self) -> bool {
        match self.settings.dialect {
            Dialect::Vllm | Dialect::Sglang => true,
            Dialect::LlamaCpp => false,
        }
    }

    /// Whether each reply names the weights that sampled it. Otherwise a probe before and one after
    /// prove them.
    #[must_use]
    pub fn replies_name_weights(&self) -> bool {
        self.settings.dialect == Dialect::Sglang && self.settings.reload.is_none()
    }

    /// An error with what the server's health makes of it: one that is not well is away.
    pub(crate) async fn diagnosed(&self, error: ServerError) -> ServerError {
        fitness::diagnosed(&self.http, error).await
    }

    /// Refuses the server if it reports that its contexts are shorter than `context` tokens.
    ///
    /// # Errors
    /// They are shorter, or the server cannot be reached.
    pub(crate) async fn check_context(&self, context: usize) -> Result<(), ServerError> {
        fitness::check_context(&self.http, &self.settings, context).await
    }

    /// Makes it load the version in `folder`, under `label`, and waits until it answers again.
    ///
    /// # Errors
    /// It refuses, cannot be reached, or takes too long.
    pub async fn reload(&self, folder: &Path, label: &str) -> Result<(), ServerError> {
        reload::reload(&self.http, &self.settings, folder, label).await
    }

    /// Checks the server's own report of its weights, where it has one.
    ///
    /// # Errors
    /// It reports others, or cannot be reached.
    pub async fn check_report(&self, folder: &Path, label: &str) -> Result<(), ServerError> {
        reload::check_report(&self.http, &self.settings, folder, label).await
    }

    fn model(&self) -> Value {
        self.settings.model.as_ref().map_or(Value::Null, |model| json!(model))
    }
}
