//! One rollout's agent, between two sides: the agent's calls, and the fold's steps. A call hands over
//! an observation and waits for its turn; a step hands over a turn and waits for the next call, or for
//! the end. Both may be repeated. Calls are answered one after another, or some side by side.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_schemas::env_step::{AgentSpec, EnvStepDone, Speaker, Utterance};
use millrace_schemas::limits::MAX_SAID_BYTES;
use millrace_schemas::text::cut;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::spawn_blocking;

use crate::call::{Call, Reply};
use crate::conversation::{Asked, Conversation, Observation, Plan, Wanted};
use crate::refusal::Refusal;
pub(crate) use board::Clock;
pub use board::{Board, Phase};

mod board;

/// Calls of one agent that wait for one another, beyond those whose turns are sampled; a further one gets 429.
const WAITING: usize = 16;
/// Bytes of a call's text from which its tokens are found beside what else this process does: it may take seconds.
const LARGE_BYTES: usize = 64 * 1024;
/// One such call at a time, of whichever agent: what else this process does keeps its processors.
static LARGE_CALLS: Semaphore = Semaphore::const_new(1);

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

/// What becomes of a call that may be asked.
enum Next {
    /// It is the call of this number.
    Asked(u32),
    /// Its tokens take long to find.
    Large(Plan),
    /// As many turns are sampled as may be at once.
    Full,
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

    /// Takes no further call: its agent has ended, and is scored. What the agent left may know the key.
    pub(crate) fn close(&self) {
        self.board.send_modify(|board| board.is_closed = true);
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
            let number = match self.next(wanted, &mut board)? {
                Next::Asked(number) => number,
                Next::Large(plan) => self.ask_large(wanted, plan).await?,
                Next::Full => {
                    board.changed().await.map_err(|_| Refusal::over("the rollout is over"))?;
                    continue;
                }
            };
            return Ok(Attended { session: self, number });
        }
    }

    /// Asks, where there is room and the call's tokens are soon found.
    fn next(&self, wanted: &Wanted<'_>, board: &mut watch::Receiver<Board>) -> Result<Next, Refusal> {
        let mut conversation = self.conversation();
        let now = board.borrow_and_update();
        if !now.takes_calls() {
            return Err(Refusal::over("the rollout is over"));
        }
        conversation.read(|number| now.turn(number).cloned());
        let left = self.max_turns - now.calls();
        drop(now);
        if let Some(number) = conversation.known(wanted) {
            return Ok(Next::Asked(number));
        }
        self.refuse_beyond(wanted, left)?;
        if wanted.call.text_bytes() >= LARGE_BYTES {
            return Ok(conversation.plan(wanted)?.map_or(Next::Full, Next::Large));
        }
        Ok(match conversation.ask(wanted)? {
            Asked::Turn(number, observation) => Next::Asked(self.asked(number, observation, wanted)),
            Asked::Full => Next::Full,
        })
    }

    /// Asks with tokens that are found on a thread of their own, while the runtime's tasks and this agent's other calls
    /// go on. Dropping the future asks nothing.
    async fn ask_large(&self, wanted: &Wanted<'_>, plan: Plan) -> Result<u32, Refusal> {
        let turn = LARGE_CALLS.acquire().await.expect("nobody closes it");
        let (messages, tools) = (wanted.call.messages.clone(), wanted.call.tools.clone());
        let found = spawn_blocking(move || {
            let tokens = plan.tokens(&messages, &tools);
            drop(turn);
            tokens.map(|tokens| (plan, tokens))
        });
        let (plan, tokens) = found.await.map_err(|error| Refusal::bad(format!("messages: {error}")))??;
        let mut conversation = self.conversation();
        if !self.board.borrow().takes_calls() {
            return Err(Refusal::over("the rollout is over"));
        }
        let (number, observation) = conversation.ask_after(wanted, &plan, tokens)?;
        Ok(self.asked(number, observation, wanted))
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

    /// Hands a new call over. Returns its number.
    fn asked(&self, number: u32, observation: Observation, wanted: &Wanted<'_>) -> u32 {
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
        number
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
