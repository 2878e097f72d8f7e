//! Conversations of agents: messages as objects of a chat template, with tools, and what follows a
//! sampled turn.

use serde_json::{Value, json};

use super::{Codec, TEMPLATE_FILE, TURN, TextError};

impl Codec {
    /// The tokens of a conversation that ends where the policy's turn starts. `messages` are objects
    /// of the chat template, `tools` declarations of functions. Special tokens are the template's
    /// alone: their names in messages and tools stay text.
    ///
    /// # Errors
    /// The model has no chat template, the template refuses the conversation, or the tokenizer its
    /// text.
    pub fn open_chat(&self, messages: &[Value], tools: &[Value]) -> Result<Vec<u32>, TextError> {
        self.encode_rendered(&self.render_objects(messages, tools)?)
    }

    /// The tokens after the policy's turn `turn` when `messages` follow it. The tokens before stay as
    /// they are.
    ///
    /// # Errors
    /// As [`Self::open_chat`], or the template changes the assistant's message.
    pub fn continue_chat(
        &self,
        turn: &[u32],
        messages: &[Value],
        tools: &[Value],
    ) -> Result<Vec<u32>, TextError> {
        let before =
            [json!({ "role": "user", "content": "?" }), json!({ "role": "assistant", "content": TURN })];
        let conversation: Vec<Value> = before.into_iter().chain(messages.iter().cloned()).collect();
        self.after_turn(turn, &self.render_objects(&conversation, tools)?)
    }

    /// The text, with the names of special tokens in messages and tools broken.
    pub(super) fn render_objects(&self, messages: &[Value], tools: &[Value]) -> Result<String, TextError> {
        let of_tools = self.tool_template.as_ref().filter(|_| !tools.is_empty());
        let template = of_tools.or(self.template.as_ref()).ok_or(TextError::Missing(TEMPLATE_FILE))?;
        let broken = |values: &[Value]| values.iter().map(|value| self.special.broken_in(value)).collect();
        let (messages, tools): (Vec<Value>, Vec<Value>) = (broken(messages), broken(tools));
        template.render_objects(&messages, &tools, true)
    }
}
