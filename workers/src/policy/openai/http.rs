//! Requests to one server, each with a deadline, and what its status codes mean.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use millrace_objects::choose_ring;
use reqwest::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use tokio::time::Instant;

use super::ServerError;

/// Time to connect.
const CONNECT: Duration = Duration::from_secs(5);
/// Until a busy server gets the request again: by default, and at most.
const BUSY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Characters of a server's message in an error.
const WORDS: usize = 300;
/// Bytes of a whole reply, or of one event of a streamed reply, at most.
const MAX_REPLY_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of all events of a reply: more than the longest turn has with its log-probabilities.
const MAX_STREAM_BYTES: u64 = 1024 * 1024 * 1024;
/// Bytes of a refusal that are read; [`WORDS`] of it are repeated.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// For how long a reply may be streamed. A server that trickles does not keep its turn for longer.
const LONGEST_STREAM: Duration = Duration::from_secs(4 * 3600);

/// A client of one server. Connections are kept.
#[derive(Debug)]
pub(crate) struct Http {
    client: Client,
    base: String,
    key: Option<String>,
    silence: Duration,
}

impl Http {
    pub(crate) fn new(base: &str, key: Option<String>, silence: Duration) -> Self {
        choose_ring();
        // A redirect would send the conversation and the key to an unknown server.
        let client = Client::builder().connect_timeout(CONNECT).redirect(Policy::none()).build();
        Self { client: client.expect("the TLS library is linked in"), base: base.to_owned(), key, silence }
    }

    /// The longest silence before an error.
    pub(super) const fn silence(&self) -> Duration {
        self.silence
    }

    /// `POST`s JSON to a path and reads the whole reply.
    pub(super) async fn post(&self, to: &str, body: &Value, within: Duration) -> Result<Bytes, ServerError> {
        in_time(within, to, async { read(self.send(Method::POST, to, Some(body)).await?).await }).await
    }

    /// The same, and reads JSON.
    pub(crate) async fn ask(&self, to: &str, body: &Value, within: Duration) -> Result<Value, ServerError> {
        parse(&self.post(to, body, within).await?)
    }

    /// `GET`s JSON.
    pub(super) async fn get(&self, to: &str, within: Duration) -> Result<Value, ServerError> {
        let reply =
            in_time(within, to, async { read(self.send(Method::GET, to, None).await?).await }).await?;
        parse(&reply)
    }

    /// Whether a `GET` succeeds.
    pub(super) async fn is_well(&self, to: &str, within: Duration) -> Result<(), ServerError> {
        in_time(within, to, async { self.send(Method::GET, to, None).await.map(drop) }).await
    }

    /// `POST`s JSON and reads the reply's events as they come. Dropping them ends the request.
    pub(super) async fn stream(&self, to: &str, body: &Value) -> Result<Events, ServerError> {
        let response = in_time(self.silence, to, self.send(Method::POST, to, Some(body))).await?;
        let until = Instant::now() + LONGEST_STREAM;
        Ok(Events { response, silence: self.silence, until, read: BytesMut::new(), searched: 0, bytes: 0 })
    }

    async fn send(&self, method: Method, to: &str, body: Option<&Value>) -> Result<Response, ServerError> {
        let mut request = self.client.request(method, format!("{}{to}", self.base));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        if let Some(body) = body {
            request = with_json(request, body);
        }
        let response = request.send().await.map_err(|error| ServerError::Away(words(&error)))?;
        check_status(to, response).await
    }
}

fn with_json(request: RequestBuilder, body: &Value) -> RequestBuilder {
    request.header(CONTENT_TYPE, "application/json").body(body.to_string())
}

/// The events of a streamed reply.
#[derive(Debug)]
pub(super) struct Events {
    response: Response,
    silence: Duration,
    until: Instant,
    read: BytesMut,
    /// How much of `read` has no end of a line.
    searched: usize,
    /// Bytes of all events so far.
    bytes: u64,
}

