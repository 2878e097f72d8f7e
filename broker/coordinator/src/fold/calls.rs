//! Calls side by side: an environment asks for several turns of a rollout at once, each after the turn that its call
//! follows. A step that is queued with each sampled turn hands it over. One step at least always waits for the next call,
//! so that no call waits for another one's turn.
//!
//! Outcomes of steps may come in another order than their calls. So a call is known by the step that led to it: its number
//! is that of the step and 1, as it is where turns follow one another. Turns are numbered in the order in which they are
//! sampled; one whose call does not follow the turn before it is a fork.

use std::collections::BTreeMap;

use millrace_schemas::brief::StepBrief;
use millrace_schemas::env_step::TurnLimits;
use millrace_schemas::{EntryRef, PolicyVersion};
use serde::{Deserialize, Serialize};

/// The calls of a rollout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// The log entry of the reset, which has the environment's state.
    pub host: EntryRef,
    /// The call that each turn answers. `[turns]`
    pub answered: Vec<u32>,
    /// Calls whose turns are being sampled, in order.
    pub open: Vec<OpenCall>,
    /// The awaited steps by number, each with the call whose turn it hands over; 0 for one that has none.
    pub steps: BTreeMap<u32, u32>,
    /// The number of the last step. The reset is 0.
    pub stepped: u32,
}

/// A call whose turn is being sampled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenCall {
    /// Its number: that of the step that led to it, and 1.
    pub number: u32,
    /// The log entry of its observation.
    pub observation: EntryRef,
    /// The turn that it follows, from 1; 0 for none.
    pub follows: u32,
    /// Limits of its turn, below those of the run.
    #[serde(default, skip_serializing_if = "TurnLimits::is_none")]
    pub limits: TurnLimits,
    /// Its turn so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Box<Begun>>,
}

/// The part of a turn that a leaving worker handed back. It is a head start for the next worker and
/// no part of the trajectory: staleness counts from the turn once it is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// The log entry.
    pub entry: EntryRef,
    /// The version that sampled its first token.
    pub first: PolicyVersion,
    /// The version that sampled its last token: no older one may continue it.
    pub newest: PolicyVersion,
}

/// Calls at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Of a rollout.
    pub(crate) in_all: u32,
    /// Whose turns are sampled at once.
    pub(crate) at_once: u32,
}

impl Calls {
    /// Those of an environment that was reset; the reset's observation is the first call's.
    ///
    /// # Errors
    /// It follows a turn, and there is none.
    pub(crate) fn begin(reset: (u64, &StepBrief), bounds: Bounds) -> Result<Self, String> {
        let (seq, step) = reset;
        let (answered, open, steps) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut calls = Self { host: step.entry(seq), answered, open, steps, stepped: 0 };
        calls.call(0, reset, bounds)?;
        Ok(calls)
    }

    /// Calls so far.
    #[must_use]
    pub const fn made(&self) -> u32 {
        (self.answered.len() + self.open.len()) as u32
    }

    /// The turn that answers this call, from 1; 0 for call 0, which is none. `None` while there is no turn.
    #[must_use]
    pub fn turn_of(&self, call: u32) -> Option<u32> {
        if call == 0 {
            return Some(0);
        }
        let at = self.answered.iter().position(|answered| *answered == call)?;
        Some(at as u32 + 1)
    }

    /// The call of this number, while its turn is being sampled.
    #[must_use]
    pub fn open(&self, number: u32) -> Option<&OpenCall> {
        self.open.iter().find(|open| open.number == number)
    }

    /// Takes a step that is not the end, and its position in the log.
    ///
    /// # Errors
    /// It has no call, and no step is later; or its call may not be.
    pub(crate) fn step(
        &mut self,
        number: u32,
        came: (u64, &StepBrief),
        bounds: Bounds,
    ) -> Result<(), String> {
        self.steps.remove(&number);
        if came.1.tokens > 0 {
            return self.call(number, came, bounds);
        }
        if number == self.stepped {
            return Err("environment gave no observation, and no later step waits for one".to_owned());
        }
        self.listen();
        Ok(())
    }

    fn call(&mut self, number: u32, (seq, step): (u64, &StepBrief), bounds: Bounds) -> Result<(), String> {
        let Bounds { in_all, at_once } = bounds;
        let (made, open) = (self.made(), self.open.len());
        if made >= in_all || open >= at_once as usize {
            return Err(format!(
                "environment has another call after calls={made}, open={open}; at most {in_all}, {at_once} at once"
            ));
        }
        let call = step.follows.unwrap_or(number);
        let Some(follows) = self.turn_of(call) else {
            return Err(format!("observation follows call={call}, which has no turn"));
        };
        let (observation, limits) = (step.entry(seq), step.limits.clone());
        self.open.push(OpenCall { number: number + 1, observation, follows, limits, begun: None });
        self.listen();
        Ok(())
    }

    /// Queues a step for the next call where none waits.
    fn listen(&mut self) {
        if self.steps.is_empty() {
            self.queue(0);
        }
    }

    /// Takes the turn of a call, and queues the step that hands it over. Returns the call.
    pub(crate) fn answer(&mut self, number: u32) -> Option<OpenCall> {
        let at = self.open.iter().position(|open| open.number == number)?;
        self.answered.push(number);
        self.queue(number);
        Some(self.open.remove(at))
    }

    fn queue(&mut self, answers: u32) {
        self.stepped += 1;
        self.steps.insert(self.stepped, answers);
    }
}
