//! Asks the prompt of a dataset's row, in words. The task names the row. The answer is checked
//! here, or by the run's rewards, which get the row's other fields. Before it the policy may call
//! tools, if the run file names some: such a turn is no answer.

use millrace_policy::text_codec::{Codec, Message, Speaker};
use millrace_schemas::dataset::{AnswerCheck, ChatRole, DatasetSpec, Row, Rows, whole_number};
use millrace_schemas::env_step::{EnvAction, EnvStepDone, EnvStepTask, Speaker as Side, Split, Utterance};

use serde_json::Value;

use super::arithmetic::last_number;
use super::spoken::{TextStep, TextTurns};
use super::{EnvError, state};
use tools::{Called, ToolTurn};

pub(crate) mod tools;

const KIND: u8 = 5;
const NAME: &str = "dataset";

/// The environment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dataset<'a> {
    /// The settings of the run file.
    pub(crate) spec: &'a DatasetSpec,
    /// The rows.
    pub(crate) rows: &'a Rows,
    /// The model's.
    pub(crate) codec: Option<&'a Codec>,
    /// The tools that the policy is told of, as objects of the chat template. Without them whether a
    /// turn calls any can be told, and not what types its arguments have.
    pub(crate) tools: &'a [Value],
}

/// What a task came to.
#[derive(Debug, PartialEq)]
pub(crate) enum Acted {
    /// The step.
    Done(Box<EnvStepDone>),
    /// The turn calls tools. [`Dataset::show`] makes the step of what they give.
    Calls(ToolTurn),
}

