//! One turn: pieces, each sampled by one version and proved, until a stop criterion or the token
//! limit.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use millrace_policy::PolicyError;
use millrace_policy::random::Stream;
use millrace_policy::stop_criteria::{StopCriteria, Stops};
use millrace_schemas::generate::{Finish, GenerateDone, GenerateTask};
use millrace_schemas::{PolicyVersion, RolloutId};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::prover::Proof;
use super::session::{Gate, Served, Session};
use crate::generate::driver::{Answer, check};
use crate::policy::openai::{Ask, Piece, ServerError};

/// Pieces in a row without a token, under unchanged weights, before the turn returns to the queue.
const EMPTY_PIECES: u32 = 3;

/// The outcome of a request for a piece.
enum Progress {
    /// The turn is whole.
    Ended,
    /// Some tokens.
    More,
    /// No token, under unchanged weights.
    None,
    /// No token: the weights change, or have changed.
    Closed,
}

/// A turn that is not complete.
pub(super) struct Turn {
    session: Arc<Session>,
    rollout: RolloutId,
    task: GenerateTask,
    stops: Stops,
    /// The context and what was sampled after it.
    tokens: Vec<u32>,
    done: GenerateDone,
    from: PolicyVersion,
    pieces: u64,
    busy: Duration,
    /// Fires when the turn must end with what was sampled.
    leaving: CancellationToken,
}

impl Turn {
    pub(super) fn new(
        session: Arc<Session>,
        rollout: RolloutId,
        mut task: GenerateTask,
        leaving: CancellationToken,
    ) -> Self {
        let from = task.oldest_version();
        let done = task.turn_so_far();
        let (mut tokens, stops) = (task.context.clone(), Stops::of(&task.sampling));
        tokens.extend_from_slice(&done.tokens);
        // A piece has a token or more: what another worker drew is not drawn again.
        let pieces = done.tokens.len() as u64;
        Self { session, rollout, task, stops, tokens, done, from, pieces, busy: Duration::ZERO, leaving }
    }

    /// Consumes the server's pieces, produces the turn. Waits for the gate, for the server, for the
    /// proof, and for a server that is busy; all are bounded. Unblocked by weights that are proved.
    /// On failure the turn returns to the queue and is sampled again.
    pub(super) async fn sample(mut self) -> Result<Answer, PolicyError> {
        let (mut refused, mut empty) = (Duration::ZERO, 0);
        loop {
            if self.leaving.is_cancelled() {
                return self.hand_back();
            }
            let leaving = self.leaving.clone();
            let Some(served) = leaving.run_until_cancelled(self.open()).await else { continue };
            let served = served?;
            served.ends.prepare(&self.stops)?;
            match self.piece(&served).await {
                Ok(Progress::Ended) => {
                    check(&self.done, self.from, served.version)?;
                    return Ok(Answer { done: self.done, busy: self.busy });
                }
                Ok(Progress::More) => empty = 0,
                Ok(Progress::None) => {
                    empty += 1;
                    if empty == EMPTY_PIECES {
                        return Err(PolicyError::Temporary("the server samples nothing".to_owned()));
                    }
                }
                Ok(Progress::Closed) => {}
                Err(ServerError::Busy { after, .. }) if refused < self.session.server.settings().patience => {
                    refused += after;
                    tokio::time::sleep(after).await;
                }
                Err(error) => {
                    let error = self.session.server.diagnosed(error).await;
                    if error.is_loss() {
                        self.session.lose(&served, &error);
                    }
                    return Err(error.into());
                }
            }
        }
    }

    /// What was sampled and proved so far.
    fn hand_back(mut self) -> Result<Answer, PolicyError> {
        let Some(newest) = self.done.segments.last() else {
            return Err(PolicyError::Temporary("this worker leaves".to_owned()));
        };
        check(&self.done, self.from, newest.version)?;
        self.done.finish = Finish::Partial;
        Ok(Answer { done: self.done, busy: self.busy })
    }

    /// Waits until turns may be sampled.
    async fn open(&self) -> Result<Arc<Served>, PolicyError> {
        let mut gate = self.session.gate.subscribe();
        let opened = gate.wait_for(|gate| !matches!(gate, Gate::Closed));
        // Bounded, because another worker's server may be free meanwhile.
        let Ok(gate) = tokio::time::timeout(self.session.server.settings().reload_timeout, opened).await
        else {
            return Err(PolicyError::Temporary("the server was away for too long".to_owned()));
        };
        let min_version = self.task.min_version;
        match gate.as_deref() {
            Ok(Gate::Open(served)) if served.version >= min_version => Ok(served.clone()),
            Ok(Gate::Open(served)) => {
                let serves = served.version;
                let reason = format!("the engine serves {serves} where {min_version} is required");
                Err(PolicyError::Temporary(reason))
            }
            Ok(Gate::Closed | Gate::Ended) | Err(_) => {
                let reason = format!("the engine has left run={}", self.session.run);
                Err(PolicyError::Temporary(reason))
            }
        }
    }

