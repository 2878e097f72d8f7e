//! What one run has to do with a server: the weights that it was seen to serve, and the gate through which turns go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use millrace_schemas::{PolicyVersion, RunId};
use tokio::sync::{RwLock, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::Wanted;
use super::prover::{Proof, Prover};
use super::turn::Turn;
use crate::generate::driver::Request;
use crate::generate::follow::Serving;
use crate::policy::openai::{Measured, Server, ServerError, prove};
use crate::policy::stop_criteria::StopCriteria;

/// Whether turns may be sampled.
#[derive(Debug, Clone)]
pub(super) enum Gate {
    /// Not now: the weights are being changed, or the server is away.
    Closed,
    /// By these weights.
    Open(Arc<Served>),
    /// Never again.
    Ended,
}

/// Weights that the server was seen to serve.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) version: PolicyVersion,
    pub(super) vocabulary: u32,
    pub(super) ends: Arc<StopCriteria>,
    /// Names them to the server.
    pub(super) label: String,
    /// The probe's prompt, and what it gave.
    pub(super) tokens: Vec<u32>,
    pub(super) logprobs: Vec<f32>,
    /// Whether its log-probabilities follow the temperature.
    pub(super) scaled: bool,
    /// Whether requests carry a seed.
    pub(super) seeded: bool,
    /// Fires before other weights come, or when the server is lost: what was sampled so far is all.
    pub(super) boundary: CancellationToken,
}

/// One run at a server.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) run: RunId,
    pub(super) server: Arc<Server>,
    pub(super) gate: watch::Sender<Gate>,
    serving: watch::Sender<Serving>,
    /// What the server was seen to serve last. Held by each turn while the server samples for it and until that is
    /// proved; alone by whoever changes weights.
    pub(super) known: RwLock<Option<Measured>>,
    pub(super) proofs: mpsc::UnboundedSender<Proof>,
    /// Turns that the server samples now.
    pub(super) in_hand: AtomicUsize,
    ended: CancellationToken,
}

impl Session {
    /// A session with its prover, that serves nothing yet.
    pub(super) fn start(run: RunId, server: Arc<Server>, serving: watch::Sender<Serving>) -> Arc<Self> {
        let (proofs, inbox) = mpsc::unbounded_channel();
        let session = Arc::new(Self {
            run,
            server,
            gate: watch::Sender::new(Gate::Closed),
            serving,
            known: RwLock::default(),
            proofs,
            in_hand: AtomicUsize::new(0),
            ended: CancellationToken::new(),
        });
        let prover = Prover { session: Arc::downgrade(&session), inbox };
        let ended = session.ended.clone();
        tokio::spawn(async move { ended.run_until_cancelled(prover.run()).await });
        session
    }

    /// StopCriteria all that goes on.
    pub(super) fn end(&self) {
        self.close(Gate::Ended);
        self.ended.cancel();
    }

    fn close(&self, gate: Gate) {
        if let Gate::Open(served) = self.gate.send_replace(gate) {
            served.boundary.cancel();
        }
    }

    /// Begins a turn. It ends with its reply's receiver, with its task's cancellation, or with the session.
    pub(super) fn admit(self: Arc<Self>, request: Request) {
        tokio::spawn(async move {
            let Request { rollout, task, cancel, mut reply } = request;
            let turn = Turn::new(self, rollout, task);
            let answer = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = reply.closed() => return,
                answer = turn.sample() => answer,
            };
            // Whoever asked may have left.
            let _ = reply.send(answer);
        });
    }

    /// What the server serves is not known any more. Turns in hand are given back, new ones wait.
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

    /// Makes the server go over to other weights, once all turns in hand have stopped and are proved. Turns go on where
    /// they stopped. A server that was lost reads its weights again, for it may have come back with others that are too
    /// near to be told from them.
    pub(super) async fn change(&self, wanted: Wanted) -> Result<(), ServerError> {
        self.close(Gate::Closed);
        // Bounded: each turn stops at the boundary or when the server was silent for too long.
        let mut known = self.known.write().await;
        match self.go_over(&wanted, &mut known).await {
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

    async fn go_over(&self, wanted: &Wanted, known: &mut Option<Measured>) -> Result<Served, ServerError> {
        let (server, tolerance) = (&self.server, self.server.settings().tolerance);
        server.reload(&wanted.folder, &wanted.label).await?;
        server.check_report(&wanted.folder, &wanted.label).await?;
        let logprobs = server.probe(&wanted.weights.tokens).await?;
        let comparable = server.measures_prompts();
        let measured = prove(known.as_ref(), &wanted.weights, &logprobs, comparable, tolerance)?;
        let served = self.served(wanted, logprobs).await?;
        *known = Some(measured);
        Ok(served)
    }

    async fn served(&self, wanted: &Wanted, logprobs: Vec<f32>) -> Result<Served, ServerError> {
        let tokens = wanted.weights.tokens.clone();
        Ok(Served {
            version: wanted.weights.version,
            vocabulary: wanted.vocabulary,
            ends: wanted.ends.clone(),
            label: wanted.label.clone(),
            scaled: self.server.scales_logprobs(&tokens).await?,
            seeded: self.server.takes_seeds().await?,
            tokens,
            logprobs,
            boundary: CancellationToken::new(),
        })
    }

    /// One more turn in the server's hands, until the guard goes.
    pub(super) fn count(&self) -> InHand<'_> {
        self.in_hand.fetch_add(1, Relaxed);
        InHand(&self.in_hand)
    }
}

/// A turn in the server's hands.
pub(super) struct InHand<'a>(&'a AtomicUsize);

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
