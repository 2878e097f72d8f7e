//! One rollout's agent, between two sides: the agent's calls, and the fold's steps. A call hands over
//! an observation and waits for its turn; a step hands over a turn and waits for the next call, or for
//! the end. Both may be repeated. Calls are answered one after another, or some side by side.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_schemas::env_step::{AgentSpec, EnvStepDone, Speaker, Utterance};
use millrace_schemas::limits::MAX_SAID_BYTES;
use millrace_schemas::text::cut;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::call::{Call, Reply};
use crate::conversation::{Asked, Conversation, Observation, Wanted};
use crate::refusal::Refusal;
pub(crate) use board::Clock;
pub use board::{Board, Phase};

mod board;

/// Calls of one agent that wait for one another, beyond those whose turns are sampled; a further one gets 429.
const WAITING: usize = 16;

/// A session.
pub struct Session {
    board: watch::Sender<Board>,
    /// Never locked over a wait, and before the board.
    conversation: Mutex<Conversation>,
    /// One call at a time waits for room, so that none overtakes another.
    admission: tokio::sync::Mutex<()>,
    waiting: Semaphore,
    places: usize,
    max_turns: u32,
}

/// What a step leads to.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The next observation, or the end. Neither where a later step waits for the next call.
    Done(Box<EnvStepDone>),
    /// The session is gone.
    Lost(String),
    /// The agent cannot be run.
    Impossible(String),
}

/// A call whose client waits for its turn.
struct Attended<'a> {
    session: &'a Session,
    number: u32,
}

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        self.session.conversation().leave(self.number);
    }
}

impl Session {
    pub(crate) fn new(spec: &AgentSpec, conversation: Conversation) -> Self {
        let places = WAITING + spec.parallel_calls as usize - 1;
        Self {
            board: watch::Sender::new(Board::default()),
            conversation: Mutex::new(conversation),
            admission: tokio::sync::Mutex::new(()),
            waiting: Semaphore::new(places),
            places,
            max_turns: spec.max_turns,
        }
    }

