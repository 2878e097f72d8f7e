//! Servers within a sandbox, for clients outside: a request goes to a port of the sandbox's loopback,
//! and what comes back goes to the client, an upgraded connection too. Bodies pass as they come.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, HOST, HeaderName, HeaderValue, UPGRADE};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use bytes::BytesMut;
use hyper::client::conn::http1::handshake;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use millrace_sandbox::egress::hop_by_hop;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::hosted::Using;
use crate::service::{Service, ServiceError, invalid};

/// Headers by which a client opens this service: no program within a sandbox shall learn them.
const OURS: [&str; 5] = [
    "x-access-token",
    "e2b-traffic-access-token",
    "e2b-sandbox-id",
    "e2b-sandbox-port",
    "x-rock-target-port",
];
/// A connection in which nothing moves for so long ends: its client may be gone, and it keeps the
/// sandbox in use.
pub(crate) const IDLE: Duration = Duration::from_secs(300);
/// Bytes that are carried at once.
const PART_BYTES: usize = 64 * 1024;
/// The host as the client named it.
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Why a server within a sandbox has not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PortError {
    #[error("{0}")]
    Sandbox(#[from] ServiceError),
    #[error("the server on port {0} of the sandbox does not answer: {1}")]
    Broken(u16, hyper::Error),
}

/// The port that a text names.
pub(crate) fn port(text: &str) -> Result<u16, ServiceError> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| invalid("port", text, "1 to 65535"))
}

impl PortError {
    /// As a proxy says it.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Sandbox(ServiceError::Missing(_)) => StatusCode::NOT_FOUND,
            Self::Sandbox(ServiceError::Invalid { .. }) => StatusCode::BAD_REQUEST,
            Self::Sandbox(_) | Self::Broken(..) => StatusCode::BAD_GATEWAY,
        }
    }
}

/// Asks the server on this port. `path` begins with `/`, and has the query behind it.
pub(crate) async fn ask(
    service: &Service,
    sandbox: Using,
    port: u16,
    path: &str,
    mut request: Request,
) -> Result<Response, PortError> {
    let target = PathAndQuery::try_from(path).map_err(|error| invalid("path", path, error.to_string()))?;
    let stream = sandbox.live.connect(port).await.map_err(ServiceError::from)?;
    let broken = |error| PortError::Broken(port, error);
    let (mut server, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // As long as the connection lasts, the sandbox is in use, whatever the connection becomes.
    let sandbox = Arc::new(sandbox);
    let uses = Arc::clone(&sandbox);
    tokio::spawn(async move {
        let ended = connection.with_upgrades().await;
        drop(uses);
        ended
    });
    *request.uri_mut() = Uri::from(target);
    let client = upgrade_of(&mut request);
    service.settings().keys.take_from(request.headers_mut());
    pass_on(request.headers_mut(), port, client.is_some());
    let mut response = server.send_request(request).await.map_err(broken)?;
    match client {
        Some(client) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            let server = hyper::upgrade::on(&mut response);
            tokio::spawn(join(sandbox, client, server));
        }
        _ => {
            response.headers_mut().remove(CONNECTION);
        }
    }
    Ok(response.map(Body::new))
}

/// The client's own connection, where it asks for another protocol.
fn upgrade_of(request: &mut Request) -> Option<OnUpgrade> {
    request.headers().contains_key(UPGRADE).then(|| hyper::upgrade::on(request))
}

fn pass_on(headers: &mut HeaderMap, port: u16, upgrades: bool) {
    let mut dropped = hop_by_hop(headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes));
    // An upgrade is passed on, and the host is told below.
    dropped.retain(|name| !["upgrade", "host"].contains(&name.as_str()));
    for name in dropped.iter().map(String::as_str).chain(OURS) {
        headers.remove(name);
    }
    headers.insert(CONNECTION, HeaderValue::from_static(if upgrades { "upgrade" } else { "close" }));
    let here = HeaderValue::from_str(&format!("127.0.0.1:{port}"));
    if let (Some(named), Ok(here)) = (headers.remove(HOST), here) {
        headers.insert(FORWARDED_HOST, named);
        headers.insert(HOST, here);
    }
}

/// Carries bytes between the two connections that came of a request.
async fn join(sandbox: Arc<Using>, client: OnUpgrade, server: OnUpgrade) {
    if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
        carry(TokioIo::new(client), TokioIo::new(server), IDLE).await;
    }
    drop(sandbox);
}

/// Carries bytes both ways until both sides have ended, one of them breaks, or nothing moves for `idle`.
async fn carry(client: impl AsyncRead + AsyncWrite, server: impl AsyncRead + AsyncWrite, idle: Duration) {
    let (from_client, to_client) = split(client);
    let (from_server, to_server) = split(server);
    let (moved, moves) = watch::channel(());
    let both = async {
        tokio::try_join!(pass(from_client, to_server, &moved), pass(from_server, to_client, &moved))
    };
    tokio::select! {
        _ = both => {}
        () = still(moves, idle) => {}
    }
}

/// Passes bytes on to their end, and then ends the other side.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    moved: &watch::Sender<()>,
) -> io::Result<()> {
    let mut part = BytesMut::with_capacity(PART_BYTES);
    while from.read_buf(&mut part).await? > 0 {
        to.write_all_buf(&mut part).await?;
        to.flush().await?;
        part.reserve(PART_BYTES);
        moved.send_replace(());
    }
    to.shutdown().await
}

/// Waits until nothing has moved for `idle`.
pub(crate) async fn still(mut moves: watch::Receiver<()>, idle: Duration) {
    while let Ok(Ok(())) = timeout(idle, moves.changed()).await {}
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    /// More than any machine needs to carry some bytes.
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_connection_ends_with_both_its_sides_or_when_nothing_moves() {
        let ((mut client, near), (mut server, far)) = (duplex(1024), duplex(1024));
        let carried = tokio::spawn(carry(near, far, LONG));
        let large = vec![7; 300_000];
        let mut seen = vec![0; large.len()];
        tokio::try_join!(client.write_all(&large), server.read_exact(&mut seen)).unwrap();
        assert!(seen == large);
        // A client that says no more still hears.
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
        server.write_all(b"heard").await.unwrap();
        drop(server);
        let mut heard = String::new();
        client.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "heard");
        timeout(LONG, carried).await.unwrap().unwrap();

        let ((mut client, near), (_server, far)) = (duplex(1024), duplex(1024));
        client.write_all(b"once").await.unwrap();
        let over = timeout(LONG, carry(near, far, Duration::from_millis(20))).await;
        assert!(over.is_ok(), "both sides are still there, and nothing moves");
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    }
}
