//! Steps of agents that another worker hosts. The two exchange messages that may be lost: the asker
//! repeats its question each second, and the host answers at once, if only that the agent works. A
//! host that is silent counts as dead, and its sessions as lost.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_gateway::{Agents, SessionName, Step};
use millrace_queue::{Broker, QueueError};
use millrace_schemas::env_step::{AgentAnswer, AgentMessage, AgentState, AgentStep};
use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::limits::{AGENT_ASK_MS, AGENT_SILENCE_MS, MAX_PAYLOAD_BYTES};
use millrace_schemas::{WorkerId, subjects};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::SessionStep;
use crate::runtime::Failure;

/// Pause before it listens again after a failure.
const PAUSE: Duration = Duration::from_secs(1);
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
        let step = AgentStep {
            from: self.worker.clone(),
            question,
            instance: state.instance.clone(),
            run: step.name.run.clone(),
            rollout: step.name.rollout,
            step: step.number,
            answers: Some(step.answers),
            tokens: step.tokens.to_vec(),
        };
        let message = encode(&AgentMessage::Step(step));
        let mut heard = Instant::now();
        loop {
            let sent = self.broker.queue().notice(subjects::agents(&state.worker), message.clone()).await;
            sent.map_err(Failure::soon)?;
            match timeout(Duration::from_millis(AGENT_ASK_MS), answers.recv()).await {
                Ok(Some(AgentAnswer::Working)) => {
                    heard = Instant::now();
                    continue;
                }
                Ok(Some(AgentAnswer::Done(done))) => return Ok(Step::Done(done)),
                Ok(Some(AgentAnswer::Lost(reason))) => return Ok(Step::Lost(reason)),
                Ok(Some(AgentAnswer::Impossible(reason))) => return Ok(Step::Impossible(reason)),
                Ok(None) | Err(_) => {}
            }
            if heard.elapsed() > Duration::from_millis(AGENT_SILENCE_MS) {
                let (host, ms) = (&state.worker, AGENT_SILENCE_MS);
                return Ok(Step::Lost(format!(
                    "worker={host}, which hosted the agent, has not answered for {ms} ms"
                )));
            }
        }
    }

    /// Consumes messages to this worker; produces answers to questions, and hands answers to those who
    /// asked. Waits for the next message. When it cannot listen, it tries again. Never ends.
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
        let mut messages = self.broker.queue().listen(&subjects::agents(&self.worker)).await?;
        while let Some(message) = messages.next().await {
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
                Err(error) => tracing::warn!(%error, "ignoring a message that cannot be read"),
            }
        }
        Ok(())
    }

    async fn answer(self: Arc<Self>, agents: Arc<Agents>, step: AgentStep) {
        let AgentStep { from, question, instance, run, rollout, step: number, answers, tokens } = step;
        let answer = match instance == self.instance {
            true => {
                let name = SessionName { run, rollout };
                let answers = answers.unwrap_or(number);
                let step = SessionStep { name: &name, number, answers, tokens: &tokens }.here(&agents);
                // Half of the asker's patience.
                match timeout(Duration::from_millis(AGENT_ASK_MS / 2), step).await {
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
