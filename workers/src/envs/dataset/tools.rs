//! A turn that calls tools: what it calls, what the calls gave, and how much of that the policy is
//! shown. What is wrong with a call is told to the policy, never a failure of the rollout.

use std::time::Duration;

use futures::future::try_join_all;
use millrace_policy::text_codec::tool_calls::TurnPart;
use millrace_policy::text_codec::{Codec, TextError};
use millrace_schemas::limits::MAX_TOOL_CALLS;
use millrace_schemas::text;
use serde_json::Value;

use crate::mcp::{Declared, McpError, ToolResult};

/// Bytes of a token's text, hardly ever more. It bounds what is tokenised of a result.
const TOKEN_BYTES: usize = 32;
/// Bytes of a name that is shown to the policy.
const SHOWN: usize = 64;

/// A turn with calls.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ToolTurn {
    /// Its whole text.
    pub(super) reply: String,
    /// Its number, from 1.
    pub(super) turn: u16,
    /// `[C]`, 1 or more.
    pub(super) calls: Vec<ToolCall>,
}

/// A call as the policy wrote it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ToolCall {
    Call {
        name: String,
        arguments: Value,
    },
    /// One that cannot be read: why, and how it is written.
    Malformed(String),
}

/// What a call gave: the tool's name as the policy wrote it, and the text.
pub(crate) type Called = (String, String);

/// The calls in a turn's text.
pub(super) fn calls(codec: &Codec, reply: &str, tools: &[Value]) -> Vec<ToolCall> {
    let call = |part| match part {
        TurnPart::Text(_) => None,
        TurnPart::Call { name, arguments } => Some(ToolCall::Call { name, arguments }),
        TurnPart::Malformed { reason, .. } => {
            let example = codec.tool_form().calls().example();
            Some(ToolCall::Malformed(format!("the call cannot be read: {reason}; write {example}")))
        }
    };
    codec.calls_in(reply, tools).into_iter().filter_map(call).collect()
}

/// Whether each call can be read.
pub(super) fn are_readable(calls: &[ToolCall]) -> bool {
    calls.iter().all(|call| matches!(call, ToolCall::Call { .. }))
}

impl ToolTurn {
    /// Makes the calls, side by side, each for at most `within`. What they gave, in their order.
    ///
    /// # Errors
    /// A server does not run.
    pub(crate) async fn call(&self, tools: &[Declared], within: Duration) -> Result<Vec<Called>, McpError> {
        let made = self.calls.iter().take(MAX_TOOL_CALLS).map(|call| make(call, tools, within));
        let mut called = try_join_all(made).await?;
        let rest = self.calls.len().saturating_sub(MAX_TOOL_CALLS);
        if rest > 0 {
            let said = format_args!("{rest} further calls were not made: a turn may have {MAX_TOOL_CALLS}");
            called.push((String::new(), ToolResult::error(said).text));
        }
        Ok(called)
    }
}

async fn make(call: &ToolCall, tools: &[Declared], within: Duration) -> Result<Called, McpError> {
    let (name, arguments) = match call {
        ToolCall::Call { name, arguments } => (name, arguments),
        ToolCall::Malformed(reason) => return Ok((String::new(), ToolResult::error(reason).text)),
    };
    let shown = text::cut(name, SHOWN).to_owned();
    let wrong = |said: String| Ok((shown.clone(), ToolResult::error(said).text));
    let Some(declared) = tools.iter().find(|declared| declared.tool().name == *name) else {
        let names: Vec<&str> = tools.iter().map(|declared| declared.tool().name.as_str()).collect();
        return wrong(format!("there is no tool {shown:?}; the tools are: {}", names.join(", ")));
    };
    let Some(arguments) = arguments.as_object() else {
        return wrong("the arguments must be a JSON object".to_owned());
    };
    if let Some(misfit) = declared.tool().misfit(arguments) {
        return wrong(misfit);
    }
    Ok((shown, declared.call(arguments, within).await?.text))
}

/// The tokens after the turn `turn` that show what its calls gave, at most `most` of them, and the
/// text of it. Each result is cut to `each` tokens, and further until all have room.
///
/// # Errors
/// The codec fails, or there is no room for any result; then with the tokens that it would take.
pub(super) fn observation(
    (codec, tools): (&Codec, &[Value]),
    turn: &[u32],
    called: &[Called],
    (each, most): (u32, u32),
) -> Result<Result<(Vec<u32>, String), usize>, TextError> {
    let mut each = each as usize;
    loop {
        let cut = called.iter().map(|(name, text)| Ok((name.as_str(), cut(codec, text, each)?)));
        let cut = cut.collect::<Result<Vec<_>, TextError>>()?;
        let shown: Vec<(&str, &str)> = cut.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let tokens = codec.continue_with_results(turn, &shown, tools)?;
        if tokens.len() <= most as usize {
            let texts: Vec<&str> = shown.into_iter().map(|(_, text)| text).collect();
            return Ok(Ok((tokens, texts.join("\n\n"))));
        }
        if each == 0 {
            break;
        }
        each /= 2;
    }
    let said = ToolResult::error("the results are too many to be shown").text;
    let tokens = codec.continue_with_results(turn, &[("", &said)], tools)?;
    Ok(if tokens.len() <= most as usize { Ok((tokens, said)) } else { Err(tokens.len()) })
}

/// The text, or its first `most` tokens and that it is cut.
fn cut(codec: &Codec, text: &str, most: usize) -> Result<String, TextError> {
    let head = text::cut(text, most.saturating_mul(TOKEN_BYTES));
    let tokens = codec.encode(head)?;
    if head.len() == text.len() && tokens.len() <= most {
        return Ok(text.to_owned());
    }
    let kept = codec.decode(&tokens[..most.min(tokens.len())], true)?;
    // The last token may hold a part of a character.
    let kept = kept.trim_end_matches('\u{fffd}');
    Ok(format!("{kept}\n[cut: only the first {} characters are shown]", kept.chars().count()))
}

#[cfg(test)]
mod tests;
