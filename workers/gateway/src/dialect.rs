//! The dialects of agents: how a call is read, and how its answer, its events and its refusal are
//! written.

use serde_json::{Value, json};

use crate::call::{Call, Reply};
use crate::refusal::Refusal;

use fields::Room;

mod fields;
mod chat;
mod messages;
mod responses;

/// A dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// OpenAI's chat completions.
    Chat,
    /// Anthropic's messages.
    Messages,
    /// OpenAI's responses.
    Responses,
}

impl Dialect {
    /// The dialect of a path, without `/v1`.
    pub(crate) fn at(path: &str) -> Option<Self> {
        match path {
            "/chat/completions" => Some(Self::Chat),
            "/messages" => Some(Self::Messages),
            "/responses" => Some(Self::Responses),
            _ => None,
        }
    }

    pub(crate) fn read(self, body: &[u8]) -> Result<Call, Refusal> {
        let mut room = Room::default();
        room.take(body)?;
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| Refusal::bad(format!("the body is no JSON: {error}")))?;
        let call = match self {
            Self::Chat => chat::read(&body, &mut room),
            Self::Messages => messages::read(&body),
            Self::Responses => responses::read(&body, &mut room),
        }?;
        if call.messages.is_empty() {
            return Err(Refusal::bad("the call has no message"));
        }
        Ok(call)
    }

    /// The answers to one call as one object, 1 or more. Only [`Self::Chat`] has more than one.
    pub(crate) fn write(self, model: &str, call: &Call, replies: &[Reply]) -> Value {
        match self {
            Self::Chat => chat::write(model, replies),
            Self::Messages => messages::write(model, only(replies)),
            Self::Responses => responses::write(model, call, only(replies)),
        }
    }

    /// The same as server-sent events.
    pub(crate) fn events(self, model: &str, call: &Call, replies: &[Reply]) -> String {
        match self {
            Self::Chat => chat::events(model, call, replies),
            Self::Messages => messages::events(model, only(replies)),
            Self::Responses => responses::events(model, call, only(replies)),
        }
    }

    pub(crate) fn refuse(self, refusal: &Refusal) -> Value {
        let Refusal { code, message, status, .. } = refusal;
        match self {
            Self::Chat | Self::Responses => {
                let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
                json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
            }
            Self::Messages => {
                let kind = match status.as_u16() {
                    401 => "authentication_error",
                    404 => "not_found_error",
                    413 => "request_too_large",
                    429 => "rate_limit_error",
                    _ => "invalid_request_error",
                };
                json!({ "type": "error", "error": { "type": kind, "message": message } })
            }
        }
    }
}

fn only(replies: &[Reply]) -> &Reply {
    replies.first().expect("each call has an answer")
}

#[cfg(test)]
mod tests;
