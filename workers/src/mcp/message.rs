//! Messages of JSON-RPC 2.0, one a line.

use serde::Deserialize;
use serde_json::{Value, json};

use super::line::Line;

/// Characters of a server's own error that are kept.
const MAX_ERROR: usize = 2_000;
/// The error "method not found".
const NO_METHOD: i32 = -32_601;

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reply {
    /// The result.
    Result(Value),
    /// An error, for people.
    Error(String),
    /// A message that is longer than it may be.
    TooLong,
}

/// A message of the server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Incoming {
    /// To the request of this number.
    Response(u64, Reply),
    /// A request of the server: its id, and what it wants.
    Request(Value, String),
    /// A notification.
    Notification(String),
    /// None, for this reason.
    Garbage(String),
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<ErrorObject>,
}

#[derive(Deserialize)]
struct ErrorObject {
    #[serde(default)]
    message: String,
}

impl Incoming {
    /// Reads a line.
    pub(super) fn read(line: &Line) -> Self {
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong(head) => {
                return match id_in(head) {
                    Some(id) => Self::Response(id, Reply::TooLong),
                    None => Self::Garbage("it is too long, and of no request that is known".to_owned()),
                };
            }
        };
        let message: Message = match serde_json::from_slice(line) {
            Ok(message) => message,
            Err(error) => return Self::Garbage(error.to_string()),
        };
        match message {
            Message { method: Some(method), id: Some(id), .. } => Self::Request(id, method),
            Message { method: Some(method), id: None, .. } => Self::Notification(method),
            Message { id, result, error, .. } => match (id.as_ref().and_then(Value::as_u64), result, error) {
                (Some(id), _, Some(error)) => {
                    Self::Response(id, Reply::Error(error.message.chars().take(MAX_ERROR).collect()))
                }
                (Some(id), Some(result), None) => Self::Response(id, Reply::Result(result)),
                _ => Self::Garbage("it is neither a response nor a request".to_owned()),
            },
        }
    }
}

/// The id in the beginning of a response; `None` where it comes after the result.
fn id_in(head: &[u8]) -> Option<u64> {
    let head = String::from_utf8_lossy(head);
    let before = head.split("\"result\"").next()?;
    let (_, after) = before.split_once("\"id\"")?;
    let digits = after.trim_start().strip_prefix(':')?.trim_start();
    let end = digits.find(|c: char| !c.is_ascii_digit())?;
    digits[..end].parse().ok()
}

/// A request.
pub(super) fn request(id: u64, method: &str, params: &Value) -> Vec<u8> {
    line(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
}

/// A notification.
pub(super) fn notification(method: &str, params: &Value) -> Vec<u8> {
    line(&json!({ "jsonrpc": "2.0", "method": method, "params": params }))
}

/// The answer to a request of the server: a ping is answered; a client that offers nothing, neither
/// roots nor sampling, knows no other.
pub(super) fn answer(id: &Value, method: &str) -> Vec<u8> {
    if method == "ping" {
        return line(&json!({ "jsonrpc": "2.0", "id": id, "result": {} }));
    }
    let error = json!({ "code": NO_METHOD, "message": format!("this client has no {method}") });
    line(&json!({ "jsonrpc": "2.0", "id": id, "error": error }))
}

fn line(message: &Value) -> Vec<u8> {
    // JSON has no end of a line within it.
    let mut line = message.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Incoming {
        Incoming::read(&Line::Whole(text.as_bytes().to_vec()))
    }

    #[test]
    fn a_line_is_a_response_a_request_a_notification_or_garbage() {
        assert_eq!(
            read(r#"{"id":3,"result":{"a":1}}"#),
            Incoming::Response(3, Reply::Result(json!({"a": 1})))
        );
        let error = r#"{"id":3,"error":{"code":-1,"message":"no"}}"#;
        assert_eq!(read(error), Incoming::Response(3, Reply::Error("no".to_owned())));
        assert_eq!(read(r#"{"id":"a","method":"ping"}"#), Incoming::Request(json!("a"), "ping".to_owned()));
        assert_eq!(read(r#"{"method":"m","params":1}"#), Incoming::Notification("m".to_owned()));
        for garbage in ["", "hello", "[]", "{}", "7", r#"{"id":"3","result":{}}"#, r#"{"id":3}"#, "{\"id\":"]
        {
            assert!(matches!(read(garbage), Incoming::Garbage(_)), "{garbage}");
        }
        let long = |head: &str| Incoming::read(&Line::TooLong(head.as_bytes().to_vec()));
        let found = Incoming::Response(41, Reply::TooLong);
        assert_eq!(long(r#"{"jsonrpc":"2.0","id": 41,"result":{"content":["#), found);
        assert!(matches!(long(r#"{"result":{"id":41,"#), Incoming::Garbage(_)));
        assert!(matches!(long("xxxxxxxxxxx"), Incoming::Garbage(_)));
    }
}
