//! The API: requests of clients, answered from the state or by an event in the log.

use std::ops::Bound;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millrace_queue::service::ApiHandler;
use millrace_queue::{Broker, BrokerError};
use millrace_schemas::api::{
    ApiError, FieldError, ListRequest, PAUSED_BY_REQUEST, RunList, RunReply, RunRequest, RunState,
};
use millrace_schemas::drain::{DrainRequest, DrainWorker};
use millrace_schemas::limits::{MAX_LISTED_RUNS, MAX_REQUEST_BYTES, MAX_SHOWN_BYTES, REQUEST_TIMEOUT_MS};
use millrace_schemas::submit::{RunFileError, from_json};
use millrace_schemas::text::shown;
use millrace_schemas::{Event, RunId, subjects};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fold::status;
use crate::shell::shared::SharedState;

/// Names of runs that an error lists when a request named none of them.
const MAX_NAMED: usize = 20;
/// How long a request waits until its event is folded. Clients wait a little longer.
const PATIENCE: Duration = Duration::from_millis(REQUEST_TIMEOUT_MS / 2);

/// Answers requests. Every coordinator does, leader or standby, because changes go through the log.
pub struct Api {
    broker: Broker,
    shared: SharedState,
}

impl Api {
    /// An API that reads `shared` and appends through `broker`.
    #[must_use]
    pub fn new(broker: Broker, shared: SharedState) -> Self {
        Self { broker, shared }
    }

    async fn submit(&self, body: &[u8]) -> Result<Bytes, ApiError> {
        let spec = from_json(body).map_err(|e| run_file_error(&e))?;
        let (known, lacks) = {
            let state = self.shared.lock();
            (state.knows(&spec.name), state.refusals(&spec))
        };
        let run = spec.name.clone();
        let exists = || {
            error(
                409,
                format!(
                    "run {name:?} exists; choose another name, or see it with `millrace status {name}` \
                     (mr.api.status)",
                    name = run.as_str()
                ),
            )
        };
        if known {
            return Err(exists());
        }
        if !lacks.is_empty() {
            return Err(run_file_error(&RunFileError::Refused(lacks)));
        }
        let appended = self.append(run.as_str(), &Event::Submitted(Box::new(spec))).await?;
        if !appended.first {
            return Err(exists());
        }
        self.folded(appended.seq).await?;
        json(&RunReply { run })
    }

    async fn cancel(&self, body: &[u8]) -> Result<Bytes, ApiError> {
        let run = self.named(body)?;
        let reason = "cancelled by request".to_owned();
        let appended = self.append(run.as_str(), &Event::Cancelled { reason }).await?;
        self.folded(appended.seq).await?;
        json(&RunReply { run })
    }

    /// Pauses or resumes a run, as `event` tells.
    async fn switch(&self, body: &[u8], event: Event) -> Result<Bytes, ApiError> {
        let run = self.named(body)?;
        let state = self.shared.lock().runs.get(&run).map(|run| run.state);
        let fits = match (&event, state) {
            (Event::Resumed, Some(state)) => state == RunState::Paused,
            (_, Some(state)) => !state.is_over(),
            (_, None) => false,
        };
        if !fits {
            let state = state.map_or("removed", RunState::name);
            let name = run.as_str();
            let see = format!("see it with `millrace status {name}` (mr.api.status)");
            return Err(error(409, format!("run {name:?} is {state}; {see}")));
        }
        let appended = self.append(run.as_str(), &event).await?;
        self.folded(appended.seq).await?;
        json(&RunReply { run })
    }

    fn status(&self, body: &[u8]) -> Result<Bytes, ApiError> {
        let run = self.named(body)?;
        let state = self.shared.lock();
        json(&state.runs.get(&run).map(status::status))
    }

    fn ledger(&self, body: &[u8]) -> Result<Bytes, ApiError> {
        let run = self.named(body)?;
        json(&self.shared.lock().runs.get(&run).map(status::ledger))
    }

    fn list(&self, body: &[u8]) -> Result<Bytes, ApiError> {
        let ListRequest { after } = request(body, "{\"after\": \"name\"}")?;
        let state = self.shared.lock();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = state.runs.range((from, Bound::Unbounded)).map(|(_, run)| run);
        let runs: Vec<_> = rest.by_ref().take(MAX_LISTED_RUNS).map(status::summary).collect();
        let next = rest.next().and_then(|_| runs.last().map(|run| run.run.clone()));
        json(&RunList { runs, next })
    }

    async fn archive(&self, body: &[u8]) -> Result<Bytes, ApiError> {
        let run = self.named(body)?;
        let state = self.shared.lock().runs.get(&run).map(|run| (run.is_closed(), run.state));
        if let Some((false, state)) = state {
            let (name, state) = (run.as_str(), state.name());
            return Err(error(409, format!("run {name:?} is {state}, and not over; cancel it first")));
        }
        let appended = self.append(run.as_str(), &Event::Archived).await?;
        self.folded(appended.seq).await?;
        json(&RunReply { run })
    }

