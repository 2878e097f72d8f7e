//! One rollout's agent, between two sides: the agent's calls, and the fold's steps. A call hands over
//! an observation and waits for the turn; a step hands over a turn and waits for the next call, or for
//! the end. Both may be repeated.

use std::sync::Arc;
use std::time::Duration;

use millrace_schemas::env_step::{AgentSpec, EnvStepDone, Speaker, Utterance};
use millrace_schemas::limits::MAX_SAID_BYTES;
use millrace_schemas::text::cut;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::Instant;

use crate::call::{Call, Reply};
use crate::conversation::{Asked, Conversation, Observation};
use crate::refusal::Refusal;

/// Calls of one agent that wait for one another; a further one gets 429.
const WAITING: usize = 16;

/// A session.
pub struct Session {
    board: watch::Sender<Board>,
    /// One call at a time: a rollout has one conversation.
    conversation: Mutex<Conversation>,
    waiting: Semaphore,
    max_turns: u32,
}

/// What both sides see.
#[derive(Debug, Clone)]
pub(crate) struct Board {
    /// Turns that the agent got.
    pub(crate) turn: u32,
    /// The tokens of the last.
    sampled: Arc<[u32]>,
    pub(crate) phase: Phase,
    /// Since when.
    pub(crate) since: Instant,
    /// The agent's own time before that.
    pub(crate) own: Duration,
}

/// Whose move it is.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    /// The agent's.
    Working,
    /// The model's, after this observation.
    Asked(Arc<EnvStepDone>),
    /// Nobody's: it is scored.
    Over(Arc<EnvStepDone>),
    /// Nobody's: there is no result, for a reason that says nothing of the agent.
    Lost(String),
    /// Nobody's: there is no result, and no other worker would have one.
    Impossible(String),
}

/// What a step leads to.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The next observation, or the end.
    Done(Box<EnvStepDone>),
    /// A later turn was taken since.
    Past,
    /// The session is gone.
    Lost(String),
    /// The agent cannot be run.
    Impossible(String),
}

impl Session {
    pub(crate) fn new(spec: &AgentSpec, conversation: Conversation) -> Self {
        let board = Board {
            turn: 0,
            sampled: Arc::default(),
            phase: Phase::Working,
            since: Instant::now(),
            own: Duration::ZERO,
        };
        Self {
            board: watch::Sender::new(board),
            conversation: Mutex::new(conversation),
            waiting: Semaphore::new(WAITING),
            max_turns: spec.max_turns,
        }
    }

    /// Whether the agent has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !matches!(self.board.borrow().phase, Phase::Working | Phase::Asked(_))
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Board> {
        self.board.subscribe()
    }

    /// Ends it. The first end stays.
    pub(crate) fn end(&self, phase: Phase) {
        self.board.send_if_modified(|board| {
            let goes_on = matches!(board.phase, Phase::Working | Phase::Asked(_));
            if goes_on {
                board.phase = phase;
            }
            goes_on
        });
    }

    /// Hands over the turn of this number (0 for the start, which has none), and waits for what
    /// follows. Dropping the future loses nothing: a repeated step gets the same.
    pub async fn step(&self, turn: u32, tokens: &[u32]) -> Step {
        let mut board = self.board.subscribe();
        if let Some(answer) = self.take_turn(turn, tokens) {
            return answer;
        }
        let met = board.wait_for(|board| board.turn != turn || !matches!(board.phase, Phase::Working)).await;
        let Ok(board) = met else { return Step::Lost("the session was dropped".to_owned()) };
        if board.turn != turn {
            return Step::Past;
        }
        match &board.phase {
            Phase::Asked(done) | Phase::Over(done) => Step::Done(Box::new(EnvStepDone::clone(done))),
            Phase::Lost(reason) => Step::Lost(reason.clone()),
            Phase::Impossible(reason) => Step::Impossible(reason.clone()),
            Phase::Working => Step::Lost("the session woke too early".to_owned()),
        }
    }

