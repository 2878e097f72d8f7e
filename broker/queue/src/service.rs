//! The API as a NATS micro service: found by `nats micro ls`, asked by `nats req`, JSON in and out.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_nats::service::{self, NATS_SERVICE_ERROR, NATS_SERVICE_ERROR_CODE, Request, Service, ServiceExt};
use async_nats::{Client, HeaderMap, RequestErrorKind};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::SelectAll;
use futures::{FutureExt, StreamExt};
use millrace_schemas::api::{ApiError, DESCRIPTION, ENDPOINTS, SERVICE};
use millrace_schemas::limits::MAX_REQUEST_BYTES;
use millrace_schemas::subjects::{self, COPY_HEADER};

use crate::jetstream::JetStream;
use crate::port::QueueError;

/// Requests answered at once; more wait.
const AT_ONCE: usize = 64;

/// Answers requests.
#[async_trait]
pub trait ApiHandler: Send + Sync + 'static {
    /// Answers a request to `endpoint` in JSON.
    async fn call(&self, endpoint: &str, body: Bytes) -> Result<Bytes, ApiError>;
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The coordinator answered no.
    #[error("{}", .0.message)]
    Api(ApiError),
    /// No coordinator is connected to this nats-server.
    #[error("no coordinator answers; `millrace up` or `millrace coordinator` starts one")]
    NoCoordinator,
    /// The coordinator did not answer in time, or the connection is lost.
    #[error("failed to ask the coordinator: {0}")]
    Unavailable(String),
}

/// Serves the API until dropped. Several coordinators share the requests. The future is boxed, so that it is compiled
/// once, here, and not in every program that awaits it.
///
/// Consumes: requests. Produces: replies. Waits for: requests, up to 64 at once in work. Unblocked by: being
/// dropped. On failure of one: an error reply, and the next.
///
/// # Errors
/// The queue cannot be reached at the start, or the connection is closed.
pub fn serve<'a>(
    js: &'a JetStream,
    version: &'a str,
    handler: Arc<dyn ApiHandler>,
) -> BoxFuture<'a, Result<(), QueueError>> {
    Box::pin(async move {
        let failed = |reason: String| QueueError::Unavailable { action: "serve the API", reason };
        let builder = js.connection.client.service_builder().description(DESCRIPTION).queue_group(SERVICE);
        let service =
            Running(Some(builder.start(SERVICE, version).await.map_err(|e| failed(e.to_string()))?));
        let Some(running) = &service.0 else { return Ok(()) };
        let mut requests = SelectAll::new();
        for (name, about) in ENDPOINTS {
            let metadata = [("description".to_owned(), about.to_owned())].into();
            let endpoint =
                running.endpoint_builder().name(name).metadata(metadata).add(subjects::api(name)).await;
            requests.push(endpoint.map_err(|e| failed(e.to_string()))?.map(move |request| (name, request)));
        }
        let client = &js.connection.client;
        requests
            .for_each_concurrent(AT_ONCE, |(endpoint, request)| {
                let handler = handler.clone();
                async move { answer(endpoint, request, client, &*handler).await }
            })
            .await;
        // Without this the service would be gone before its endpoints.
        drop(service);
        Err(failed("the connection is closed".to_owned()))
    })
}

/// A service that ends when dropped; the library's own goes on to answer pings.
struct Running(Option<Service>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(service) = self.0.take() {
            // It only tells its own tasks to end, which does not wait.
            let _ = service.stop().now_or_never();
        }
    }
}

/// Why a message is not a client's request. A server's reply may arrive here, because a client can
/// name any reply subject. The reply to a pull that finds nothing is empty, and an empty request
/// cancels the only run. The reply subject is checked too: a reply of ours to a subject of the
/// server's or of ours would be a message in our name.
fn is_forged(message: &async_nats::Message) -> Option<&'static str> {
    let Some(reply) = &message.reply else { return Some("it asks for no answer") };
    if !subjects::may_be_answered(reply) {
        return Some("it asks for an answer on a subject that is no inbox");
    }
    let copied = message.headers.as_ref().is_some_and(|headers| headers.get(COPY_HEADER).is_some());
    (copied || message.status.is_some()).then_some("the server itself sent it")
}

async fn answer(endpoint: &str, mut request: Request, client: &Client, handler: &dyn ApiHandler) {
    if let Some(reason) = is_forged(&request.message) {
        tracing::warn!(endpoint, reason, "a request is passed over");
        return;
    }
    let error = match call(endpoint, request.message.payload.clone(), handler).await {
        Ok(body) => return log_failure(endpoint, request.respond(Ok(body)).await),
        Err(error) => error,
    };
    // Clients of micro services read the headers; the body repeats them with the fields.
    let mut headers = HeaderMap::new();
    let line = error.message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    headers.insert(NATS_SERVICE_ERROR, line.as_str());
    headers.insert(NATS_SERVICE_ERROR_CODE, error.code.to_string().as_str());
    let body = serde_json::to_vec(&error).expect("an error holds only what JSON can express");
    if let Some(reply) = request.message.reply.clone() {
        log_failure(endpoint, client.publish_with_headers(reply, headers, body.into()).await);
    }
    // The library's own way to answer with an error has no body, but it alone counts the error for `nats
    // micro stats`. So it answers nobody.
    request.message.reply = Some(client.new_inbox().into());
    let counted = service::error::Error { status: line, code: error.code.into() };
    log_failure(endpoint, request.respond(Err(counted)).await);
}

async fn call(endpoint: &str, body: Bytes, handler: &dyn ApiHandler) -> Result<Bytes, ApiError> {
    let fail = |code, message: String| ApiError { code, message, fields: Vec::new() };
    if body.len() > MAX_REQUEST_BYTES {
        let message = format!("the request has bytes={}; at most {MAX_REQUEST_BYTES} are taken", body.len());
        return Err(fail(400, message));
    }
    let called = AssertUnwindSafe(handler.call(endpoint, body)).catch_unwind().await;
    called.unwrap_or_else(|_| Err(fail(500, "the coordinator failed; its log says how".into())))
}

fn log_failure(endpoint: &str, sent: Result<(), async_nats::PublishError>) {
    if let Err(error) = sent {
        tracing::warn!(endpoint, %error, "failed to answer a request");
    }
}

/// Asks the coordinator.
///
/// # Errors
/// It answers no, does not answer, or is not there.
pub async fn request(
    js: &JetStream,
    endpoint: &str,
    body: Bytes,
    patience: Duration,
) -> Result<Bytes, RequestError> {
    let asked = async_nats::Request::new().payload(body).timeout(Some(patience));
    let reply = js.connection.client.send_request(subjects::api(endpoint), asked).await;
    let reply = reply.map_err(|e| match e.kind() {
        RequestErrorKind::NoResponders => RequestError::NoCoordinator,
        RequestErrorKind::TimedOut => RequestError::Unavailable(format!("no answer in {patience:?}")),
        RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::Other => {
            RequestError::Unavailable(e.to_string())
        }
    })?;
    let header = |name: &str| reply.headers.as_ref().and_then(|headers| headers.get(name));
    let Some(code) = header(NATS_SERVICE_ERROR_CODE) else { return Ok(reply.payload) };
    let plain = || ApiError {
        code: code.as_str().parse().unwrap_or(500),
        message: header(NATS_SERVICE_ERROR).map(ToString::to_string).unwrap_or_default(),
        fields: Vec::new(),
    };
    Err(RequestError::Api(serde_json::from_slice(&reply.payload).unwrap_or_else(|_| plain())))
}
