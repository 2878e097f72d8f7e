//! The protocol of calls: Connect, with JSON. A unary call is JSON both ways, and its fault is a
//! status with JSON. A stream is frames in one body, and its fault the last of them.

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use millrace_sandbox::live::LiveError;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::CALL_BYTES;
use super::told::Failure;
use crate::commands::CommandError;

/// Bytes before the JSON of a frame: its flags and its length.
const HEAD: usize = 5;
/// The flag of a frame that is compressed.
const COMPRESSED: u8 = 1;
/// The flag of the last frame.
const LAST: u8 = 2;
const UNARY_TYPE: &str = "application/json";
const STREAM_TYPE: &str = "application/connect+json";

/// What kind of fault it is. The client makes its exception by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    InvalidArgument,
    NotFound,
    AlreadyExists,
    FailedPrecondition,
    ResourceExhausted,
    DeadlineExceeded,
    Unimplemented,
    Unavailable,
    DataLoss,
    Internal,
}

impl Code {
    const fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::FailedPrecondition => "failed_precondition",
            Self::ResourceExhausted => "resource_exhausted",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Unimplemented => "unimplemented",
            Self::Unavailable => "unavailable",
            Self::DataLoss => "data_loss",
            Self::Internal => "internal",
        }
    }

    const fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::DataLoss | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// A call is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    code: Code,
    words: String,
}

impl Fault {
    pub(super) fn new(code: Code, words: impl Into<String>) -> Self {
        Self { code, words: words.into() }
    }

    fn json(&self) -> Value {
        json!({ "code": self.code.name(), "message": self.words })
    }
}

impl From<LiveError> for Fault {
    fn from(error: LiveError) -> Self {
        let Failure { status, words, .. } = error.into();
        let code = match status {
            StatusCode::BAD_REQUEST => Code::InvalidArgument,
            StatusCode::NOT_FOUND => Code::NotFound,
            StatusCode::INSUFFICIENT_STORAGE => Code::ResourceExhausted,
            StatusCode::BAD_GATEWAY => Code::Unavailable,
            _ => Code::Internal,
        };
        Self::new(code, words)
    }
}

impl From<CommandError> for Fault {
    fn from(error: CommandError) -> Self {
        let code = match error {
            CommandError::Sandbox(error) => return error.into(),
            CommandError::Full | CommandError::Listeners(_) => Code::ResourceExhausted,
            CommandError::Ended => Code::NotFound,
            CommandError::NoInput | CommandError::NoTerminal => Code::FailedPrecondition,
        };
        Self::new(code, error.to_string())
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let text = self.json().to_string();
        (self.code.status(), [(header::CONTENT_TYPE, UNARY_TYPE)], text).into_response()
    }
}

/// A call that nobody serves.
pub(super) async fn not_served(headers: HeaderMap, uri: Uri) -> Response {
    let words = format!(
        "this service does not serve {}: there are no terminals, and folders are not watched; run commands \
         without a terminal, and list folders",
        uri.path()
    );
    let fault = Fault::new(Code::Unimplemented, words);
    if content_type(&headers) == STREAM_TYPE { stopped(&fault) } else { fault.into_response() }
}

fn content_type(headers: &HeaderMap) -> &str {
    let text = headers.get(header::CONTENT_TYPE).and_then(|text| text.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim()
}

fn expect(headers: &HeaderMap, expected: &str) -> Result<(), Fault> {
    let found = content_type(headers);
    if found == expected {
        return Ok(());
    }
    let words = format!("content-type={found:?}: send {expected}, calls are served with JSON alone");
    Err(Fault::new(Code::Unimplemented, words))
}

fn json_of<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    let read = &mut serde_json::Deserializer::from_slice(bytes);
    serde_path_to_error::deserialize(read)
        .map_err(|error| Fault::new(Code::InvalidArgument, format!("{}: {}", error.path(), error.inner())))
}

/// What a unary call asks.
pub(super) fn asked<T: DeserializeOwned>(headers: &HeaderMap, bytes: &[u8]) -> Result<T, Fault> {
    expect(headers, UNARY_TYPE)?;
    json_of(bytes)
}

/// What a unary call is told.
pub(super) fn answer(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, UNARY_TYPE)], value.to_string()).into_response()
}

/// The one message of a call whose answer is a stream.
pub(super) fn asked_once<T: DeserializeOwned>(headers: &HeaderMap, bytes: &Bytes) -> Result<T, Fault> {
    expect(headers, STREAM_TYPE)?;
    let mut frames = Frames(BytesMut::from(&bytes[..]));
    let frame = frames.next()?.ok_or_else(|| cut_off(bytes.len()))?;
    json_of(&frame)
}