impl Events {
    /// The next event's JSON; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Value>, ServerError> {
        loop {
            while let Some(end) = self.read[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.read.split_to(self.searched + end + 1);
                self.searched = 0;
                let Some(data) = line.strip_prefix(b"data:") else { continue };
                let data = data.trim_ascii();
                if data == b"[DONE]" {
                    return Ok(None);
                }
                return parse(data).map(Some);
            }
            self.searched = self.read.len();
            let chunk = in_time(self.silence, "the reply", async {
                self.response.chunk().await.map_err(|error| ServerError::Away(words(&error)))
            });
            match chunk.await? {
                Some(chunk) => {
                    self.bytes += chunk.len() as u64;
                    self.read.extend_from_slice(&chunk);
                }
                None => return Err(ServerError::Away("the reply ended in the middle".to_owned())),
            }
            if self.read.len() > MAX_REPLY_BYTES || self.bytes > MAX_STREAM_BYTES {
                return Err(ServerError::malformed(&format!(
                    "an event has more than {MAX_REPLY_BYTES} bytes, or all have more than {MAX_STREAM_BYTES}"
                )));
            }
            if Instant::now() >= self.until {
                return Err(ServerError::Away(format!("the reply takes longer than {LONGEST_STREAM:?}")));
            }
        }
    }
}

async fn in_time<T>(
    within: Duration,
    of: &str,
    call: impl Future<Output = Result<T, ServerError>>,
) -> Result<T, ServerError> {
    let late = |_| ServerError::Away(format!("no word of {of} within {within:?}"));
    tokio::time::timeout(within, call).await.map_err(late)?
}

async fn read(response: Response) -> Result<Bytes, ServerError> {
    match up_to(response, MAX_REPLY_BYTES).await? {
        (content, true) => Ok(content),
        (_, false) => Err(ServerError::malformed(&format!("it has more than {MAX_REPLY_BYTES} bytes"))),
    }
}

/// The reply's first `most` bytes, and whether that is all of it.
async fn up_to(mut response: Response, most: usize) -> Result<(Bytes, bool), ServerError> {
    let mut content = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| ServerError::Away(words(&error)))? {
        if chunk.len() > most - content.len() {
            content.extend_from_slice(&chunk[..most - content.len()]);
            return Ok((content.freeze(), false));
        }
        content.extend_from_slice(&chunk);
    }
    Ok((content.freeze(), true))
}

/// A successful reply, or the error that its status means.
async fn check_status(to: &str, response: Response) -> Result<Response, ServerError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    if status.is_redirection() {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or("?");
        let location: String = location.chars().take(WORDS).collect();
        return Err(ServerError::Unfit(format!(
            "{to} answered {status}: it leads to {location:?}, which is not followed; name the server itself"
        )));
    }
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let message = up_to(response, MAX_REFUSAL_BYTES).await.map(|(message, _)| message).unwrap_or_default();
    let message: String = String::from_utf8_lossy(&message).chars().take(WORDS).collect();
    let message = format!("{to} answered {status}: {message}");
    Err(match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            let after = seconds.map_or(BUSY.0, Duration::from_secs).min(BUSY.1);
            ServerError::Busy { after, message }
        }
        // A proxy in front of a server that is not there.
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => ServerError::Away(message),
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => {
            ServerError::Refused(message)
        }
        status if status.is_client_error() => ServerError::Unfit(message),
        _ => ServerError::Failed(message),
    })
}

fn parse(data: &[u8]) -> Result<Value, ServerError> {
    let fail = |error| {
        let start: String = String::from_utf8_lossy(data).chars().take(WORDS).collect();
        // NaN and Infinity are not JSON; servers in Python write them all the same.
        ServerError::malformed(&format!("it is not JSON ({error}): {start}"))
    };
    serde_json::from_slice(data).map_err(fail)
}

/// An error with its causes.
fn words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut behind = error.source();
    while let Some(error) = behind {
        words = format!("{words}: {error}");
        behind = error.source();
    }
    words
}

#[cfg(test)]
mod tests;