    /// Lets the server sample until the boundary, and proves the weights that it used.
    async fn piece(&mut self, served: &Arc<Served>) -> Result<Progress, ServerError> {
        let session = self.session.clone();
        let unchanged = session.known.read().await;
        if served.boundary.is_cancelled() {
            return Ok(Progress::Closed);
        }
        let in_flight = session.count();
        let started = Instant::now();
        let name = format!("{}-{}", self.rollout, uuid::Uuid::now_v7().simple());
        let stop_tokens = served.ends.all_tokens(&self.stops);
        let ask = self.ask(served, &stop_tokens, &name);
        let boundary = served.boundary.child_token();
        let leave = async {
            self.leaving.cancelled().await;
            boundary.cancel();
            std::future::pending().await
        };
        let mut piece = tokio::select! {
            piece = session.server.sample(&ask, &boundary) => piece?,
            never = leave => never,
        };
        let finish = self.cut(&mut piece, &served.ends)?;
        let uncut_logprobs = if self.task.sampling.cuts() && !piece.tokens.is_empty() {
            session.server.score(&self.tokens, &piece.tokens).await?
        } else {
            Vec::new()
        };
        // This turn's share of the server's time.
        self.busy += started.elapsed() / session.in_flight.load(Relaxed).max(1) as u32;
        drop(in_flight);
        if piece.tokens.is_empty() {
            return Ok(if boundary.is_cancelled() { Progress::Closed } else { Progress::None });
        }
        self.prove(&piece, served).await?;
        drop(unchanged);
        self.done.uncut_logprobs.extend(uncut_logprobs);
        self.take(&piece, served);
        self.done.finish = finish.unwrap_or(Finish::Length);
        let full = self.done.tokens.len() == self.task.max_new_tokens as usize;
        Ok(if finish.is_some() || full { Progress::Ended } else { Progress::More })
    }

    /// Cuts a piece where the turn ends in it. The tokens before the cut do not depend on those
    /// after it.
    fn cut(&self, piece: &mut Piece, ends: &StopCriteria) -> Result<Option<Finish>, ServerError> {
        let mut sampled = self.done.tokens.clone();
        for (index, token) in piece.tokens.iter().enumerate() {
            sampled.push(*token);
            if ends.end(&sampled, &self.stops).map_err(|error| ServerError::Refused(error.to_string()))? {
                piece.tokens.truncate(index + 1);
                piece.logprobs.truncate(index + 1);
                return Ok(Some(Finish::Stop));
            }
        }
        Ok(None)
    }

    fn ask<'a>(&'a self, served: &Served, stop_tokens: &'a [u32], name: &'a str) -> Ask<'a> {
        // The same draws must not come twice in one turn.
        let mut seeds = Stream::new(self.task.seed);
        let seed = (0..=self.pieces).fold(0, |_, _| seeds.below(u64::MAX));
        Ask {
            context: &self.tokens,
            max_new_tokens: self.task.max_new_tokens - self.done.tokens.len() as u32,
            sampling: &self.task.sampling,
            stop_tokens,
            seed: served.seeded.then_some(seed),
            vocabulary: served.vocabulary,
            scaled: served.scaled,
            name,
        }
    }

    /// Proves that the server still has these weights.
    async fn prove(&self, piece: &Piece, served: &Arc<Served>) -> Result<(), ServerError> {
        if self.session.server.replies_name_weights() {
            if piece.label.as_ref() == Some(&served.label) {
                return Ok(());
            }
            let (found, expected) = (&piece.label, &served.label);
            return Err(ServerError::OtherWeights(format!(
                "a reply has weight_version={found:?}, not {expected:?}"
            )));
        }
        let (reply, answer) = oneshot::channel();
        let _ = self.session.proofs.send(Proof { served: served.clone(), reply });
        answer.await.unwrap_or_else(|_| Err(ServerError::Failed("the run has ended".to_owned())))
    }

    fn take(&mut self, piece: &Piece, served: &Served) {
        if self.pieces == 0 {
            let context = self.task.context.len() as u32;
            self.done.cached_tokens = piece.cached.min(context);
            self.done.prefill_tokens = context - self.done.cached_tokens;
        }
        self.pieces += 1;
        self.tokens.extend_from_slice(&piece.tokens);
        self.done.extend(&piece.tokens, &piece.logprobs, served.version);
    }
}
