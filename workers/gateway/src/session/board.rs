//! What a rollout's agent and the fold's steps see of each other: calls and their turns, and which step has which call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millrace_schemas::env_step::EnvStepDone;
use tokio::time::Instant;

/// The board of a session. All of it is kept to the session's end, so that what is repeated gets the same.
#[derive(Debug, Clone)]
pub struct Board {
    /// Calls in their order; number 1 is the first.
    calls: Vec<Call>,
    /// What each step led to; `None` while it waits.
    steps: BTreeMap<u32, Option<Arc<EnvStepDone>>>,
    /// Whether the agent goes on.
    pub phase: Phase,
    /// The agent has ended, and is scored.
    pub is_closed: bool,
    /// Since when the agent works without a call that is open.
    since: Instant,
    /// Its own time before that.
    own: Duration,
}

/// A call.
#[derive(Debug, Clone)]
struct Call {
    observation: Arc<EnvStepDone>,
    since: Instant,
    /// The step that led to it. The fold numbers it by that, for its outcomes may come in another order: the step and 1.
    step: Option<u32>,
    turn: Option<Arc<[u32]>>,
}

/// Whether the agent goes on.
#[derive(Debug, Clone)]
pub enum Phase {
    /// It does.
    Working,
    /// It is scored.
    Over(Arc<EnvStepDone>),
    /// There is no result, for a reason that says nothing of the agent.
    Lost(String),
    /// There is no result, and no other worker would have one.
    Impossible(String),
}

/// Until when the agent may go on as it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// It works since then, and had so much of its own time before.
    Agent(Instant, Duration),
    /// It has waited for a turn since then.
    Model(Instant),
}

impl Default for Board {
    fn default() -> Self {
        let (calls, steps) = (Vec::new(), BTreeMap::new());
        let (phase, is_closed) = (Phase::Working, false);
        Self { calls, steps, phase, is_closed, since: Instant::now(), own: Duration::ZERO }
    }
}

