//! One engine with its requests, and the checks that hold for every engine.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use millrace_policy::{Engine, EngineRequest, Finished, PolicyError, ReadyWeights, Ticket};
use millrace_schemas::generate::GenerateDone;
use millrace_schemas::{PolicyVersion, RunId};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{Answer, Request, check};
use crate::generate::follow::Serving;
use crate::runtime::panic_message;

/// An engine and the requests that it has.
pub(super) struct Host {
    engine: Box<dyn Engine>,
    version: PolicyVersion,
    serving: watch::Sender<Serving>,
    next_ticket: u64,
    pending: HashMap<Ticket, Pending>,
    /// The engine has released the device. It returns with its next request.
    is_away: bool,
    /// It panicked while it took a request.
    broke: Option<PolicyError>,
}

/// A request that the engine has.
struct Pending {
    cancel: CancellationToken,
    leaving: CancellationToken,
    reply: oneshot::Sender<Result<Answer, PolicyError>>,
    /// The oldest version that may have sampled a token of the turn.
    from: PolicyVersion,
    /// Tokens of the turn that another worker had sampled.
    begun: usize,
    busy: Duration,
}

impl Pending {
    fn answer(self, result: Result<GenerateDone, PolicyError>, version: PolicyVersion) {
        let answer = result.and_then(|done| {
            check(&done, self.from, version)?;
            Ok(Answer { done, busy: self.busy })
        });
        // The receiver may be gone.
        if let Err(Ok(Answer { done, .. })) = self.reply.send(answer) {
            note_dropped(&done, self.begun);
        }
    }
}

/// Notes tokens that were sampled here and that nobody takes.
fn note_dropped(done: &GenerateDone, begun: usize) {
    let tokens = done.tokens.len().saturating_sub(begun);
    if tokens > 0 {
        tracing::info!(dropped_tokens = tokens, "nobody takes the tokens of a turn");
    }
}

impl Host {
    /// Makes the engine.
    pub(super) fn start(
        weights: Box<dyn ReadyWeights>,
        serving: watch::Sender<Serving>,
    ) -> Result<Self, PolicyError> {
        let version = weights.version();
        let engine = contained(|| weights.into_engine())?;
        serving.send_replace(Serving::version(version));
        Ok(Self {
            engine,
            version,
            serving,
            next_ticket: 0,
            pending: HashMap::new(),
            is_away: false,
            broke: None,
        })
    }

    /// Swaps to newer weights; the requests in flight continue under them. If that fails, the engine
    /// is dropped, because its state is unknown.
    pub(super) fn swap(mut self, weights: Box<dyn ReadyWeights>) -> Result<Self, PolicyError> {
        let version = weights.version();
        match contained(|| self.engine.swap(weights)) {
            Ok(()) => {
                self.version = version;
                self.is_away = false;
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

    /// Releases the device's memory. Requests that were abandoned are dropped first.
    pub(super) fn leave_device(&mut self) -> Result<(), PolicyError> {
        self.abandon_cancelled();
        self.is_away = true;
        contained(|| self.engine.leave_device())
    }

    /// Takes a request into the batch.
    pub(super) fn admit(&mut self, request: Request) {
        let Request { rollout, task, cancel, leaving, reply } = request;
        let min_version = task.min_version;
        if min_version > self.version {
            let reason = format!("the engine serves {} where {min_version} is required", self.version);
            let _ = reply.send(Err(PolicyError::Temporary(reason)));
            return;
        }
        if self.is_away {
            if let Err(error) = contained(|| self.engine.return_to_device()) {
                let _ = reply.send(Err(error));
                return;
            }
            self.is_away = false;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let from = task.oldest_version();
        let begun = task.sampled.as_ref().map_or(0, |sampled| sampled.tokens.len());
        let busy = Duration::ZERO;
        self.pending.insert(ticket, Pending { cancel, leaving, reply, from, begun, busy });
        // The next step reports that it broke, after which nothing is asked of it.
        let admitted = contained(|| {
            self.engine.admit(EngineRequest { ticket, rollout, task });
            Ok(())
        });
        self.broke = self.broke.take().or(admitted.err());
    }

    /// One step of the engine; `false` when it broke.
    pub(super) fn step(&mut self, run: &RunId) -> bool {
        let started = Instant::now();
        let stepped = match self.broke.take() {
            Some(error) => Err(error),
            None => contained(|| {
                self.abandon_cancelled();
                self.engine.step()
            }),
        };
        let finished = match stepped {
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

    /// Drops the requests of cancelled tasks, and those whose receiver is gone. Those of a worker
    /// that leaves end with what was sampled.
    fn abandon_cancelled(&mut self) {
        let Self { engine, pending, version, .. } = self;
        let ended = pending.extract_if(|_, pending| {
            pending.cancel.is_cancelled() || pending.reply.is_closed() || pending.leaving.is_cancelled()
        });
        for (ticket, pending) in ended {
            let sampled = engine.abandon(ticket);
            if pending.leaving.is_cancelled() {
                let nothing = || PolicyError::Temporary("it was handed back".to_owned());
                pending.answer(sampled.filter(|done| !done.tokens.is_empty()).ok_or_else(nothing), *version);
            } else if let Some(done) = sampled {
                note_dropped(&done, pending.begun);
            }
        }
    }

    fn answer(&mut self, Finished { ticket, result }: Finished) {
        if let Some(pending) = self.pending.remove(&ticket) {
            pending.answer(result, self.version);
        }
    }

    /// Fails all requests, and reports that there is no engine.
    fn abort(&mut self, error: &PolicyError) {
        let reason = format!("the engine broke: {error}");
        for (_, pending) in self.pending.drain() {
            let _ = pending.reply.send(Err(PolicyError::Temporary(reason.clone())));
        }
        self.serving.send_replace(Serving { failure: Some(reason), ..Serving::default() });
    }
}

/// Turns a panic into an error: what panicked is dropped, its thread continues.
pub(super) fn contained<T>(call: impl FnOnce() -> Result<T, PolicyError>) -> Result<T, PolicyError> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|panic| Err(PolicyError::Temporary(format!("panicked: {}", panic_message(&*panic)))))
}
