//! Servers within a sandbox, for clients outside: a request goes to a port of the sandbox's loopback,
//! and what comes back goes to the client, an upgraded connection too. Bodies pass as they come.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, HOST, HeaderName, HeaderValue, UPGRADE};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use hyper::client::conn::http1::handshake;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use millrace_sandbox::egress::hop_by_hop;
use tokio::io::copy_bidirectional;

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
    // As long as the connection lasts, the sandbox is in use.
    tokio::spawn(async move {
        let ended = connection.with_upgrades().await;
        drop(sandbox);
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
            tokio::spawn(join(client, server));
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

/// Carries bytes both ways until either side ends.
async fn join(client: OnUpgrade, server: OnUpgrade) {
    if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
        let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
    }
}
