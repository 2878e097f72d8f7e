//! What a program asks of the proxy: `CONNECT host:port`, or a request to `http://host/path`, which
//! becomes one to the host itself.

use std::fmt::Display;

use millrace_egress::{RuleError, Target};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::hop_by_hop;
use super::refusal::{Refusal, shown};
use super::relay::Flow;

/// Bytes of a request's head at most.
const MAX_HEAD: usize = 16 * 1024;
/// Headers at most.
const MAX_HEADERS: usize = 100;
/// The port of `http://`.
const HTTP: u16 = 80;
/// What a program hears when its tunnel is there.
const CONNECTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
/// Headers that are written again here, or that no connection through this proxy has.
const OWN: [&str; 4] = ["content-length", "host", "transfer-encoding", "upgrade"];

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) target: Target,
    pub(super) flow: Flow,
}

/// Reads the head of a request, and what came with it.
///
/// # Errors
/// It is none, too long, or names no host that there can be.
pub(super) async fn read(client: &mut (impl AsyncRead + Unpin)) -> Result<Asked, Refusal> {
    let mut head = Vec::with_capacity(1024);
    loop {
        let before = head.len();
        let mut room = client.take((MAX_HEAD - before) as u64);
        if room.read_buf(&mut head).await.unwrap_or(0) == 0 {
            return Err(Refusal::bad("the request ends within its head"));
        }
        // Only at the end of a line may the head be complete.
        if head[before..].contains(&b'\n')
            && let Some(asked) = parse(&head)?
        {
            return Ok(asked);
        }
        if head.len() >= MAX_HEAD {
            let reason = format!("the head of the request is too long; send less than {MAX_HEAD} bytes");
            return Err(Refusal::long(reason));
        }
    }
}

/// The request that begins with these bytes; `None` if its head goes on.
fn parse(bytes: &[u8]) -> Result<Option<Asked>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(bytes) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Refusal::long(format_args!("too many headers; send at most {MAX_HEADERS}")));
        }
        Err(error) => return Err(Refusal::bad(format_args!("this is no request of HTTP/1.1: {error}"))),
    };
    let (method, path) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let after = &bytes[head..];
    if method == "CONNECT" {
        let target = Target::read(path, None).map_err(|error| unreadable(path, error))?;
        let flow = Flow { to_client: CONNECTED, to_server: after.to_vec(), rest: None };
        return Ok(Some(Asked { target, flow }));
    }
    let Some((authority, rest)) = absolute(path) else {
        return Err(Refusal::bad(format_args!(
            "{} is not for a proxy; ask for http://host/path, or for CONNECT host:443",
            shown(path)
        )));
    };
    let target = Target::read(authority, Some(HTTP)).map_err(|error| unreadable(authority, error))?;
    let length = content_length(request.headers)?;
    let mut to_server = rewritten(&request, &target, rest, length);
    let body = length.unwrap_or(0);
    let here = usize::try_from(body).unwrap_or(usize::MAX).min(after.len());
    to_server.extend(&after[..here]);
    let flow = Flow { to_client: b"", to_server, rest: Some(body - here as u64) };
    Ok(Some(Asked { target, flow }))
}

fn unreadable(text: &str, error: RuleError) -> Refusal {
    Refusal::forbidden(format_args!("{} cannot be reached from a sandbox: {error}", shown(text)))
}

/// Host with port, and the rest, of `http://host:port/rest`.
fn absolute(path: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = path.split_at_checked("http://".len())?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    scheme.eq_ignore_ascii_case("http://").then(|| rest.split_at(end))
}

/// The length of the body; `None` if none is told.
fn content_length(headers: &[httparse::Header<'_>]) -> Result<Option<u64>, Refusal> {
    let of = |name: &'static str| headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    if of("transfer-encoding").next().is_some() {
        return Err(Refusal::no_length());
    }
    let mut lengths = of("content-length").map(|header| header.value.trim_ascii());
    let Some(length) = lengths.next() else { return Ok(None) };
    let number =
        std::str::from_utf8(length).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match (number.and_then(|text| text.parse().ok()), lengths.next()) {
        (Some(length), None) => Ok(Some(length)),
        _ => Err(Refusal::bad("the Content-Length is no single number")),
    }
}

/// The head as the host gets it: one request for its own path, on a connection that ends with the answer.
fn rewritten(
    request: &httparse::Request<'_, '_>,
    target: &Target,
    rest: &str,
    length: Option<u64>,
) -> Vec<u8> {
    let is_connection = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("connection");
    let dropped = hop_by_hop(request.headers.iter().filter(is_connection).map(|header| header.value));
    let path = rest.split('#').next().unwrap_or_default();
    let root = if path.starts_with('/') { "" } else { "/" };
    let host = target.to_string();
    let host = host.strip_suffix(":80").unwrap_or(&host);
    let version = request.version.unwrap_or(1);
    let mut head = format!(
        "{} {root}{path} HTTP/1.{version}\r\nHost: {host}\r\nConnection: close\r\n",
        request.method.unwrap_or_default()
    )
    .into_bytes();
    let mut put = |name: &str, value: &dyn Display| head.extend(format!("{name}: {value}\r\n").into_bytes());
    if let Some(length) = length {
        put("Content-Length", &length);
    }
    for header in request.headers.iter() {
        let name = header.name.to_ascii_lowercase();
        if !dropped.contains(&name) && !OWN.contains(&name.as_str()) {
            head.extend([header.name.as_bytes(), b": ", header.value, b"\r\n"].concat());
        }
    }
    head.extend(b"\r\n");
    head
}

#[cfg(test)]
mod tests;
