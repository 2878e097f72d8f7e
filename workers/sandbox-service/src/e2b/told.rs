//! What clients are told of sandboxes, and how they are told that something is not done.

use std::thread::available_parallelism;

use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use millrace_sandbox::live::LiveError;
use serde_json::{Value, json};

use crate::hosted::Hosted;
use crate::moments::moment;
use crate::service::ServiceError;

/// The version of E2B's daemon whose calls are served: the last without attributes of files.
const ENVD_VERSION: &str = "0.6.1";
/// Tells the client whether to ask again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// Something is not done. The client makes its exception by the status.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) words: String,
    retry: bool,
}

impl Failure {
    pub(super) fn new(status: StatusCode, words: impl Into<String>) -> Self {
        Self { status, words: words.into(), retry: false }
    }

    pub(super) fn not_served(what: &str, remedy: &str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, format!("this service does not serve {what}: {remedy}"))
    }

    /// The words by which the client knows that a sandbox is gone are "was not found".
    pub(super) fn gone(id: &str) -> Self {
        let id: String = id.chars().take(64).collect();
        let words = format!("the sandbox {id:?} was not found: it was never made, or has ended");
        Self::new(StatusCode::BAD_GATEWAY, words)
    }

    /// The same will work in a moment.
    pub(super) fn again(self) -> Self {
        Self { retry: true, ..self }
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        let words = error.to_string();
        match error {
            ServiceError::Missing(_) => Self::new(StatusCode::NOT_FOUND, words),
            ServiceError::Invalid { .. } => Self::new(StatusCode::BAD_REQUEST, words),
            ServiceError::Full(_) | ServiceError::Loading(_) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, words)
            }
            ServiceError::Sandbox(error) => error.into(),
        }
    }
}

impl From<LiveError> for Failure {
    fn from(error: LiveError) -> Self {
        let words = error.to_string();
        let status = match error {
            LiveError::Invalid { .. } => StatusCode::BAD_REQUEST,
            LiveError::File(fault) if fault.missing => StatusCode::NOT_FOUND,
            // ENOSPC, as the system says it.
            LiveError::File(fault) if fault.reason.contains("os error 28") => {
                StatusCode::INSUFFICIENT_STORAGE
            }
            LiveError::File(_) | LiveError::Failed(_) => StatusCode::BAD_REQUEST,
            LiveError::Start { .. } | LiveError::Refused(_) => StatusCode::INTERNAL_SERVER_ERROR,
            // The client looks for "was not found".
            LiveError::Ended => {
                let words = "the sandbox was not found: it ended meanwhile";
                return Self::new(StatusCode::BAD_GATEWAY, words);
            }
        };
        Self::new(status, words)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let text = json!({ "code": self.status.as_u16(), "message": self.words }).to_string();
        let mut answer = (self.status, [(header::CONTENT_TYPE, "application/json")], text).into_response();
        if self.retry {
            answer.headers_mut().insert(SHOULD_RETRY, header::HeaderValue::from_static("true"));
        }
        answer
    }
}

/// An answer with a body of JSON.
pub(super) fn told(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// What opens a sandbox: told to its owner alone.
pub(super) fn opened(hosted: &Hosted) -> Value {
    json!({
        "sandboxID": hosted.id,
        "templateID": hosted.wanted.image,
        "clientID": "millrace",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": hosted.token.reveal(),
        "trafficAccessToken": hosted.token.reveal(),
    })
}

/// What a sandbox is.
pub(super) fn described(hosted: &Hosted) -> Value {
    let bounds = hosted.live.spec().bounds;
    let ends = hosted.started + hosted.made.elapsed() + hosted.left();
    json!({
        "sandboxID": hosted.id,
        "templateID": hosted.wanted.image,
        "clientID": "millrace",
        "startedAt": moment(hosted.started),
        "endAt": moment(ends),
        "state": "running",
        "envdVersion": ENVD_VERSION,
        "cpuCount": available_parallelism().map_or(1, usize::from),
        "memoryMB": bounds.memory_bytes >> 20,
        "diskSizeMB": bounds.disk_bytes >> 20,
        "metadata": hosted.wanted.labels.metadata,
        "allowInternetAccess": false,
    })
}
