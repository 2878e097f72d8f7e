//! Proves for tokens that were just sampled that the server still has the weights that it had
//! before them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use super::session::{Served, Session};
use crate::policy::openai::{ServerError, same};

/// Between the starts of two probes: one proves all that was sampled before it.
const PACE: Duration = Duration::from_millis(20);

/// A request for a proof.
#[derive(Debug)]
pub(super) struct Proof {
    pub(super) served: Arc<Served>,
    pub(super) reply: oneshot::Sender<Result<(), ServerError>>,
}

/// Sends one probe at a time.
pub(super) struct Prover {
    pub(super) session: Weak<Session>,
    pub(super) inbox: mpsc::UnboundedReceiver<Proof>,
}

impl Prover {
    /// Consumes requests, produces an answer to each. Waits for a request, then for the server's
    /// answer to one probe, which proves all requests that came before it. A failed probe loses the
    /// server. Ends with the session.
    pub(super) async fn run(mut self) {
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while let Some(first) = self.inbox.recv().await {
            pace.tick().await;
            let mut asked = vec![first];
            while let Ok(more) = self.inbox.try_recv() {
                asked.push(more);
            }
            // A pending request keeps the weights from changing, so that all of them are about the
            // same ones.
            asked.retain(|proof| !proof.reply.is_closed());
            let (Some(session), Some(served)) = (self.session.upgrade(), asked.first()) else { continue };
            let served = served.served.clone();
            let answer = prove(&session, &served).await;
            if let Err(error) = &answer {
                session.lose(&served, error);
            }
            for proof in asked {
                let _ = proof.reply.send(answer.clone());
            }
        }
    }
}

async fn prove(session: &Session, served: &Served) -> Result<(), ServerError> {
    let settings = session.server.settings();
    let mut refused = Duration::ZERO;
    loop {
        match session.server.probe(&served.tokens).await {
            Ok(logprobs) => return same(&served.logprobs, &logprobs, settings.tolerance),
            // A busy server is not lost.
            Err(ServerError::Busy { after, .. }) if refused < settings.patience => {
                refused += after;
                tokio::time::sleep(after).await;
            }
            Err(error) => return Err(error),
        }
    }
}
