//! Environments that speak text: they see and say words; tokens are the model's own. What the policy sampled is
//! read, and never made into tokens again.

use millrace_schemas::env_step::{EnvAction, EnvStepDone, EnvStepTask, Split};

use super::EnvError;
use crate::text::{Codec, Message, Speaker};

/// A game in words. Both calls follow from their arguments alone.
pub(super) trait TextEnvironment {
    /// Its name.
    const NAME: &'static str;

    /// The start state that `seed` draws from `split`, and what is asked first.
    ///
    /// # Errors
    /// The settings allow no start state in this split.
    fn reset(&self, split: Split, seed: u64) -> Result<Said, EnvError>;

    /// Takes what the policy `said` in `state`.
    ///
    /// # Errors
    /// `state` is none that this environment gave under these settings.
    fn step(&self, state: &[u8], said: &str) -> Result<Said, EnvError>;
}

/// What such a game answers: as [`EnvStepDone`], with words in place of tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Said {
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
pub(super) struct Manner<'a> {
    pub(super) codec: Option<&'a Codec>,
    /// What the conversation begins with; empty for what the chat template has.
    pub(super) system: &'a str,
    /// Tokens of one turn of the environment at most.
    pub(super) prompt_tokens: u32,
}

/// Does a task.
pub(super) fn act<E: TextEnvironment>(
    game: &E,
    manner: &Manner<'_>,
    task: &EnvStepTask,
) -> Result<EnvStepDone, EnvError> {
    let codec = manner.codec.ok_or(EnvError::NoText { environment: E::NAME })?;
    let (said, observation) = match &task.action {
        EnvAction::Reset => {
            let said = game.reset(task.split, task.seed)?;
            let frame = Message { speaker: Speaker::System, content: manner.system };
            let frame = Some(frame).filter(|frame| !frame.content.is_empty());
            let question = Message { speaker: Speaker::User, content: &said.text };
            let messages: Vec<Message<'_>> = frame.into_iter().chain([question]).collect();
            let tokens = codec.first_turn(&messages)?;
            (said, tokens)
        }
        EnvAction::Step { state, tokens } => {
            let said = game.step(state, &codec.decode(tokens, false)?)?;
            let heard = if said.done { Vec::new() } else { codec.next_turn(tokens, &said.text)? };
            (said, heard)
        }
    };
    if observation.len() > manner.prompt_tokens as usize {
        let (tokens, most) = (observation.len(), manner.prompt_tokens);
        return Err(EnvError::TooLong { environment: E::NAME, tokens, most });
    }
    let Said { state, reward, done, success, valid, .. } = said;
    Ok(EnvStepDone { state, observation, reward, done, success, valid })
}
