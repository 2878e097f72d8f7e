//! Steps of agents that another worker hosts. The two exchange messages that may be lost: the asker
//! repeats its question each second, and the host answers at once, if only that the agent works. A
//! host that is silent while the asker itself reaches the queue counts as dead, and its sessions as lost. A host
//! that lives ends them when it hears of the next attempt.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_gateway::{Agents, SessionName, Step};
use millrace_queue::{Broker, QueueError};
use millrace_schemas::env_step::{AgentAnswer, AgentMessage, AgentState, AgentStep};
use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::limits::{AGENT_ASK_MS, AGENT_SILENCE_MS, MAX_PAYLOAD_BYTES};
use millrace_schemas::subjects::AGENT_ALL;
use millrace_schemas::{WorkerId, subjects};
use tokio::sync::mpsc;
use tokio::time::{interval, sleep, timeout};

use super::SessionStep;
use crate::runtime::Failure;

/// Pause before it listens again after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two announcements of the attempts that have begun here: one may be lost.
const ANNOUNCE: Duration = Duration::from_secs(30);
/// Questions in a row without an answer, after which the host counts as dead.
const UNANSWERED: u64 = AGENT_SILENCE_MS / AGENT_ASK_MS;
/// Bytes of a message beside its content.
const FRAME_BYTES: usize = 1024;

/// Both sides of the exchange.
pub(super) struct Forward {
    broker: Broker,
    worker: WorkerId,
    /// Tells this process from another one with the worker's name.
    instance: String,
    next: AtomicU64,
    questions: Mutex<HashMap<u64, mpsc::Sender<AgentAnswer>>>,
}

impl Forward {
    pub(super) fn new(broker: Broker, worker: WorkerId) -> Self {
        let instance = uuid::Uuid::now_v7().simple().to_string();
        Self { broker, worker, instance, next: AtomicU64::new(0), questions: Mutex::default() }
    }

    /// The state of a session that is hosted here.
    pub(super) fn state(&self, turn: u32) -> AgentState {
        AgentState { worker: self.worker.clone(), instance: self.instance.clone(), turn }
    }

    /// Whether the session of this state is hosted here.
    pub(super) fn is_here(&self, state: &AgentState) -> bool {
        state.worker == self.worker && state.instance == self.instance
    }