impl Board {
    /// Whether the agent has ended.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        !matches!(self.phase, Phase::Working)
    }

    /// Whether a call of the agent may be answered.
    #[must_use]
    pub const fn takes_calls(&self) -> bool {
        !self.is_closed && !self.has_ended()
    }

    /// Calls so far.
    #[must_use]
    pub const fn calls(&self) -> u32 {
        self.calls.len() as u32
    }

    /// The turn of a call; `None` while it is open.
    #[must_use]
    pub fn turn(&self, call: u32) -> Option<&Arc<[u32]>> {
        self.calls.get((call as usize).checked_sub(1)?)?.turn.as_ref()
    }

    pub(crate) fn clock(&self) -> Clock {
        let open = self.calls.iter().filter(|call| call.turn.is_none());
        open.map(|call| call.since).min().map_or(Clock::Agent(self.since, self.own), Clock::Model)
    }

    /// The agent asks for another turn. What it follows is one of its calls, by its number here.
    pub fn ask(&mut self, observation: EnvStepDone) {
        let now = Instant::now();
        if matches!(self.clock(), Clock::Agent(..)) {
            self.own += now - self.since;
        }
        let observation = Arc::new(observation);
        self.calls.push(Call { observation, since: now, step: None, turn: None });
        self.lead();
    }

    /// A step comes with the turn of the call that the fold numbers `answers` (0 for none), perhaps once more.
    ///
    /// # Errors
    /// There is no such call, or it has another turn.
    pub fn step(&mut self, number: u32, answers: u32, tokens: &[u32]) -> Result<(), String> {
        let calls = self.calls();
        if let Some(led_by) = answers.checked_sub(1) {
            let known = self.calls.iter_mut().find(|call| call.step == Some(led_by));
            let call = known.ok_or_else(|| format!("turn {answers} came after {calls} calls"))?;
            match &call.turn {
                Some(turn) if **turn != *tokens => {
                    return Err(format!("turn {answers} came again with other tokens"));
                }
                Some(_) => {}
                None => {
                    call.turn = Some(tokens.into());
                    if matches!(self.clock(), Clock::Agent(..)) {
                        self.since = Instant::now();
                    }
                }
            }
        }
        self.steps.entry(number).or_default();
        self.lead();
        Ok(())
    }

    /// Leads the newest step that waits to the next call; the others that wait have none.
    fn lead(&mut self) {
        let mut waiting = self.steps.iter_mut().rev().filter(|(_, led)| led.is_none());
        let Some((step, newest)) = waiting.next() else { return };
        waiting.for_each(|(_, led)| {
            *led = Some(Arc::new(EnvStepDone { valid: true, ..EnvStepDone::default() }))
        });
        let Some(at) = self.calls.iter().position(|call| call.step.is_none()) else { return };
        self.calls[at].step = Some(*step);
        let mut next = self.calls[at].observation.clone();
        // The call before, where none is named, is that of the step before for the fold.
        let followed = next.follows.map_or(at, |call| call as usize);
        let named = followed.checked_sub(1).map_or(Some(0), |at| self.calls[at].step.map(|step| step + 1));
        let follows = named.filter(|named| named != step);
        if follows != next.follows {
            next = Arc::new(EnvStepDone { follows, ..EnvStepDone::clone(&next) });
        }
        *newest = Some(next);
    }

    /// What a step led to; `None` while it waits.
    #[must_use]
    pub fn led(&self, step: u32) -> Option<&Arc<EnvStepDone>> {
        self.steps.get(&step)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(board: &mut Board, token: u32) {
        board.ask(EnvStepDone { observation: vec![token], valid: true, ..EnvStepDone::default() });
    }

    fn led(board: &Board, step: u32) -> Option<Vec<u32>> {
        board.led(step).map(|done| done.observation.clone())
    }

    #[test]
    fn each_call_is_led_to_by_one_step_and_repeated_steps_get_the_same() {
        let mut board = Board::default();
        board.step(0, 0, &[]).unwrap();
        assert_eq!(led(&board, 0), None, "nothing is asked yet");
        for call in [1, 2, 3] {
            asks(&mut board, call);
        }
        assert_eq!(led(&board, 0), Some(vec![1]));
        board.step(1, 0, &[]).unwrap();
        assert_eq!(led(&board, 1), Some(vec![2]), "a call that waited");
        board.step(0, 0, &[]).unwrap();
        assert_eq!(led(&board, 0), Some(vec![1]), "the same again");
        board.step(2, 0, &[]).unwrap();
        assert_eq!(led(&board, 2), Some(vec![3]));
        // Two steps wait: the newer one does, the older one is told that nothing came.
        board.step(3, 0, &[]).unwrap();
        board.step(4, 2, &[7]).unwrap();
        assert_eq!((led(&board, 3), led(&board, 4)), (Some(vec![]), None));
        asks(&mut board, 4);
        assert_eq!(led(&board, 4), Some(vec![4]));
        assert_eq!((board.turn(2).map(|turn| turn.to_vec()), board.turn(1)), (Some(vec![7]), None));
    }

    #[test]
    fn an_older_step_that_comes_late_takes_no_call_from_a_newer_one() {
        let mut board = Board::default();
        board.step(0, 0, &[]).unwrap();
        asks(&mut board, 1);
        board.step(2, 1, &[5]).unwrap();
        board.step(1, 0, &[]).unwrap();
        assert_eq!((led(&board, 1), led(&board, 2)), (Some(vec![]), None));
        asks(&mut board, 2);
        assert_eq!(led(&board, 2), Some(vec![2]));
    }

    #[test]
    fn a_turn_of_no_call_and_other_tokens_for_one_are_errors() {
        let mut board = Board::default();
        board.step(0, 0, &[]).unwrap();
        assert!(board.step(1, 1, &[5]).unwrap_err().contains("after 0 calls"));
        asks(&mut board, 1);
        board.step(1, 1, &[5]).unwrap();
        board.step(1, 1, &[5]).unwrap();
        assert!(board.step(1, 1, &[6]).unwrap_err().contains("other tokens"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_agents_own_time_runs_while_no_call_is_open() {
        let (mut board, start, second) = (Board::default(), Instant::now(), Duration::from_secs(1));
        board.step(0, 0, &[]).unwrap();
        tokio::time::advance(second).await;
        asks(&mut board, 1);
        board.step(1, 0, &[]).unwrap();
        tokio::time::advance(second).await;
        asks(&mut board, 2);
        assert_eq!(board.clock(), Clock::Model(start + second));
        board.step(2, 1, &[5]).unwrap();
        assert_eq!(board.clock(), Clock::Model(start + 2 * second), "the second call is open");
        tokio::time::advance(second).await;
        board.step(3, 2, &[5]).unwrap();
        assert_eq!(board.clock(), Clock::Agent(start + 3 * second, second));
    }
}