    /// Lets the agent have the turn. Gives an answer if there is nothing to wait for.
    fn take_turn(&self, turn: u32, tokens: &[u32]) -> Option<Step> {
        let mut answer = None;
        self.board.send_if_modified(|board| {
            if turn < board.turn {
                answer = Some(Step::Past);
            } else if turn == board.turn {
                if turn > 0 && *board.sampled != *tokens {
                    answer = Some(Step::Lost(format!("turn {turn} came again with other tokens")));
                }
            } else if turn > board.turn + 1 || matches!(board.phase, Phase::Working) {
                answer = Some(Step::Lost(format!("turn {turn} came after turn {}", board.turn)));
            } else {
                board.turn = turn;
                board.sampled = tokens.into();
                // An end stays: the agent died on its call.
                if matches!(board.phase, Phase::Asked(_)) {
                    board.phase = Phase::Working;
                    board.since = Instant::now();
                }
                return true;
            }
            false
        });
        answer
    }

    /// Answers a call of the agent, as often as it asks for, 1 or more. Dropping the future loses nothing: a
    /// repeated call gets the same.
    pub(crate) async fn call(&self, call: &Call) -> Result<Vec<Reply>, Refusal> {
        let Ok(_place) = self.waiting.try_acquire() else { return Err(Refusal::crowded(WAITING)) };
        let mut conversation = self.conversation.lock().await;
        let mut replies = Vec::new();
        for choice in 0..call.choices {
            replies.push(self.choice(&mut conversation, call, choice).await?);
        }
        Ok(replies)
    }

    /// The answer number `choice` to a call, from 0.
    async fn choice(
        &self,
        conversation: &mut Conversation,
        call: &Call,
        choice: u32,
    ) -> Result<Reply, Refusal> {
        let fingerprint = || Conversation::fingerprint(call, choice);
        if conversation.open.as_ref().is_some_and(|open| open.fingerprint != fingerprint()) {
            // Its client went away without an answer. The turn is the rollout's all the same.
            self.answer(conversation).await?;
        }
        let turn = self.running()?;
        let left = self.max_turns - turn;
        if choice == 0 && call.choices > left && conversation.is_new(&fingerprint()) {
            let (n, most) = (call.choices, self.max_turns);
            return Err(Refusal::over(format!(
                "n={n}, but of its {most} calls (environment.max_turns) the rollout has {left} left"
            )));
        }
        let before = conversation.last_text();
        match conversation.ask(call, choice)? {
            Asked::Again(reply) => return Ok(*reply),
            Asked::Outstanding => {}
            Asked::Turn(Observation { tokens, words, follows }) => {
                debug_assert!(turn < self.max_turns);
                let said = [(Speaker::Policy, before), (Speaker::Environment, words)];
                self.publish((tokens, follows), said, call);
            }
        }
        self.answer(conversation).await
    }

    /// The number of turns so far; refuses a call after the end.
    fn running(&self) -> Result<u32, Refusal> {
        let board = self.board.borrow();
        if !matches!(board.phase, Phase::Working | Phase::Asked(_)) {
            return Err(Refusal::over("the rollout is over"));
        }
        if board.turn >= self.max_turns {
            let most = self.max_turns;
            return Err(Refusal::over(format!(
                "the rollout has had its {most} calls (environment.max_turns)"
            )));
        }
        Ok(board.turn)
    }

    fn publish(
        &self,
        (observation, follows): (Vec<u32>, Option<u32>),
        said: [(Speaker, String); 2],
        call: &Call,
    ) {
        let utterance = |(speaker, text): (Speaker, String)| Utterance {
            speaker,
            text: cut(&text, MAX_SAID_BYTES / 4).to_owned(),
        };
        let said = said.into_iter().filter(|(_, text)| !text.is_empty()).map(utterance).collect();
        let limits = call.limits.clone();
        let done = EnvStepDone { observation, follows, valid: true, said, limits, ..EnvStepDone::default() };
        self.board.send_if_modified(|board| {
            let works = matches!(board.phase, Phase::Working);
            if works {
                board.own += board.since.elapsed();
                board.since = Instant::now();
                board.phase = Phase::Asked(Arc::new(done));
            }
            works
        });
    }

    /// Waits for the outstanding turn, and reads it.
    async fn answer(&self, conversation: &mut Conversation) -> Result<Reply, Refusal> {
        let mut board = self.board.subscribe();
        let awaited = conversation.turns() + 1;
        let has_ended = |board: &Board| !matches!(board.phase, Phase::Working | Phase::Asked(_));
        let met = board.wait_for(|board| board.turn >= awaited || has_ended(board)).await;
        let tokens = match met {
            Ok(board) if board.turn == awaited => board.sampled.clone(),
            Ok(_) | Err(_) => return Err(Refusal::over("the rollout is over")),
        };
        conversation.take(&tokens).map_err(|error| Refusal::bad(error.to_string()))
    }
}
