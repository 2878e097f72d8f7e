//! Which sandbox a request means, and whether it may. E2B's client sends `E2b-Sandbox-Id` and the
//! sandbox's own token; behind a proxy the host's name says the same: `49983-ID.DOMAIN`.

use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::told::Failure;
use crate::hosted::{Hosted, Using};
use crate::ports;
use crate::service::{Service, ServiceError};

/// The port of E2B's daemon within a sandbox. All others are the sandbox's own.
const PORT: &str = "49983";

/// The sandbox that a request with its token means, in use.
#[derive(Debug)]
pub(super) struct Opened(pub(super) Using);

impl FromRequestParts<Service> for Opened {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Failure> {
        check_user(&parts.headers)?;
        let meant = Meant::from_request_parts(parts, service).await?;
        if meant.has_token { Ok(Self(meant.hosted.begin())) } else { Err(locked()) }
    }
}

/// The sandbox that a request means, with its token or without.
#[derive(Debug)]
pub(super) struct Meant {
    pub(super) hosted: Arc<Hosted>,
    pub(super) has_token: bool,
}

impl FromRequestParts<Service> for Meant {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Failure> {
        let hosted = meant(service, &parts.headers, &parts.uri)?;
        let token = text(&parts.headers, "x-access-token").unwrap_or_default();
        let has_token = hosted.token.is(token);
        Ok(Self { hosted, has_token })
    }
}

pub(super) fn locked() -> Failure {
    let words = "the token of this sandbox is needed: connect to it by `Sandbox.connect(ID)`";
    Failure::new(StatusCode::UNAUTHORIZED, words)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Port and name of a sandbox, by the host's name.
fn by_host<'h>(headers: &'h HeaderMap, uri: &'h Uri) -> Option<(&'h str, &'h str)> {
    let host = text(headers, "host").or_else(|| uri.host())?;
    let (port, id) = host.split_once('.')?.0.split_once('-')?;
    port.bytes().all(|byte| byte.is_ascii_digit()).then_some((port, id)).filter(|_| !port.is_empty())
}

/// Port and name of the sandbox that a request is for.
fn named<'h>(headers: &'h HeaderMap, uri: &'h Uri) -> Option<(&'h str, &'h str)> {
    let by_header = text(headers, "e2b-sandbox-id");
    let by_header = by_header.map(|id| (text(headers, "e2b-sandbox-port").unwrap_or(PORT), id));
    by_header.or_else(|| by_host(headers, uri))
}

fn meant(service: &Service, headers: &HeaderMap, uri: &Uri) -> Result<Arc<Hosted>, Failure> {
    let Some((port, id)) = named(headers, uri) else {
        let words = "no sandbox is named: set E2B_SANDBOX_URL, so that the client sends E2b-Sandbox-Id";
        return Err(Failure::new(StatusCode::BAD_REQUEST, words));
    };
    // Those of sandboxes that are there went another way.
    if port != PORT {
        return Err(Failure::gone(id));
    }
    service.find(id).ok_or_else(|| Failure::gone(id))
}

/// The sandbox and the port of its own that a request is for, if it is for one.
pub(super) fn own_port(
    service: &Service,
    headers: &HeaderMap,
    uri: &Uri,
) -> Option<(Arc<Hosted>, Result<u16, ServiceError>)> {
    let (port, id) = named(headers, uri).filter(|(port, _)| *port != PORT)?;
    Some((service.find(id)?, ports::port(port)))
}

/// A sandbox has one user, who is also told as root.
pub(super) fn check_name(name: &str) -> Result<(), Failure> {
    if ["", "user", "root"].contains(&name) {
        return Ok(());
    }
    let words = format!("user={name:?}: a sandbox has one user, without rights; leave it out");
    Err(Failure::new(StatusCode::UNAUTHORIZED, words))
}

fn check_user(headers: &HeaderMap) -> Result<(), Failure> {
    let Some(basic) =
        text(headers, header::AUTHORIZATION.as_str()).and_then(|text| text.strip_prefix("Basic "))
    else {
        return Ok(());
    };
    let name = STANDARD.decode(basic.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    check_name(name.as_deref().and_then(|name| name.split(':').next()).unwrap_or("?"))
}

/// Whether a sandbox can be used. No use of it, and no secret.
pub(super) async fn health(State(service): State<Service>, headers: HeaderMap, uri: Uri) -> Response {
    match meant(&service, &headers, &uri) {
        Ok(_) => StatusCode::NO_CONTENT.into_response(),
        Err(failure) => failure.into_response(),
    }
}

/// A path of no protocol; a port of a sandbox, perhaps.
pub(super) async fn unknown(State(service): State<Service>, headers: HeaderMap, uri: Uri) -> Failure {
    if named(&headers, &uri).is_some()
        && let Err(failure) = meant(&service, &headers, &uri)
    {
        return failure;
    }
    let words = format!(
        "this service has no path {:?}: it serves ROCK's /apis/envs/sandbox/v1 and E2B's /sandboxes",
        uri.path().chars().take(200).collect::<String>()
    );
    Failure::new(StatusCode::NOT_FOUND, words)
}