impl Dataset<'_> {
    /// Executes a task, up to calls of tools.
    ///
    /// # Errors
    /// The row does not exist, its prompt is too long, or the state is not from this environment.
    pub(crate) fn act(&self, task: &EnvStepTask) -> Result<Acted, EnvError> {
        let asked = task.row.ok_or_else(|| EnvError::NoRows(self.spec.path.clone()))?;
        let (line, row) = self.rows.row(task.split, asked, self.spec)?;
        match &task.action {
            EnvAction::Reset => {
                let reset = self.reset(row).map_err(|error| self.of_line(line, error));
                reset.map(|done| Acted::Done(Box::new(done)))
            }
            EnvAction::Step { state, .. } => self.step(task, state, &row),
        }
    }

    fn reset(&self, row: Row) -> Result<EnvStepDone, EnvError> {
        let observation = self.text_turns().open(&messages(&row), self.tools)?;
        let words = row.messages.iter().filter(|message| message.role != ChatRole::System);
        let words: Vec<&str> = words.map(|message| message.content.as_str()).collect();
        Ok(EnvStepDone {
            state: state::seal(KIND, &0_u16.to_le_bytes()),
            observation,
            reward: 0.0,
            done: false,
            success: false,
            valid: true,
            said: vec![Utterance { speaker: Side::Environment, text: words.join("\n\n") }],
            row: row.fields,
            ..EnvStepDone::default()
        })
    }

    fn step(&self, task: &EnvStepTask, state: &[u8], row: &Row) -> Result<Acted, EnvError> {
        let turn = u16::from_le_bytes(state::open::<2>(NAME, KIND, state)?);
        let text_turns = self.text_turns();
        let reply = match self.spec.tools.is_empty() {
            true => text_turns.decode_reply(task)?,
            false => text_turns.decode_reply_with_calls(task)?,
        };
        let turn = turn.saturating_add(1);
        let is_last = u32::from(turn) >= self.spec.max_turns;
        let calls = match self.spec.tools.is_empty() {
            true => Vec::new(),
            false => tools::calls(text_turns.codec()?, &reply, self.tools),
        };
        if !calls.is_empty() && !is_last {
            return Ok(Acted::Calls(ToolTurn { reply, turn, calls }));
        }
        let (success, valid) = if calls.is_empty() {
            self.recognised(&reply, row.answer().unwrap_or_default())
        } else {
            (false, tools::are_readable(&calls))
        };
        // Where nothing is checked here, the first answer is the only one.
        let done = success || is_last || self.spec.check == AnswerCheck::ByReward;
        let answer = TextStep {
            state: if done { Vec::new() } else { state::seal(KIND, &turn.to_le_bytes()) },
            text: if done { String::new() } else { "That is not right. Try again.".to_owned() },
            reward: f64::from(u8::from(success)),
            done,
            success,
            valid,
        };
        Ok(Acted::Done(Box::new(text_turns.encode_step(task, reply, answer)?)))
    }

    /// The step of a turn whose calls gave `called`.
    ///
    /// # Errors
    /// The codec fails, or the results have no room even when they are cut.
    pub(crate) fn show(
        &self,
        task: &EnvStepTask,
        turn: ToolTurn,
        called: &[Called],
    ) -> Result<EnvStepDone, EnvError> {
        let EnvAction::Step { tokens, .. } = &task.action else { unreachable!("a reset calls nothing") };
        let (text_turns, bounds) =
            (self.text_turns(), (self.spec.tool_result_tokens, self.spec.prompt_tokens));
        let shown = tools::observation((text_turns.codec()?, self.tools), tokens, called, bounds)?;
        let (observation, text) = shown.map_err(|tokens| text_turns.too_long(tokens))?;
        let valid = tools::are_readable(&turn.calls);
        let policy = Utterance { speaker: Side::Policy, text: turn.reply };
        let environment = Utterance { speaker: Side::Environment, text };
        let state = state::seal(KIND, &turn.turn.to_le_bytes());
        let said = vec![policy, environment];
        Ok(EnvStepDone { state, observation, valid, said, ..EnvStepDone::default() })
    }

    /// Whether the reply has the right answer, and whether it has any.
    fn recognised(&self, reply: &str, answer: &str) -> (bool, bool) {
        match self.spec.check {
            AnswerCheck::ByReward => (false, !reply.trim().is_empty()),
            AnswerCheck::Exact => (reply.trim() == answer.trim(), !reply.trim().is_empty()),
            AnswerCheck::Number => {
                let number = last_number(reply);
                (number.is_some() && number == whole_number(answer), number.is_some())
            }
        }
    }

    fn text_turns(&self) -> TextTurns<'_> {
        let DatasetSpec { system, prompt_tokens, .. } = self.spec;
        TextTurns { environment: NAME, codec: self.codec, system, prompt_tokens: *prompt_tokens }
    }

    /// Adds the row's line to an error.
    fn of_line(&self, line: usize, error: EnvError) -> EnvError {
        match error {
            EnvError::TooLong { tokens, most, .. } => {
                EnvError::TooLong { environment: format!("{} line={line}", self.spec.path), tokens, most }
            }
            other => other,
        }
    }
}

/// The prompt as the chat template takes it.
fn messages(row: &Row) -> Vec<Message<'_>> {
    let speaker = |role| match role {
        ChatRole::System => Speaker::System,
        ChatRole::User => Speaker::User,
        ChatRole::Assistant => Speaker::Assistant,
    };
    let message = row.messages.iter();
    message.map(|message| Message { speaker: speaker(message.role), content: &message.content }).collect()
}

/// The longest prompt of all rows, in tokens; each must be within what the run file allows. `tools`
/// are those that the policy is told of, as objects of the chat template.
///
/// # Errors
/// The first row, of both splits in turn, whose prompt is too long or that the chat template
/// refuses.
pub fn longest_prompt(
    spec: &DatasetSpec,
    rows: &Rows,
    codec: &Codec,
    tools: &[Value],
) -> Result<usize, EnvError> {
    let game = Dataset { spec, rows, codec: Some(codec), tools };
    let mut longest = 0;
    for split in [Split::Train, Split::HeldOut] {
        for row in 0..rows.len(split) as u64 {
            let (line, row) = rows.row(split, row, spec)?;
            let observation =
                game.text_turns().open(&messages(&row), tools).map_err(|error| game.of_line(line, error))?;
            longest = longest.max(observation.len());
        }
    }
    Ok(longest)
}

#[cfg(test)]
mod tests;