fn cut_off(bytes: usize) -> Fault {
    Fault::new(Code::InvalidArgument, format!("a message is cut off behind {bytes} bytes"))
}

/// Milliseconds that the client gives a call. `None`: no bound.
pub(super) fn timeout_ms(headers: &HeaderMap) -> Result<Option<u64>, Fault> {
    let Some(text) = headers.get("connect-timeout-ms") else { return Ok(None) };
    let ms = text.to_str().ok().and_then(|text| text.parse().ok()).filter(|ms| *ms > 0);
    let words = format!("connect-timeout-ms={text:?}: a number of milliseconds above 0");
    ms.map(Some).ok_or_else(|| Fault::new(Code::InvalidArgument, words))
}

/// A frame that more follow.
pub(super) fn frame(value: &Value) -> Bytes {
    framed(0, value)
}

/// The last frame of a stream.
pub(super) fn last(fault: Option<&Fault>) -> Bytes {
    framed(LAST, &fault.map_or_else(|| json!({}), |fault| json!({ "error": fault.json() })))
}

fn framed(flags: u8, value: &Value) -> Bytes {
    let text = value.to_string();
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&[flags][..], &length.to_be_bytes(), text.as_bytes()].concat().into()
}

/// A stream of frames as they come.
pub(super) fn stream(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let frames = frames.map(Ok::<_, std::convert::Infallible>);
    ([(header::CONTENT_TYPE, STREAM_TYPE)], Body::from_stream(frames)).into_response()
}

/// A stream of this one message, or of this fault alone.
pub(super) fn once(message: &Result<Value, Fault>) -> Response {
    let bytes = match message {
        Ok(value) => [frame(value), last(None)].concat(),
        Err(fault) => last(Some(fault)).to_vec(),
    };
    ([(header::CONTENT_TYPE, STREAM_TYPE)], bytes).into_response()
}

/// A stream that ends before it has begun.
pub(super) fn stopped(fault: &Fault) -> Response {
    once(&Err(fault.clone()))
}

/// The messages of a call that is asked by a stream.
pub(super) struct Messages {
    body: axum::body::BodyDataStream,
    frames: Frames,
}

impl Messages {
    pub(super) fn of(headers: &HeaderMap, body: Body) -> Result<Self, Fault> {
        expect(headers, STREAM_TYPE)?;
        Ok(Self { body: body.into_data_stream(), frames: Frames(BytesMut::new()) })
    }

    /// The next one. `None`: there are no more.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Fault> {
        loop {
            if let Some(frame) = self.frames.next()? {
                return json_of(&frame).map(Some);
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.frames.0.extend_from_slice(&bytes),
                Some(Err(error)) => return Err(Fault::new(Code::InvalidArgument, error.to_string())),
                None if self.frames.0.is_empty() => return Ok(None),
                None => return Err(cut_off(self.frames.0.len())),
            }
        }
    }
}

/// Bytes that are not read yet.
struct Frames(BytesMut);

impl Frames {
    /// The next message. `None`: it is not there as a whole.
    fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        let Some(head) = self.0.first_chunk::<HEAD>() else { return Ok(None) };
        let [flags, length @ ..] = *head;
        if flags & COMPRESSED != 0 {
            let words = "a message is compressed; send it as it is";
            return Err(Fault::new(Code::Unimplemented, words));
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > CALL_BYTES {
            let words = format!("a message of {length} bytes; at most {CALL_BYTES}");
            return Err(Fault::new(Code::InvalidArgument, words));
        }
        if self.0.len() < HEAD + length {
            return Ok(None);
        }
        self.0.advance(HEAD);
        Ok(Some(self.0.split_to(length).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_are_written_however_they_are_cut() {
        let bytes = [frame(&json!({ "a": 1 })), frame(&json!({})), last(None)].concat();
        for cut in 0..=bytes.len() {
            let (mut frames, mut read) = (Frames(BytesMut::new()), Vec::new());
            for part in [&bytes[..cut], &bytes[cut..]] {
                frames.0.extend_from_slice(part);
                while let Some(frame) = frames.next().unwrap() {
                    read.push(String::from_utf8(frame.to_vec()).unwrap());
                }
            }
            assert_eq!(read, ["{\"a\":1}", "{}", "{}"], "{cut}");
        }
    }

    #[test]
    fn a_frame_that_cannot_be_is_refused() {
        let wrong = |bytes: &[u8]| Frames(BytesMut::from(bytes)).next().unwrap_err().words;
        assert!(wrong(&[0, 0xff, 0xff, 0xff, 0xff]).contains("4294967295"));
        assert!(wrong(&[1, 0, 0, 0, 0]).contains("compressed"));
    }
}
