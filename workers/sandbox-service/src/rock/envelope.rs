//! The shape of ROCK's answers: `{status, message, error, result}`.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::keys::Owner;
use crate::service::{Service, ServiceError, invalid};
use crate::session::SessionError;
use crate::sessions::OpenError;

/// ROCK's codes: the client's fault, ours, and a command's.
const CLIENT: u16 = 4_000;
const SERVER: u16 = 5_000;
const COMMAND: u16 = 6_000;

/// An answer that something is not done.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    code: u16,
    words: String,
    exit_code: Option<i32>,
}

impl Failure {
    /// A command that failed, for the model to see.
    pub(super) fn command(words: String, exit_code: Option<i32>) -> Self {
        Self { status: StatusCode::OK, code: COMMAND, words, exit_code }
    }

    pub(super) fn unknown_path() -> Self {
        let words = "this service has no such path; it serves ROCK's /apis/envs/sandbox/v1".to_owned();
        Self { status: StatusCode::NOT_FOUND, code: CLIENT, words, exit_code: None }
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        use millrace_sandbox::live::LiveError;
        let code = match &error {
            ServiceError::Missing(_) | ServiceError::Invalid { .. } => CLIENT,
            ServiceError::Full(_) | ServiceError::Loading(_) => SERVER,
            ServiceError::Sandbox(of) => match of {
                LiveError::Invalid { .. } | LiveError::Failed(_) | LiveError::File(_) => CLIENT,
                LiveError::Start { .. } | LiveError::Refused(_) | LiveError::Ended => SERVER,
            },
        };
        Self { status: StatusCode::OK, code, words: error.to_string(), exit_code: None }
    }
}

impl From<millrace_sandbox::live::LiveError> for Failure {
    fn from(error: millrace_sandbox::live::LiveError) -> Self {
        ServiceError::from(error).into()
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Sandbox(error) => error.into(),
            SessionError::Late(_)
            | SessionError::Long
            | SessionError::ForegroundLate(_)
            | SessionError::ForegroundLong => Self::command(error.to_string(), Some(124)),
            SessionError::Ended | SessionError::Full => Self::command(error.to_string(), None),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Sandbox(error) => error.into(),
            OpenError::Exists(_) | OpenError::Full => {
                Self { status: StatusCode::OK, code: CLIENT, words: error.to_string(), exit_code: None }
            }
        }
    }
}

impl From<Failure> for Response {
    fn from(failure: Failure) -> Self {
        let Failure { status, code, words, exit_code } = failure;
        let text = json!({
            "status": "Failed",
            "message": words,
            "error": words,
            "result": { "code": code, "exit_code": exit_code, "failure_reason": words },
        });
        (status, [(header::CONTENT_TYPE, "application/json")], text.to_string()).into_response()
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        self.into()
    }
}

/// An answer that something is done.
pub(super) fn done(result: &impl Serialize) -> Response {
    let text = json!({ "status": "Success", "message": "", "error": null, "result": result });
    ([(header::CONTENT_TYPE, "application/json")], text.to_string()).into_response()
}

/// Who asks. It stands before the body among the arguments of a handler: without a known key no body
/// is read.
#[derive(Debug)]
pub(super) struct Asker(pub(super) Owner);

impl FromRequestParts<Service> for Asker {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Failure> {
        service.owner(&parts.headers).map(Self).ok_or_else(|| Failure {
            status: StatusCode::UNAUTHORIZED,
            code: CLIENT,
            words: "no known key: send `Authorization: Bearer KEY`".to_owned(),
            exit_code: None,
        })
    }
}

/// What is asked, as JSON.
#[derive(Debug)]
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Service> for Asked<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, service).await.map_err(|error| Failure {
            status: error.status(),
            code: CLIENT,
            words: format!("body: {}; a request has 8 MiB at most, a file 256 MiB", error.body_text()),
            exit_code: None,
        })?;
        let read = &mut serde_json::Deserializer::from_slice(&bytes);
        serde_path_to_error::deserialize(read).map(Self).map_err(|error| {
            let field = error.path().to_string();
            invalid("body", field, format!("{}", error.inner())).into()
        })
    }
}
