//! The gateway's HTTP: finds the session by the key, and speaks the dialect of the path.

use std::sync::Weak;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::Response;
use axum::serve::Listener;
use millrace_http::unread::read_rest;
use millrace_schemas::RunId;
use millrace_schemas::limits::MAX_AGENT_CALL_BYTES;
use serde_json::{Value, json};
use tokio::sync::SemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::dialect::Dialect;
use crate::host::Agents;
use crate::refusal::Refusal;
use crate::session::Session;

/// Serves calls until `stop` fires. Connections end with it.
pub(crate) fn serve<L: Listener<Addr: std::fmt::Debug>>(
    listener: L,
    agents: Weak<Agents>,
    stop: CancellationToken,
) {
    let router = Router::new().fallback(answer).layer(from_fn(read_rest)).with_state(agents);
    tokio::spawn(async move {
        let serving = axum::serve(listener, router).into_future();
        if let Some(Err(error)) = stop.run_until_cancelled(serving).await {
            tracing::error!(%error, "stopped serving agents");
        }
    });
}

async fn answer(State(agents): State<Weak<Agents>>, request: Request) -> Response {
    let path = request.uri().path().trim_end_matches('/').to_owned();
    let path = path.strip_prefix("/v1").unwrap_or(&path);
    let dialect = Dialect::at(path);
    let answered = route(&agents, dialect, path, request).await;
    answered.unwrap_or_else(|refusal| refused(dialect.unwrap_or(Dialect::Chat), &refusal))
}

async fn route(
    agents: &Weak<Agents>,
    dialect: Option<Dialect>,
    path: &str,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let key = key(&parts.headers).ok_or_else(Refusal::key)?;
    // A call that waits must not keep the agents alive: they end with the worker.
    let found = agents.upgrade().ok_or_else(|| Refusal::over("the worker leaves"))?.by_key(key);
    let (run, session) = found.ok_or_else(Refusal::key)?;
    match (parts.method, dialect) {
        (Method::POST, Some(dialect)) => {
            let place = session.place()?;
            let too_large = |_| Refusal::too_large(MAX_AGENT_CALL_BYTES);
            let body = to_bytes(body, MAX_AGENT_CALL_BYTES).await.map_err(too_large)?;
            call(dialect, &run, (&session, &place), body).await
        }
        (Method::GET, None) if path == "/models" => Ok(page(&models(&run))),
        (Method::GET, None) if path.strip_prefix("/models/").is_some() => Ok(page(&model(&run))),
        _ => Err(Refusal::path(path)),
    }
}

/// The key of `Authorization: Bearer`, or of Anthropic's `x-api-key`.
fn key(headers: &HeaderMap) -> Option<&str> {
    let bearer =
        headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}

async fn call(
    dialect: Dialect,
    run: &RunId,
    (session, place): (&Session, &SemaphorePermit<'_>),
    body: Bytes,
) -> Result<Response, Refusal> {
    // What the call does not need is dropped before it waits.
    let mut call = dialect.read(&body)?;
    drop(body);
    let replies = session.call(&mut call, place).await?;
    if call.stream {
        let events = dialect.events(run.as_str(), &call, &replies);
        return Ok(response(StatusCode::OK, "text/event-stream", events));
    }
    Ok(page(&dialect.write(run.as_str(), &call, &replies)))
}

fn models(run: &RunId) -> Value {
    json!({ "object": "list", "data": [model(run)], "has_more": false })
}

fn model(run: &RunId) -> Value {
    json!({ "id": run.as_str(), "object": "model", "created": 0, "owned_by": "millrace", "type": "model",
            "display_name": run.as_str(), "created_at": "1970-01-01T00:00:00Z" })
}

fn page(value: &Value) -> Response {
    response(StatusCode::OK, "application/json", value.to_string())
}

fn refused(dialect: Dialect, refusal: &Refusal) -> Response {
    tracing::debug!(status = refusal.status.as_u16(), reason = refusal.message, "call refused");
    let mut response = response(refusal.status, "application/json", dialect.refuse(refusal).to_string());
    if let Some(seconds) = refusal.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    // Clients repeat what may succeed later; these words say what cannot.
    if refusal.status == StatusCode::CONFLICT {
        response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
    }
    response
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
