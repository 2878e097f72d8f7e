//! Why a call is not answered: a status of HTTP, and words for the agent's log.

use axum::http::StatusCode;

/// A refused call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    /// The status.
    pub(crate) status: StatusCode,
    /// A word for programs, as OpenAI's `error.code`.
    pub(crate) code: &'static str,
    /// For people: the field, the value and the remedy.
    pub(crate) message: String,
    /// Seconds after which the call may be repeated.
    pub(crate) retry_after: Option<u32>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after: None }
    }

    /// The call is malformed, or asks for what there is not.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// The context has no room for the call.
    pub(crate) fn overflow(used: usize, new: usize, most: u32) -> Self {
        let message = format!(
            "this model's maximum context length for a call is {most} tokens (environment.context_tokens), but the call has \
             {} tokens: {used} of the conversation so far and {new} new ones",
            used + new
        );
        Self::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
    }

    /// The call does not continue the conversation.
    pub(crate) fn fork(index: usize, why: &str) -> Self {
        let message = format!(
            "messages[{index}] {why}: each call continues the rollout's one conversation, with every answer as it was \
             given; environment.forks = \"separate\" takes others too"
        );
        Self::new(StatusCode::CONFLICT, "conversation_forked", message)
    }

    /// The key is no rollout's.
    pub(crate) fn key() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "invalid_api_key", "the key is not that of a rollout here")
    }

    /// The episode is over.
    pub(crate) fn over(why: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "rollout_over", why)
    }

    /// Too many calls of one agent wait.
    pub(crate) fn crowded(waiting: usize) -> Self {
        let message = format!("{waiting} calls of this rollout wait already; they are answered one by one");
        Self {
            retry_after: Some(1),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message)
        }
    }

    /// There is no such endpoint.
    pub(crate) fn path(path: &str) -> Self {
        let message = format!(
            "path={path:?} is not served; there are /v1/chat/completions, /v1/messages, /v1/responses and /v1/models"
        );
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// The call has too many bytes.
    pub(crate) fn too_large(most: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("a call has at most {most} bytes"))
    }
}
