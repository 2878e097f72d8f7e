//! Environments that speak text: they see and say words; tokens are the model's own. What the policy sampled is
//! read, and never made into tokens again.

use millrace_schemas::env_step::{EnvAction, EnvStepDone, EnvStepTask, Speaker as Side, Split, Utterance};

use super::EnvError;
use crate::model::text_codec::{Codec, Message, Speaker};

/// A game in words. Both calls follow from their arguments alone.
pub(super) trait TextEnvironment {
    /// The start state that `seed` draws from `split`, and what is asked first.
    ///
    /// # Errors
    /// The settings allow no start state in this split.
    fn reset(&self, split: Split, seed: u64) -> Result<TextStep, EnvError>;

    /// Takes what the policy `said` in `state`.
    ///
    /// # Errors
    /// `state` is none that this environment gave under these settings.
    fn step(&self, state: &[u8], said: &str) -> Result<TextStep, EnvError>;
}

/// What such a game answers: as [`EnvStepDone`], with words in place of tokens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TextStep {
    /// The state after the step; empty once `done`.
    pub state: Vec<u8>,
    /// What the policy hears; empty only when `done`.
    pub text: String,
    /// The reward for the step.
    pub reward: f64,
    /// The episode is over.
    pub done: bool,
    /// The goal was reached.
    pub success: bool,
    /// The words were an action.
    pub valid: bool,
}

/// How an environment's words become tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextTurns<'a> {
    /// The environment's name.
    pub(crate) environment: &'a str,
    pub(crate) codec: Option<&'a Codec>,
    /// What the conversation begins with; empty for what the chat template has.
    pub(crate) system: &'a str,
    /// Tokens of one turn of the environment at most.
    pub(crate) prompt_tokens: u32,
}

/// Does a task.
pub(super) fn act<E: TextEnvironment>(
    game: &E,
    text_turns: &TextTurns<'_>,
    task: &EnvStepTask,
) -> Result<EnvStepDone, EnvError> {
    let heard = text_turns.hear(task)?;
    let said = match &task.action {
        EnvAction::Reset => game.reset(task.split, task.seed)?,
        EnvAction::Step { state, .. } => game.step(state, &heard)?,
    };
    text_turns.tell(task, heard, said)
}

impl TextTurns<'_> {
    fn codec(&self) -> Result<&Codec, EnvError> {
        self.codec.ok_or(EnvError::NoText { environment: self.environment.to_owned() })
    }

    /// What the policy said; nothing before the first turn.
    ///
    /// # Errors
    /// There is no tokenizer, or the tokens are none of its.
    pub(crate) fn hear(&self, task: &EnvStepTask) -> Result<String, EnvError> {
        match &task.action {
            EnvAction::Reset => Ok(String::new()),
            EnvAction::Step { tokens, .. } => Ok(self.codec()?.decode(tokens, false)?),
        }
    }

    /// What the environment `said` to what was `heard`, in tokens.
    ///
    /// # Errors
    /// There is no tokenizer, it does not take the words, or there are too many of them.
    pub(crate) fn tell(
        &self,
        task: &EnvStepTask,
        heard: String,
        said: TextStep,
    ) -> Result<EnvStepDone, EnvError> {
        let observation = match &task.action {
            EnvAction::Reset => self.open(&[Message { speaker: Speaker::User, content: &said.text }])?,
            EnvAction::Step { .. } if said.done => Vec::new(),
            EnvAction::Step { tokens, .. } => self.bounded(self.codec()?.next_turn(tokens, &said.text)?)?,
        };
        let TextStep { state, text, reward, done, success, valid } = said;
        let policy = Utterance { speaker: Side::Policy, text: heard };
        let environment = Utterance { speaker: Side::Environment, text };
        let said = [policy, environment].into_iter().filter(|utterance| !utterance.text.is_empty()).collect();
        Ok(EnvStepDone { state, observation, reward, done, success, valid, said, ..EnvStepDone::default() })
    }

    /// The tokens that a rollout begins with, whose conversation is `messages`, after the run's own frame if they have
    /// none.
    ///
    /// # Errors
    /// There is no tokenizer, it does not take the words, or there are too many of them.
    pub(crate) fn open(&self, messages: &[Message<'_>]) -> Result<Vec<u32>, EnvError> {
        let frame = Message { speaker: Speaker::System, content: self.system };
        let has_frame = messages.first().is_some_and(|first| first.speaker == Speaker::System);
        let frame = Some(frame).filter(|frame| !has_frame && !frame.content.is_empty());
        let messages: Vec<Message<'_>> = frame.into_iter().chain(messages.iter().copied()).collect();
        self.bounded(self.codec()?.first_turn(&messages)?)
    }

    fn bounded(&self, observation: Vec<u32>) -> Result<Vec<u32>, EnvError> {
        let (tokens, most) = (observation.len(), self.prompt_tokens);
        if tokens > most as usize {
            return Err(EnvError::TooLong { environment: self.environment.to_owned(), tokens, most });
        }
        Ok(observation)
    }
}
