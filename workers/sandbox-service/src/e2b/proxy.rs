//! Requests to servers within a sandbox: `PORT-ID.DOMAIN`, as `get_host` says it, or the headers
//! `E2b-Sandbox-Id` and `E2b-Sandbox-Port`. Whoever asks needs the sandbox's token.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::envd;
use super::told::Failure;
use crate::ports;
use crate::service::Service;

const TOKENS: [&str; 2] = ["e2b-traffic-access-token", "x-access-token"];

/// Before all paths: a server's own may be any.
pub(crate) async fn by_host(State(service): State<Service>, request: Request, next: Next) -> Response {
    let Some((hosted, port)) = envd::own_port(&service, request.headers(), request.uri()) else {
        return next.run(request).await;
    };
    let tokens = TOKENS.iter().filter_map(|name| request.headers().get(*name)?.to_str().ok());
    if !tokens.into_iter().any(|token| hosted.token.is(token)) {
        let words = "the token of this sandbox is needed: send it as E2b-Traffic-Access-Token";
        return Failure::new(StatusCode::FORBIDDEN, words).into_response();
    }
    let port = match port {
        Ok(port) => port,
        Err(error) => return Failure::from(error).into_response(),
    };
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    match ports::ask(&service, hosted.begin(), port, &path, request).await {
        Ok(answer) => answer,
        Err(error) => Failure::new(error.status(), error.to_string()).into_response(),
    }
}
