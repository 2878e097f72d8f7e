//! Environments that speak text. The text codec of the model turns their text into tokens and
//! decodes the policy's tokens, which are never tokenised again.

use millrace_policy::text_codec::{Codec, Message, Speaker, TextError};
use millrace_schemas::env_step::{EnvAction, EnvStepDone, EnvStepTask, Speaker as Side, Split, Utterance};
use serde_json::{Value, json};

use super::EnvError;

/// A text environment. Both calls are functions of their arguments alone.
pub(super) trait TextEnvironment {
    /// The start state that `seed` draws from `split`, and the first observation.
    ///
    /// # Errors
    /// The settings allow no start state in this split.
    fn reset(&self, split: Split, seed: u64) -> Result<TextStep, EnvError>;

    /// Takes the policy's turn `reply` in `state`.
    ///
    /// # Errors
    /// `state` is not from this environment under these settings.
    fn step(&self, state: &[u8], reply: &str) -> Result<TextStep, EnvError>;
}

/// The answer of a text environment: as [`EnvStepDone`], with text in place of tokens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TextStep {
    /// The state after the step; empty once `done`.
    pub state: Vec<u8>,
    /// The observation; empty only when `done`.
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

/// The text codec's settings for one environment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextTurns<'a> {
    /// The environment's name.
    pub(crate) environment: &'a str,
    pub(crate) codec: Option<&'a Codec>,
    /// The system prompt; empty for that of the chat template.
    pub(crate) system: &'a str,
    /// Tokens of one turn of the environment at most.
    pub(crate) prompt_tokens: u32,
}

/// Executes a task.
pub(super) fn act<E: TextEnvironment>(
    game: &E,
    text_turns: &TextTurns<'_>,
    task: &EnvStepTask,
) -> Result<EnvStepDone, EnvError> {
    let reply = text_turns.decode_reply(task)?;
    let answer = match &task.action {
        EnvAction::Reset => game.reset(task.split, task.seed)?,
        EnvAction::Step { state, .. } => game.step(state, &reply)?,
    };
    text_turns.encode_step(task, reply, answer)
}

impl TextTurns<'_> {
    /// The model's codec.
    ///
    /// # Errors
    /// The model does not speak text.
    pub(crate) fn codec(&self) -> Result<&Codec, EnvError> {
        self.codec.ok_or(EnvError::NoText { environment: self.environment.to_owned() })
    }

    /// Decodes the policy's turn; empty before the first one.
    ///
    /// # Errors
    /// There is no tokenizer, or it refuses the tokens.
    pub(crate) fn decode_reply(&self, task: &EnvStepTask) -> Result<String, EnvError> {
        self.decoded(task, |codec, tokens| codec.decode(tokens, false))
    }

    /// The same where the policy may call tools: marks of calls are part of the text.
    ///
    /// # Errors
    /// As [`Self::decode_reply`].
    pub(crate) fn decode_reply_with_calls(&self, task: &EnvStepTask) -> Result<String, EnvError> {
        self.decoded(task, Codec::decode_with_calls)
    }

    fn decoded(
        &self,
        task: &EnvStepTask,
        decode: impl Fn(&Codec, &[u32]) -> Result<String, TextError>,
    ) -> Result<String, EnvError> {
        match &task.action {
            EnvAction::Reset => Ok(String::new()),
            EnvAction::Step { tokens, .. } => Ok(decode(self.codec()?, tokens)?),
        }
    }

    /// Encodes the environment's `answer` to the policy's `reply`.
    ///
    /// # Errors
    /// There is no tokenizer, it refuses the text, or there are too many tokens.
    pub(crate) fn encode_step(
        &self,
        task: &EnvStepTask,
        reply: String,
        answer: TextStep,
    ) -> Result<EnvStepDone, EnvError> {
        let observation = match &task.action {
            EnvAction::Reset => {
                self.open(&[Message { speaker: Speaker::User, content: &answer.text }], &[])?
            }
            EnvAction::Step { .. } if answer.done => Vec::new(),
            EnvAction::Step { tokens, .. } => self.bounded(self.codec()?.next_turn(tokens, &answer.text)?)?,
        };
        let TextStep { state, text, reward, done, success, valid } = answer;
        // An empty turn is an answer: without it, rules would score the turn before, or none.
        let policy = matches!(task.action, EnvAction::Step { .. })
            .then_some(Utterance { speaker: Side::Policy, text: reply });
        let environment = (!text.is_empty()).then_some(Utterance { speaker: Side::Environment, text });
        let said = policy.into_iter().chain(environment).collect();
        Ok(EnvStepDone { state, observation, reward, done, success, valid, said, ..EnvStepDone::default() })
    }

    /// The tokens that a rollout begins with. The conversation is `messages`, after the run's
    /// system prompt if they have none. The policy may call `tools`, objects of the chat template.
    ///
    /// # Errors
    /// There is no tokenizer, it refuses the text, or there are too many tokens.
    pub(crate) fn open(&self, messages: &[Message<'_>], tools: &[Value]) -> Result<Vec<u32>, EnvError> {
        let frame = Message { speaker: Speaker::System, content: self.system };
        let has_frame = messages.first().is_some_and(|first| first.speaker == Speaker::System);
        let frame = Some(frame).filter(|frame| !has_frame && !frame.content.is_empty());
        let messages: Vec<Message<'_>> = frame.into_iter().chain(messages.iter().copied()).collect();
        let codec = self.codec()?;
        if tools.is_empty() {
            return self.bounded(codec.first_turn(&messages)?);
        }
        let object =
            |message: &Message<'_>| json!({ "role": message.speaker.role(), "content": message.content });
        let messages: Vec<Value> = messages.iter().map(object).collect();
        self.bounded(codec.open_with_tools(&messages, tools)?)
    }

    fn bounded(&self, observation: Vec<u32>) -> Result<Vec<u32>, EnvError> {
        let tokens = observation.len();
        if tokens > self.prompt_tokens as usize { Err(self.too_long(tokens)) } else { Ok(observation) }
    }

    /// The environment has to say so many tokens, and may not.
    pub(crate) fn too_long(&self, tokens: usize) -> EnvError {
        EnvError::TooLong { environment: self.environment.to_owned(), tokens, most: self.prompt_tokens }
    }
}