    /// Asks a worker to leave. The request may be lost; the worker's notices show whether it leaves.
    async fn drain(&self, body: &[u8]) -> Result<Bytes, ApiError> {
        let request: DrainWorker = serde_json::from_slice(body).map_err(|e| {
            let reason = shown(&e.to_string(), MAX_SHOWN_BYTES);
            error(400, format!("request is not {{\"worker\": \"name\", \"within_ms\": 30000}}: {reason}"))
        })?;
        let DrainWorker { worker, within_ms } = &request;
        self.broker
            .notice(
                subjects::drain(worker),
                &DrainRequest { within_ms: *within_ms, ..DrainRequest::default() },
            )
            .await;
        json(&request)
    }

    /// Waits until the event at `seq` is folded, so that later requests see its effect.
    async fn folded(&self, seq: u64) -> Result<(), ApiError> {
        if self.shared.wait_for(seq, PATIENCE).await {
            return Ok(());
        }
        Err(error(
            504,
            format!("the request is in the log at seq={seq}, which is not folded yet; see `millrace status`"),
        ))
    }

    /// The run that a request names, or the only run.
    fn named(&self, body: &[u8]) -> Result<RunId, ApiError> {
        let request: RunRequest = request(body, "{\"run\": \"name\"}")?;
        let state = self.shared.lock();
        let names = || {
            let more = if state.runs.len() > MAX_NAMED { ", …" } else { "" };
            let names = state.runs.keys().take(MAX_NAMED).map(RunId::as_str).collect::<Vec<_>>();
            names.join(", ") + more
        };
        match request.run {
            Some(run) if state.runs.contains_key(&run) => Ok(run),
            Some(run) if state.archived.contains_key(&run) => {
                let archived = &state.archived[&run];
                let reason = archived.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
                let (name, state) = (run.as_str(), archived.state.name());
                Err(error(404, format!("run {name:?} is archived; it was {state}{reason}")))
            }
            Some(run) => Err(error(404, format!("no run is named {:?}; known: {}", run.as_str(), names()))),
            None if state.runs.len() == 1 => {
                Ok(state.runs.keys().next().cloned().expect("there is exactly one"))
            }
            None if state.runs.is_empty() => Err(error(404, "no run was submitted yet".to_owned())),
            None => Err(error(400, format!("name one of several runs, {{\"run\": \"name\"}}: {}", names()))),
        }
    }

    async fn append(&self, run: &str, event: &Event) -> Result<millrace_queue::port::Appended, ApiError> {
        self.broker
            .append(run, event)
            .await
            .map_err(|e: BrokerError| error(503, format!("failed to append to the log; retry: {e}")))
    }
}

#[async_trait]
impl ApiHandler for Api {
    async fn call(&self, endpoint: &str, body: Bytes) -> Result<Bytes, ApiError> {
        if body.len() > MAX_REQUEST_BYTES {
            return Err(error(
                400,
                format!("request has bytes={}, more than {MAX_REQUEST_BYTES}", body.len()),
            ));
        }
        if let Some(why) = self.shared.blocked() {
            return Err(error(503, why));
        }
        match endpoint {
            "submit" => self.submit(&body).await,
            "cancel" => self.cancel(&body).await,
            "pause" => {
                let (reason, remedy) = (PAUSED_BY_REQUEST, "`millrace resume` resumes it");
                self.switch(&body, Event::Paused { reason: reason.into(), remedy: remedy.into() }).await
            }
            "resume" => self.switch(&body, Event::Resumed).await,
            "status" => self.status(&body),
            "ledger" => self.ledger(&body),
            "list" => self.list(&body),
            "rm" => self.archive(&body).await,
            "scale" => json(&self.shared.lock().scaling),
            "drain" => self.drain(&body).await,
            other => Err(error(404, format!("no endpoint is named {other:?}"))),
        }
    }
}

fn error(code: u16, message: String) -> ApiError {
    ApiError { code, message, fields: Vec::new() }
}

/// The parsed request; an empty body gives the default.
fn request<T: DeserializeOwned + Default>(body: &[u8], shape: &str) -> Result<T, ApiError> {
    if body.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(body).map_err(|e| {
        let reason = shown(&e.to_string(), MAX_SHOWN_BYTES);
        error(400, format!("request is not {shape} or empty: {reason}"))
    })
}

fn json<T: Serialize>(reply: &T) -> Result<Bytes, ApiError> {
    serde_json::to_vec(reply)
        .map(Bytes::from)
        .map_err(|e| error(500, format!("failed to write the reply: {e}")))
}

fn run_file_error(e: &RunFileError) -> ApiError {
    let fields = match e {
        RunFileError::Refused(refusals) => refusals.iter().cloned().map(FieldError::from).collect(),
        RunFileError::Shape { field, reason } => {
            vec![FieldError { field: field.clone(), value: String::new(), remedy: reason.clone() }]
        }
        RunFileError::TooLong(_) => Vec::new(),
    };
    ApiError { code: 400, message: e.to_string(), fields }
}
