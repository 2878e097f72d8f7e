//! One engine with its requests: what must hold whichever engine it is.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use millrace_schemas::{PolicyVersion, RunId};
use tokio::sync::watch;

use super::{Answer, Request, check};
use crate::generate::follow::Serving;
use crate::model::versions::LoadedVersion;
use crate::policy::{Engine, EngineRequest, Finished, PolicyError, Ticket, engine_for};
use crate::runtime::panic_message;

/// An engine and whoever waits for it.
pub(super) struct Host {
    engine: Box<dyn Engine>,
    version: PolicyVersion,
    serving: watch::Sender<Serving>,
    next_ticket: u64,
    waiting: HashMap<Ticket, Waiting>,
}

/// Who waits for a turn.
struct Waiting {
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
        Ok(Self { engine, version, serving, next_ticket: 0, waiting: HashMap::new() })
    }

    /// Goes over to newer weights; the requests in hand go on under them. Where that fails the engine is let
    /// go, for it may be anywhere between the two.
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
        self.waiting.is_empty()
    }

    /// Takes a request into the batch.
    pub(super) fn admit(&mut self, request: Request) {
        let Request { rollout, task, cancel, reply } = request;
        let min_version = task.min_version;
        if min_version > self.version {
            let reason = format!("the engine serves {} where {min_version} is asked for", self.version);
            let _ = reply.send(Err(PolicyError::Temporary(reason)));
            return;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting.insert(ticket, Waiting { request: (cancel, reply), min_version, busy: Duration::ZERO });
        self.engine.admit(EngineRequest { ticket, rollout, task });
    }

    /// One step of the engine; `false` when it broke.
    pub(super) fn step(&mut self, run: &RunId) -> bool {
        self.abandon_unwanted();
        let started = Instant::now();
        let finished = match contained(|| self.engine.step()) {
            Ok(finished) => finished,
            Err(error) => {
                tracing::error!(%run, %error, "engine broke");
                self.abort(&error);
                return false;
            }
        };
        let share = started.elapsed() / self.waiting.len().max(1) as u32;
        self.waiting.values_mut().for_each(|waiting| waiting.busy += share);
        finished.into_iter().for_each(|finished| self.answer(finished));
        true
    }

    /// Nobody waits for a cancelled task, nor for one whose future was dropped.
    fn abandon_unwanted(&mut self) {
        let engine = &mut self.engine;
        self.waiting.retain(|ticket, Waiting { request: (cancel, reply), .. }| {
            let wanted = !cancel.is_cancelled() && !reply.is_closed();
            if !wanted {
                engine.abandon(*ticket);
            }
            wanted
        });
    }

    fn answer(&mut self, Finished { ticket, result }: Finished) {
        let Some(Waiting { request: (_, reply), min_version, busy }) = self.waiting.remove(&ticket) else {
            return;
        };
        let answer = result.and_then(|done| {
            check(&done, min_version, self.version)?;
            Ok(Answer { done, busy })
        });
        // Whoever asked may have left.
        let _ = reply.send(answer);
    }

    /// Sends everybody away and says that there is no engine.
    fn abort(&mut self, error: &PolicyError) {
        let reason = format!("the engine broke: {error}");
        for (_, Waiting { request: (_, reply), .. }) in self.waiting.drain() {
            let _ = reply.send(Err(PolicyError::Temporary(reason.clone())));
        }
        self.serving.send_replace(Serving { failure: Some(reason), ..Serving::default() });
    }
}

/// Stops a panic: the engine is let go, its thread goes on.
fn contained<T>(call: impl FnOnce() -> Result<T, PolicyError>) -> Result<T, PolicyError> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|panic| Err(PolicyError::Temporary(format!("panicked: {}", panic_message(&*panic)))))
}