    fn questions(&self) -> MutexGuard<'_, HashMap<u64, mpsc::Sender<AgentAnswer>>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the host of a session. Waits while it answers that the agent works.
    pub(super) async fn ask(&self, state: &AgentState, step: SessionStep<'_>) -> Result<Step, Failure> {
        if state.worker == self.worker {
            return Ok(Step::Lost("the process that hosted the agent has ended".to_owned()));
        }
        let question = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, mut answers) = mpsc::channel(4);
        self.questions().insert(question, sender);
        let _forget = Forget { forward: self, question };
        let name = step.name;
        let step = AgentStep {
            from: self.worker.clone(),
            question,
            instance: state.instance.clone(),
            run: step.name.run.clone(),
            rollout: step.name.rollout,
            step: step.number,
            answers: Some(step.answers),
            version: step.version,
            tokens: step.tokens.to_vec(),
        };
        let message = encode(&AgentMessage::Step(step));
        let mut unanswered = 0;
        loop {
            let sent = self.broker.queue().notice(subjects::agents(&state.worker), message.clone()).await;
            sent.map_err(Failure::soon)?;
            match timeout(Duration::from_millis(AGENT_ASK_MS), answers.recv()).await {
                Ok(Some(AgentAnswer::Working)) => {
                    unanswered = 0;
                    continue;
                }
                Ok(Some(AgentAnswer::Done(done))) => return Ok(Step::Done(done)),
                Ok(Some(AgentAnswer::Lost(reason))) => return Ok(Step::Lost(reason)),
                Ok(Some(AgentAnswer::Impossible(reason))) => return Ok(Step::Impossible(reason)),
                Ok(None) | Err(_) => {}
            }
            // While this worker reaches nobody, the host is not silent.
            unanswered = if self.reaches_queue(name).await { unanswered + 1 } else { 0 };
            if unanswered > UNANSWERED {
                let (host, ms) = (&state.worker, AGENT_SILENCE_MS);
                return Ok(Step::Lost(format!(
                    "worker={host}, which hosted the agent, has not answered for {ms} ms"
                )));
            }
        }
    }

    /// Whether the queue answers this worker.
    async fn reaches_queue(&self, name: &SessionName) -> bool {
        let asked = self.broker.seen_policy(&name.run);
        timeout(Duration::from_millis(AGENT_SILENCE_MS), asked).await.is_ok_and(|answered| answered.is_ok())
    }

    /// Tells the other workers that an attempt has begun, if there was one before it.
    pub(super) async fn begun(&self, name: &SessionName) {
        if name.rollout.attempt == 0 {
            return;
        }
        let message = AgentMessage::Begun { run: name.run.clone(), rollout: name.rollout };
        if let Err(error) = self.broker.queue().notice(AGENT_ALL.to_owned(), encode(&message)).await {
            tracing::debug!(%error, "failed to tell the other workers of an attempt; it is repeated");
        }
    }

    /// Consumes time, produces announcements of the attempts that go on here: the host of an earlier one may not have heard
    /// of it. Never ends.
    pub(super) async fn announce(self: Arc<Self>, agents: Arc<Agents>) {
        let mut pace = interval(ANNOUNCE);
        loop {
            pace.tick().await;
            for name in agents.restarted() {
                self.begun(&name).await;
            }
        }
    }

    /// Consumes messages to this worker and to all; produces answers to questions, hands answers to those who
    /// asked, and ends attempts that others have taken the place of. Waits for the next message. When it cannot
    /// listen, it tries again. Never ends.
    pub(super) async fn listen(self: Arc<Self>, agents: Arc<Agents>) {
        let mut is_told = false;
        loop {
            if let Err(error) = self.follow(&agents).await
                && !std::mem::replace(&mut is_told, true)
            {
                tracing::warn!(%error, "cannot hear other workers that host agents yet");
            }
            sleep(PAUSE).await;
        }
    }

    async fn follow(self: &Arc<Self>, agents: &Arc<Agents>) -> Result<(), QueueError> {
        let mut own = self.broker.queue().listen(&subjects::agents(&self.worker)).await?;
        let mut all = self.broker.queue().listen(AGENT_ALL).await?;
        loop {
            let message = tokio::select! {
                message = own.next() => message,
                message = all.next() => message,
            };
            let Some(message) = message else { return Ok(()) };
            match decode("message between workers", &message.payload) {
                Ok(AgentMessage::Step(step)) => {
                    tokio::spawn(self.clone().answer(agents.clone(), step));
                }
                Ok(AgentMessage::Answer { question, answer }) => {
                    if let Some(asker) = self.questions().get(&question) {
                        // A full channel has an answer already.
                        let _ = asker.try_send(answer);
                    }
                }
                Ok(AgentMessage::Begun { run, rollout }) => agents.supersede(&SessionName { run, rollout }),
                Err(error) => tracing::warn!(%error, "ignoring a message that cannot be read"),
            }
        }
    }

    async fn answer(self: Arc<Self>, agents: Arc<Agents>, step: AgentStep) {
        let AgentStep { from, question, instance, run, rollout, step: number, answers, version, tokens } =
            step;
        let answer = match instance == self.instance {
            true => {
                let name = SessionName { run, rollout };
                let answers = answers.unwrap_or(number);
                let step = SessionStep { name: &name, number, answers, version, tokens: &tokens };
                // Half of the asker's patience.
                match timeout(Duration::from_millis(AGENT_ASK_MS / 2), step.here(&agents)).await {
                    Ok(Step::Done(done)) => AgentAnswer::Done(done),
                    Ok(Step::Lost(reason)) => AgentAnswer::Lost(reason),
                    Ok(Step::Impossible(reason)) => AgentAnswer::Impossible(reason),
                    Err(_) => AgentAnswer::Working,
                }
            }
            false => AgentAnswer::Lost("the process that hosted the agent has ended".to_owned()),
        };
        let mut message = AgentMessage::Answer { question, answer };
        let mut payload = encode(&message);
        if payload.len() + FRAME_BYTES > MAX_PAYLOAD_BYTES
            && let AgentMessage::Answer { answer: AgentAnswer::Done(done), .. } = &mut message
        {
            // The text is for people; the tokens have it, too.
            done.said.clear();
            payload = encode(&message);
        }
        if let Err(error) = self.broker.queue().notice(subjects::agents(&from), payload).await {
            tracing::warn!(%error, "failed to answer another worker; it asks again");
        }
    }
}

/// Forgets a question when its asker is gone.
struct Forget<'a> {
    forward: &'a Forward,
    question: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.forward.questions().remove(&self.question);
    }
}
