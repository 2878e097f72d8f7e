//! The shape of answers: bare JSON. What is not done has a code of HTTP's other than 200 and says why
//! as `detail`, which the client's own exception repeats.

use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::player::PlayError;
use crate::service::{ServiceError, invalid};

/// An answer that something is not done.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    words: String,
}

impl Failure {
    fn new(status: StatusCode, words: impl Into<String>) -> Self {
        Self { status, words: words.into() }
    }

    pub(super) fn no_key() -> Self {
        let words =
            "no known key: set ROCK_BASE_URL=http://gem:KEY@HOST:PORT, or send `Authorization: Bearer KEY`";
        Self::new(StatusCode::UNAUTHORIZED, words)
    }

    pub(super) fn missing(words: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, words)
    }

    pub(super) fn gone(why: &str) -> Self {
        Self::new(StatusCode::GONE, format!("the environment has ended: {why}; make another"))
    }

    pub(super) fn out_of_order(why: &str) -> Self {
        Self::new(StatusCode::CONFLICT, why)
    }

    pub(super) fn full(most: usize) -> Self {
        let words =
            format!("there are {most} environments, and no more may be; close one, or come back later");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, words)
    }

    pub(super) fn busy(waited: Duration) -> Self {
        let waited = waited.as_secs();
        let words = format!("other environments have been starting for {waited} s; come back later");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, words)
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        let status = match &error {
            ServiceError::Missing(_) => StatusCode::NOT_FOUND,
            ServiceError::Invalid { .. } => StatusCode::BAD_REQUEST,
            ServiceError::Full(_) | ServiceError::Loading(_) => StatusCode::SERVICE_UNAVAILABLE,
            ServiceError::Sandbox(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<PlayError> for Failure {
    fn from(error: PlayError) -> Self {
        let status = match &error {
            PlayError::Refused(_) | PlayError::Died(_) | PlayError::Unreadable(_) | PlayError::Long => {
                StatusCode::BAD_GATEWAY
            }
            PlayError::Late(_) => StatusCode::GATEWAY_TIMEOUT,
            PlayError::Sandbox(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let text = json!({ "detail": self.words }).to_string();
        (self.status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
    }
}

/// An answer that something is done.
pub(super) fn done(told: &impl Serialize) -> Response {
    match serde_json::to_string(told) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// What is asked.
pub(super) fn body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let read = &mut serde_json::Deserializer::from_slice(bytes);
    serde_path_to_error::deserialize(read).map_err(|error| {
        let field = error.path().to_string();
        invalid("body", field, format!("{}", error.inner())).into()
    })
}
