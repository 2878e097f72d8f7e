//! One engine with its requests, and the checks that hold for every engine.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use millrace_policy::{Engine, EngineRequest, Finished, LoadedVersion, PolicyError, Ticket};
use millrace_schemas::{PolicyVersion, RunId};
use tokio::sync::watch;

use super::{Answer, Request, check};
use crate::generate::follow::Serving;
use crate::policy::engine_for;
use crate::runtime::panic_message;

/// An engine and the requests that it has.
pub(super) struct Host {
    engine: Box<dyn Engine>,
    version: PolicyVersion,
    serving: watch::Sender<Serving>,
    next_ticket: u64,
    pending: HashMap<Ticket, Pending>,
}

/// A request that the engine has.
struct Pending {
    request: Reply,
    min_version: PolicyVersion,
    busy: Duration,
}

type Reply = (tokio_util::sync::CancellationToken, tokio::sync::oneshot::Sender<Result<Answer, PolicyError>>);

impl Host {
    /// Makes the engine.
    pub(super) fn start(
        weights: &LoadedVersion,
        serving: watch::Sender<Serving>,
    ) -> Result<Self, PolicyError> {
        let engine = contained(|| engine_for(weights))?;
        let version = weights.version;
        serving.send_replace(Serving::version(version));
        Ok(Self { engine, version, serving, next_ticket: 0, pending: HashMap::new() })
    }

    /// Loads newer weights; the requests in flight continue under them. If that fails, the engine
    /// is dropped, because its state is unknown.
    pub(super) fn load(mut self, weights: &LoadedVersion) -> Result<Self, PolicyError> {
        match contained(|| self.engine.load(weights)) {
            Ok(()) => {
                self.version = weights.version;
                self.serving.send_replace(Serving::version(self.version));
                Ok(self)
            }
            Err(error) => {
                self.abort(&error);
                Err(error)
            }
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Takes a request into the batch.
    pub(super) fn admit(&mut self, request: Request) {
        let Request { rollout, task, cancel, reply } = request;
        let min_version = task.min_version;
        if min_version > self.version {
            let reason = format!("the engine serves {} where {min_version} is required", self.version);
            let _ = reply.send(Err(PolicyError::Temporary(reason)));
            return;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.pending.insert(ticket, Pending { request: (cancel, reply), min_version, busy: Duration::ZERO });
        self.engine.admit(EngineRequest { ticket, rollout, task });
    }

    /// One step of the engine; `false` when it broke.
    pub(super) fn step(&mut self, run: &RunId) -> bool {
        self.abandon_cancelled();
        let started = Instant::now();
        let finished = match contained(|| self.engine.step()) {
            Ok(finished) => finished,
            Err(error) => {
                tracing::error!(%run, %error, "engine broke");
                self.abort(&error);
                return false;
            }
        };
        let share = started.elapsed() / self.pending.len().max(1) as u32;
        self.pending.values_mut().for_each(|pending| pending.busy += share);
        finished.into_iter().for_each(|finished| self.answer(finished));
        true
    }

    /// Drops the requests of cancelled tasks, and those whose receiver is gone.
    fn abandon_cancelled(&mut self) {
        let engine = &mut self.engine;
        self.pending.retain(|ticket, Pending { request: (cancel, reply), .. }| {
            let is_live = !cancel.is_cancelled() && !reply.is_closed();
            if !is_live {
                engine.abandon(*ticket);
            }
            is_live
        });
    }

    fn answer(&mut self, Finished { ticket, result }: Finished) {
        let Some(Pending { request: (_, reply), min_version, busy }) = self.pending.remove(&ticket) else {
            return;
        };
        let answer = result.and_then(|done| {
            check(&done, min_version, self.version)?;
            Ok(Answer { done, busy })
        });
        // The receiver may be gone.
        let _ = reply.send(answer);
    }

    /// Fails all requests, and reports that there is no engine.
    fn abort(&mut self, error: &PolicyError) {
        let reason = format!("the engine broke: {error}");
        for (_, Pending { request: (_, reply), .. }) in self.pending.drain() {
            let _ = reply.send(Err(PolicyError::Temporary(reason.clone())));
        }
        self.serving.send_replace(Serving { failure: Some(reason), ..Serving::default() });
    }
}

/// Turns a panic into an error: the engine is dropped, its thread continues.
fn contained<T>(call: impl FnOnce() -> Result<T, PolicyError>) -> Result<T, PolicyError> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|panic| Err(PolicyError::Temporary(format!("panicked: {}", panic_message(&*panic)))))
}
