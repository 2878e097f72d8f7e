//! A run's session with an inference server: the weights that the server has proved, and the gate
//! that turns pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use millrace_policy::stop_criteria::StopCriteria;
use millrace_schemas::{PolicyVersion, RunId};
use tokio::sync::{RwLock, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::NextVersion;
use super::prover::{Proof, Prover};
use super::turn::Turn;
use crate::generate::driver::Request;
use crate::generate::follow::Serving;
use crate::policy::openai::{Measured, Server, ServerError, prove};

/// Whether turns may be sampled.
#[derive(Debug, Clone)]
pub(super) enum Gate {
    /// Not now: the weights change, or the server is lost.
    Closed,
    /// With these weights.
    Open(Arc<Served>),
    /// The run has ended.
    Ended,
}

/// Weights that the server has proved.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) version: PolicyVersion,
    pub(super) vocabulary: u32,
    pub(super) ends: Arc<StopCriteria>,
    /// Their name at the server.
    pub(super) label: String,
    /// The probe's prompt, and the log-probabilities that the server gave for it.
    pub(super) tokens: Vec<u32>,
    pub(super) logprobs: Vec<f32>,
    /// Whether its log-probabilities follow the temperature.
    pub(super) scaled: bool,
    /// Whether requests carry a seed.
    pub(super) seeded: bool,
    /// Fires before other weights are loaded, or when the server is lost. The tokens sampled so far
    /// are kept.
    pub(super) boundary: CancellationToken,
}

/// One run at a server.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) run: RunId,
    pub(super) server: Arc<Server>,
    pub(super) gate: watch::Sender<Gate>,
    serving: watch::Sender<Serving>,
    /// What the server proved last. Each turn holds the read lock while the server samples for it
    /// and until that is proved; a change of weights holds the write lock.
    pub(super) known: RwLock<Option<Measured>>,
    pub(super) proofs: mpsc::UnboundedSender<Proof>,
    /// Turns in flight at the server.
    pub(super) in_flight: AtomicUsize,
    ended: CancellationToken,
}

impl Session {
    /// A session with its prover. It serves nothing yet.
    pub(super) fn start(run: RunId, server: Arc<Server>, serving: watch::Sender<Serving>) -> Arc<Self> {
        let (proofs, inbox) = mpsc::unbounded_channel();
        let session = Arc::new(Self {
            run,
            server,
            gate: watch::Sender::new(Gate::Closed),
            serving,
            known: RwLock::default(),
            proofs,
            in_flight: AtomicUsize::new(0),
            ended: CancellationToken::new(),
        });
        let prover = Prover { session: Arc::downgrade(&session), inbox };
        let ended = session.ended.clone();
        tokio::spawn(async move { ended.run_until_cancelled(prover.run()).await });
        session
    }

    /// Ends the turns in flight and the prover.
    pub(super) fn end(&self) {
        self.close(Gate::Ended);
        self.ended.cancel();
    }

    /// Ends it for another run, unless a turn uses the weights or they change; returns whether it ended.
    pub(super) fn end_unused(&self) -> bool {
        let Ok(_unused) = self.known.try_write() else { return false };
        self.end();
        // What follows the run's policy stops when it finds that another run has the server.
        self.serving.send_replace(Serving { away: true, ..Serving::default() });
        true
    }

    fn close(&self, gate: Gate) {
        if let Gate::Open(served) = self.gate.send_replace(gate) {
            served.boundary.cancel();
        }
    }

    /// Starts a turn. It ends with its reply's receiver, with its task's cancellation, or with the
    /// session.
    pub(super) fn admit(self: Arc<Self>, request: Request) {
        tokio::spawn(async move {
            let Request { rollout, task, cancel, leaving, mut reply } = request;
            let turn = Turn::new(self, rollout, task, leaving);
            let answer = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = reply.closed() => return,
                answer = turn.sample() => answer,
            };
            // The receiver may be gone.
            let _ = reply.send(answer);
        });
    }

    /// Marks the server as lost: its weights are unknown. Turns in flight return to the queue, new
    /// ones wait.
    pub(super) fn lose(&self, served: &Arc<Served>, error: &ServerError) {
        let lost = self.gate.send_if_modified(|gate| match gate {
            Gate::Open(open) if Arc::ptr_eq(open, served) => {
                *gate = Gate::Closed;
                true
            }
            Gate::Open(_) | Gate::Closed | Gate::Ended => false,
        });
        if lost {
            tracing::warn!(run = %self.run, version = %served.version, %error, "engine's server lost");
            served.boundary.cancel();
            let waits_for = Some(format!("the engine's server was lost: {error}"));
            self.serving.send_replace(Serving { away: true, waits_for, ..Serving::default() });
        }
    }

    /// Makes the server load other weights, once all turns in flight have stopped and are proved.
    /// Turns continue where they stopped. A server that was lost loads its weights again: it may
    /// have come back with others that are too similar to tell apart.
    pub(super) async fn change(&self, next: NextVersion) -> Result<(), ServerError> {
        self.close(Gate::Closed);
        // Bounded: each turn stops at the boundary, or when the server is silent for too long.
        let mut known = self.known.write().await;
        // Another run may have the server since.
        if self.ended.is_cancelled() {
            self.close(Gate::Ended);
            return Err(ServerError::Failed("the session has ended".to_owned()));
        }
        match self.load_and_prove(&next, &mut known).await {
            Ok(served) => {
                let version = served.version;
                let open = self.gate.send_if_modified(|gate| match gate {
                    Gate::Ended => false,
                    Gate::Closed | Gate::Open(_) => {
                        *gate = Gate::Open(Arc::new(served));
                        true
                    }
                });
                if open {
                    self.serving.send_replace(Serving::version(version));
                }
                Ok(())
            }
            Err(error) => {
                self.serving.send_modify(|serving| serving.version = None);
                Err(error)
            }
        }
    }

    async fn load_and_prove(
        &self,
        next: &NextVersion,
        known: &mut Option<Measured>,
    ) -> Result<Served, ServerError> {
        let (server, tolerance) = (&self.server, self.server.settings().tolerance);
        server.reload(&next.folder, &next.label).await?;
        // Not before: a command that reloads may be what starts the server.
        if let Some(context) = next.context {
            server.check_context(context).await?;
        }
        server.check_report(&next.folder, &next.label).await?;
        let logprobs = server.probe(&next.weights.tokens).await?;
        let comparable = server.measures_prompts();
        let measured = prove(known.as_ref(), &next.weights, &logprobs, comparable, tolerance)?;
        let served = self.served(next, logprobs).await?;
        *known = Some(measured);
        Ok(served)
    }

    async fn served(&self, next: &NextVersion, logprobs: Vec<f32>) -> Result<Served, ServerError> {
        let tokens = next.weights.tokens.clone();
        Ok(Served {
            version: next.weights.version,
            vocabulary: next.vocabulary,
            ends: next.ends.clone(),
            label: next.label.clone(),
            scaled: self.server.scales_logprobs(&tokens).await?,
            seeded: self.server.takes_seeds(),
            tokens,
            logprobs,
            boundary: CancellationToken::new(),
        })
    }

    /// Counts a turn as in flight until the guard is dropped.
    pub(super) fn count(&self) -> TurnInFlight<'_> {
        self.in_flight.fetch_add(1, Relaxed);
        TurnInFlight(&self.in_flight)
    }
}

pub(super) struct TurnInFlight<'a>(&'a AtomicUsize);

impl Drop for TurnInFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