    /// Whether the agent has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.board.borrow().has_ended()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Board> {
        self.board.subscribe()
    }

    fn conversation(&self) -> MutexGuard<'_, Conversation> {
        // A panic leaves no call half asked.
        self.conversation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it. The first end stays.
    pub(crate) fn end(&self, phase: Phase) {
        self.board.send_if_modified(|board| {
            let goes_on = !board.has_ended();
            if goes_on {
                board.phase = phase;
            }
            goes_on
        });
    }

    /// The step of this number, 0 for the start, hands over the turn of call `answers`, 0 for none, and waits for what
    /// follows. Dropping the future loses nothing: a repeated step gets the same.
    pub async fn step(&self, number: u32, answers: u32, tokens: &[u32]) -> Step {
        let mut board = self.board.subscribe();
        let mut taken = Ok(());
        self.board.send_modify(|board| taken = board.step(number, answers, tokens));
        if let Err(reason) = taken {
            return Step::Lost(reason);
        }
        let met = board.wait_for(|board| board.led(number).is_some() || board.has_ended()).await;
        let Ok(board) = met else { return Step::Lost("the session was dropped".to_owned()) };
        match (board.led(number), &board.phase) {
            (Some(done), _) | (None, Phase::Over(done)) => Step::Done(Box::new(EnvStepDone::clone(done))),
            (None, Phase::Lost(reason)) => Step::Lost(reason.clone()),
            (None, Phase::Impossible(reason)) => Step::Impossible(reason.clone()),
            (None, Phase::Working) => Step::Lost("the session woke too early".to_owned()),
        }
    }

    /// A place for a call. Taken before the call is read, so that an agent's calls have bounded memory together.
    pub(crate) fn place(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        self.waiting.try_acquire().map_err(|_| Refusal::crowded(self.places))
    }

    /// Answers a call of the agent, as often as it asks for, 1 or more. Dropping the future loses nothing: a
    /// repeated call gets the same.
    pub(crate) async fn call(
        &self,
        call: &mut Call,
        _place: &SemaphorePermit<'_>,
    ) -> Result<Vec<Reply>, Refusal> {
        let mut attended = Vec::new();
        {
            let _first = self.admission.lock().await;
            self.conversation().restore(call);
            for choice in 0..call.choices {
                attended.push(self.admit(&Wanted::new(call, choice)).await?);
            }
        }
        let mut replies = Vec::new();
        for call in &attended {
            replies.push(self.answer(call.number).await?);
        }
        Ok(replies)
    }

    /// Asks for an answer to a call. Waits while as many turns are sampled as may be at once.
    async fn admit(&self, wanted: &Wanted<'_>) -> Result<Attended<'_>, Refusal> {
        let mut board = self.board.subscribe();
        loop {
            let asked = {
                let mut conversation = self.conversation();
                let now = board.borrow_and_update();
                if now.has_ended() {
                    return Err(Refusal::over("the rollout is over"));
                }
                conversation.read(|number| now.turn(number).cloned());
                let left = self.max_turns - now.calls();
                drop(now);
                match conversation.known(wanted) {
                    Some(number) => Some(number),
                    None => {
                        self.refuse_beyond(wanted, left)?;
                        self.ask(&mut conversation, wanted)?
                    }
                }
            };
            if let Some(number) = asked {
                return Ok(Attended { session: self, number });
            }
            if board.changed().await.is_err() {
                return Err(Refusal::over("the rollout is over"));
            }
        }
    }

    /// Refuses a call that is none of the rollout's any more: it has `left` of them.
    fn refuse_beyond(&self, wanted: &Wanted<'_>, left: u32) -> Result<(), Refusal> {
        let (n, most) = (wanted.call.choices, self.max_turns);
        if left == 0 {
            return Err(Refusal::over(format!(
                "the rollout has had its {most} calls (environment.max_turns)"
            )));
        }
        if wanted.choice == 0 && n > left {
            return Err(Refusal::over(format!(
                "n={n}, but of its {most} calls (environment.max_turns) the rollout has {left} left"
            )));
        }
        Ok(())
    }

    /// Asks for a new turn. Returns the call's number; `None` where there is no room.
    fn ask(&self, conversation: &mut Conversation, wanted: &Wanted<'_>) -> Result<Option<u32>, Refusal> {
        let Asked::Turn(number, observation) = conversation.ask(wanted)? else { return Ok(None) };
        let Observation { tokens, before, words, follows } = observation;
        let utterance =
            |speaker, text: String| Utterance { speaker, text: cut(&text, MAX_SAID_BYTES / 4).to_owned() };
        // An empty turn is one: a reward reads it as the answer.
        let said = before.map(|text| utterance(Speaker::Policy, text));
        let words = (!words.is_empty()).then(|| utterance(Speaker::Environment, words));
        let done = EnvStepDone {
            observation: tokens,
            follows,
            valid: true,
            said: said.into_iter().chain(words).collect(),
            limits: wanted.call.limits.clone(),
            ..EnvStepDone::default()
        };
        self.board.send_modify(|board| board.ask(done));
        Ok(Some(number))
    }

    /// Waits for the turn of a call, and reads it.
    async fn answer(&self, number: u32) -> Result<Reply, Refusal> {
        let mut board = self.board.subscribe();
        // It may have been read already, and repeated calls get it to the end.
        let met = board.wait_for(|board| board.turn(number).is_some() || board.has_ended()).await;
        let turn = met.ok().and_then(|board| board.turn(number).cloned());
        let turn: Arc<[u32]> = turn.ok_or_else(|| Refusal::over("the rollout is over"))?;
        let mut conversation = self.conversation();
        conversation.read(|other| (other == number).then(|| turn.clone()));
        conversation.deliver(number)
    }
}
