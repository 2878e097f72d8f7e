//! What a server reports of itself: whether it is well, and how long its contexts may be.

use serde_json::Value;

use super::http::Http;
use super::reload::LOOK;
use super::{Dialect, ServerError, ServerSettings};

/// An error of the server's own, for what it is: an engine that has died behind a server that still answers is a server
/// that is away. Every request would fail at it until it starts again.
pub(super) async fn diagnosed(http: &Http, error: ServerError) -> ServerError {
    let ServerError::Failed(message) = error else { return error };
    match http.is_well("/health", LOOK.1).await {
        // It has no such call.
        Ok(()) | Err(ServerError::Unfit(_) | ServerError::Refused(_)) => ServerError::Failed(message),
        Err(illness) => ServerError::Away(format!("{message}; it is not well: {illness}")),
    }
}

/// Refuses a server whose contexts are shorter than the run's: it would refuse the long turns, and the run would train on
/// the short ones. A server that does not report it is taken.
pub(super) async fn check_context(
    http: &Http,
    settings: &ServerSettings,
    context: usize,
) -> Result<(), ServerError> {
    let (path, flag) = match settings.dialect {
        Dialect::Vllm => ("/v1/models", "--max-model-len"),
        Dialect::Sglang => ("/get_server_info", "--context-length"),
        Dialect::LlamaCpp => ("/props", "--ctx-size, for each of --parallel,"),
    };
    let report = match http.get(path, LOOK.1).await {
        Ok(report) => report,
        Err(error) if error.is_loss() => return Err(error),
        Err(_) => return Ok(()),
    };
    match longest(settings, &report) {
        Some(longest) if longest < context as u64 => Err(ServerError::Unfit(format!(
            "its contexts have {longest} tokens at most, and the run's model has context={context}: start it with {flag} \
             {context} or more"
        ))),
        Some(_) | None => Ok(()),
    }
}

/// Tokens of its longest context, as it reports them.
fn longest(settings: &ServerSettings, report: &Value) -> Option<u64> {
    match settings.dialect {
        Dialect::Vllm => {
            let models = report["data"].as_array()?;
            let named = |model: &&Value| settings.model.as_ref().is_none_or(|name| model["id"] == **name);
            models.iter().find(named)?["max_model_len"].as_u64()
        }
        Dialect::Sglang => report["context_length"].as_u64(),
        Dialect::LlamaCpp => report["default_generation_settings"]["n_ctx"].as_u64(),
    }
}
