//! What the proxy does not do: a status and one line, which is the status line's reason as well, where
//! programs show it.

use std::fmt;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Time to take a refusal.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a request that are read after its refusal. A connection that is closed with unread bytes may
/// lose what was written.
const MAX_UNREAD: u64 = 256 * 1024;
/// Bytes of a reason.
const MAX_REASON: usize = 600;
/// Bytes of a target in a reason.
const MAX_SHOWN: usize = 120;

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) reason: String,
}

/// What a program sent, for a reason: printable, and not all of it.
pub(super) fn shown(text: &str) -> String {
    let short: String = text.chars().take(MAX_SHOWN).collect();
    format!("{short:?}{}", if short.len() < text.len() { "…" } else { "" })
}

impl Refusal {
    /// No rule allows it.
    pub(super) fn forbidden(reason: impl fmt::Display) -> Self {
        Self::new(403, &reason)
    }

    /// The host does not answer.
    pub(super) fn unreachable(reason: impl fmt::Display) -> Self {
        Self::new(502, &reason)
    }

    /// It is no request.
    pub(super) fn bad(reason: impl fmt::Display) -> Self {
        Self::new(400, &reason)
    }

    /// The head is too long.
    pub(super) fn long(reason: impl fmt::Display) -> Self {
        Self::new(431, &reason)
    }

    /// The body's length is not told.
    pub(super) fn no_length() -> Self {
        Self::new(411, &"a request to http:// needs a Content-Length where it has a body; https:// does not")
    }

    /// The head does not come.
    pub(super) fn late() -> Self {
        Self::new(408, &"the request took too long; send it as soon as the connection is there")
    }

    /// There are too many.
    pub(super) fn busy() -> Self {
        Self::new(503, &"too many connections at once; close some, or try again later")
    }

    fn new(status: u16, reason: &dyn fmt::Display) -> Self {
        let printable = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
        Self { status, reason: reason.to_string().chars().take(MAX_REASON).map(printable).collect() }
    }

    /// Sends it, and waits for the program to take it, but not for long.
    pub(super) async fn send(&self, mut client: UnixStream) {
        let Self { status, reason } = self;
        tracing::debug!(status, reason, "connection of a sandbox refused");
        let retry = if *status == 503 { "Retry-After: 1\r\n" } else { "" };
        let answer = format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n{retry}Connection: close\r\n\r\n{reason}\n",
            reason.len() + 1
        );
        let sent = async {
            client.write_all(answer.as_bytes()).await?;
            client.shutdown().await?;
            tokio::io::copy(&mut client.take(MAX_UNREAD), &mut tokio::io::sink()).await
        };
        // The program is gone, or does not read.
        let _ = timeout(PATIENCE, sent).await;
    }
}
