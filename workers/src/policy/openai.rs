//! A model that another server computes: vLLM, SGLang, llama.cpp's, or one that speaks like them. Tokens go in and
//! tokens come out, each with its log-probability under the distribution that it was drawn from; a reply that lacks
//! either is refused by the name of what is missing, and text is never turned into tokens again.
//!
//! What each server must be started with is said in `vllm.rs`, `sglang.rs` and `llama_cpp.rs`, one for each way to speak.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub use ask::{Ask, Piece};
pub use error::ServerError;
use http::Http;
pub(crate) use layout::{LayoutError, VersionFolders};
pub(crate) use weight_probe::{Measured, ProbedWeights, prove, same};

mod ask;
mod error;
pub(crate) mod http;
mod vllm;
mod sglang;
mod llama_cpp;
mod layout;
mod reload;
mod weight_probe;

/// How a server wants to be spoken to.
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
    /// As the server can take it, by what it says of itself: vLLM on a CPU dies of one.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never: the server draws by a seed of its own. Turns that are done twice differ then; nothing else does.
    Off,
}

/// Where a server is and how it is treated.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Its address, without a path: `http://127.0.0.1:8000`.
    pub url: String,
    /// The name under which it serves the model; `None` for its only one.
    pub model: Option<String>,
    /// How it speaks.
    pub dialect: Dialect,
    /// What it wants as a bearer token.
    pub key: Option<String>,
    /// Where versions are laid out for it; its own process must read them by the same path. Of this worker alone.
    pub weights_dir: PathBuf,
    /// A command that makes it read another version, run by `sh -c` with `MILLRACE_WEIGHTS` (the folder) and
    /// `MILLRACE_WEIGHTS_LABEL` set. When it has ended well the server is waited for. `None` for its dialect's own call.
    pub reload: Option<String>,
    /// Without a word from it for this long it counts as hung. Longer than a request may wait in its queue.
    /// Default 300 s.
    pub silence: Duration,
    /// For reading another version, until it answers again. Default 600 s.
    pub reload_timeout: Duration,
    /// For how long a request is offered to a server that says it is busy, before it is given back. Default 60 s.
    pub patience: Duration,
    /// By how much two measurements of the same weights may differ: nats a token, mean over the probe. Default 0.2,
    /// for a server that computes in bf16.
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
            tolerance: 0.2,
            seeds: Seeds::Auto,
        }
    }
}

/// A server. Calls may be made at once from many tasks.
#[derive(Debug)]
pub struct Server {
    settings: ServerSettings,
    http: Http,
}

impl Server {
    /// Speaks to the server that the settings name, once it is asked something.
    #[must_use]
    pub fn new(settings: ServerSettings) -> Self {
        let http = Http::new(&settings.url, settings.key.clone(), settings.silence);
        Self { settings, http }
    }

    /// What it was made with.
    #[must_use]
    pub const fn settings(&self) -> &ServerSettings {
        &self.settings
    }

    /// Samples after a context, until an end, as many tokens as were asked for, or `boundary`: what was sampled by then
    /// is kept. The piece is checked: ids and log-probabilities are there, of the context that was sent. Where the turn
    /// ends in it is for the caller to find; it may have more.
    ///
    /// # Errors
    /// The server is away, busy, refuses, or its reply could not be trained on. Nothing of the piece is kept then.
    pub async fn sample(&self, ask: &Ask<'_>, boundary: &CancellationToken) -> Result<Piece, ServerError> {
        let piece = match self.settings.dialect {
            Dialect::Vllm => vllm::sample(&self.http, self.model(), ask, boundary).await?,
            Dialect::Sglang => sglang::sample(&self.http, ask, boundary).await?,
            Dialect::LlamaCpp => llama_cpp::sample(&self.http, ask).await?,
        };
        piece.checked(ask)
    }

    /// Log-probabilities that tell these weights from others: of `tokens[1..]`, each after those before it, at
    /// temperature 1; `[T - 1]`. llama.cpp's server computes none of a prompt: there, of the tokens that it samples
    /// greedily after it.
    ///
    /// # Errors
    /// The server is away, or says nothing of the kind.
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

    /// Log-probabilities of `tokens` `[N]` after a context, at temperature 1 over the whole vocabulary. `[N]`
    ///
    /// # Errors
    /// As [`Self::probe`]; llama.cpp's server says nothing of the kind.
    pub async fn score(&self, context: &[u32], tokens: &[u32]) -> Result<Vec<f32>, ServerError> {
        if !self.measures_prompts() {
            return Err(ServerError::Unfit(
                "llama.cpp's server computes nothing of a prompt's tokens".to_owned(),
            ));
        }
        let mut measured = self.probe(&[context, tokens].concat()).await?;
        Ok(measured.split_off(context.len() - 1))
    }

    /// Whether log-probabilities are those of the distribution that was drawn from, at a temperature other than 1.
    /// llama.cpp's server is asked for those by name.
    ///
    /// # Errors
    /// The server is away, or gives no likeliest tokens.
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

    /// Whether requests are to carry a seed. vLLM built for a CPU ends its engine at the first request that has one
    /// ("CPU Generator does not use offset"), so it is asked for its version, and no request is risked.
    ///
    /// # Errors
    /// The server is away.
    pub async fn takes_seeds(&self) -> Result<bool, ServerError> {
        match (self.settings.seeds, self.settings.dialect) {
            (Seeds::On, _) | (Seeds::Auto, Dialect::Sglang | Dialect::LlamaCpp) => Ok(true),
            (Seeds::Off, _) => Ok(false),
            (Seeds::Auto, Dialect::Vllm) => vllm::takes_seeds(&self.http).await,
        }
    }

    /// Whether it computes log-probabilities of a prompt's tokens, so that its probe can be compared with what a trainer
    /// recorded.
    #[must_use]
    pub fn measures_prompts(&self) -> bool {
        match self.settings.dialect {
            Dialect::Vllm | Dialect::Sglang => true,
            Dialect::LlamaCpp => false,
        }
    }

    /// Whether each reply says which weights sampled it. Where not, a probe before and one after say so.
    #[must_use]
    pub fn replies_name_weights(&self) -> bool {
        self.settings.dialect == Dialect::Sglang && self.settings.reload.is_none()
    }

    /// Makes it read the version in `folder`, under `label`, and waits until it answers again.
    ///
    /// # Errors
    /// It refuses, is away, or takes too long.
    pub async fn reload(&self, folder: &Path, label: &str) -> Result<(), ServerError> {
        reload::reload(&self.http, &self.settings, folder, label).await
    }

    /// Checks what the server itself says of its weights, as far as it says anything.
    ///
    /// # Errors
    /// It names others, or is away.
    pub async fn check_report(&self, folder: &Path, label: &str) -> Result<(), ServerError> {
        reload::check_report(&self.http, &self.settings, folder, label).await
    }

    fn model(&self) -> Value {
        self.settings.model.as_ref().map_or(Value::Null, |model| json!(model))
    }
}
