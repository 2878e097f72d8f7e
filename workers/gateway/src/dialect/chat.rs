//! OpenAI's chat completions.

use std::collections::BTreeMap;

use millrace_schemas::env_step::TurnLimits;
use serde_json::{Value, json};

use super::fields::{Room, arguments, event, flag, list, max_tokens, refuse, stop, text};
use crate::call::{Call, Finish, Reply, ToolCall, assistant};
use crate::refusal::Refusal;

/// Answers to one call at most.
const MAX_CHOICES: u32 = 16;

pub(super) fn read(body: &Value, room: &mut Room) -> Result<Call, Refusal> {
    refuse(body, "logprobs", |value| *value == false, "log-probabilities stay with the trainer")?;
    let is_text = |format: &Value| format["type"] == "text";
    refuse(body, "response_format", is_text, "tokens are drawn from the policy alone; ask for text")?;
    let is_free = |choice: &Value| {
        choice == "auto" || (choice == "none" && list(body, "tools").is_ok_and(<[_]>::is_empty))
    };
    refuse(body, "tool_choice", is_free, "tokens are drawn from the policy alone; leave the choice to it")?;
    refuse(body, "functions", |_| false, "declare `tools`")?;
    refuse(body, "logit_bias", |bias| *bias == json!({}), "tokens are drawn from the policy alone")?;
    let messages = list(body, "messages")?.iter().enumerate();
    let messages = messages.map(|(i, message)| read_message(message, &format!("messages[{i}]"), room));
    Ok(Call {
        messages: messages.collect::<Result<_, _>>()?,
        tools: list(body, "tools")?.iter().map(tool).collect::<Result<_, _>>()?,
        kinds: BTreeMap::new(),
        limits: TurnLimits {
            max_new_tokens: max_tokens(body, &["max_completion_tokens", "max_tokens"])?,
            stop: stop(body, "stop")?,
        },
        choices: choices(body)?,
        stream: flag(body, "stream")?,
        stream_usage: body["stream_options"]["include_usage"] == true,
    })
}

/// Answers that are asked for.
fn choices(body: &Value) -> Result<u32, Refusal> {
    match &body["n"] {
        Value::Null => Ok(1),
        n => match n.as_u64().map(u32::try_from) {
            Some(Ok(n @ 1..=MAX_CHOICES)) => Ok(n),
            _ => Err(Refusal::bad(format!("n={n} must be a whole number from 1 to {MAX_CHOICES}"))),
        },
    }
}

fn read_message(message: &Value, at: &str, room: &mut Room) -> Result<Value, Refusal> {
    let content = text(&message["content"], at)?;
    match message["role"].as_str().unwrap_or("") {
        "system" | "developer" => Ok(json!({ "role": "system", "content": content })),
        "user" => Ok(json!({ "role": "user", "content": content })),
        "assistant" => {
            let calls = list(message, "tool_calls")?.iter().map(|call| {
                let function = &call["function"];
                let call = ToolCall {
                    id: call["id"].as_str().unwrap_or_default().to_owned(),
                    name: function["name"].as_str().unwrap_or_default().to_owned(),
                    arguments: arguments(&function["arguments"], room)?,
                };
                Ok(call.object())
            });
            Ok(assistant(&content, calls.collect::<Result<_, _>>()?))
        }
        "tool" => {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            Ok(json!({ "role": "tool", "content": content, "tool_call_id": id }))
        }
        role => Err(Refusal::bad(format!(
            "{at}.role={role:?} is none of system, developer, user, assistant, tool"
        ))),
    }
}

fn tool(tool: &Value) -> Result<Value, Refusal> {
    if tool["type"] == "function" && tool["function"]["name"].is_string() {
        return Ok(json!({ "type": "function", "function": tool["function"] }));
    }
    Err(Refusal::bad(format!("tools has {tool}: only functions with a name are supported")))
}

const fn finish(reply: &Reply) -> &'static str {
    match reply.finish {
        Finish::Stop | Finish::StopText => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
    }
}

fn calls(reply: &Reply, with_index: bool) -> Vec<Value> {
    let call = |(index, call): (usize, &ToolCall)| {
        let mut object = call.object();
        object["function"]["arguments"] = Value::String(call.arguments.to_string());
        if with_index {
            object["index"] = json!(index);
        }
        object
    };
    reply.tool_calls.iter().enumerate().map(call).collect()
}

/// The context counts once, as all answers share it.
fn usage(replies: &[Reply]) -> Value {
    let prompt = replies.first().map_or(0, |reply| reply.prompt_tokens);
    let completion: usize = replies.iter().map(|reply| reply.completion_tokens).sum();
    json!({ "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion })
}

/// The content: none where there are only calls of tools.
fn content(reply: &Reply) -> Value {
    if reply.text.is_empty() && !reply.tool_calls.is_empty() { Value::Null } else { json!(reply.text) }
}

/// The answer's id: its first turn.
fn id(replies: &[Reply]) -> String {
    format!("chatcmpl-{}", replies.first().map_or(0, |reply| reply.turn))
}

pub(super) fn write(model: &str, replies: &[Reply]) -> Value {
    let choice = |(index, reply): (usize, &Reply)| {
        let mut message = json!({ "role": "assistant", "content": content(reply), "refusal": null });
        if !reply.tool_calls.is_empty() {
            message["tool_calls"] = Value::Array(calls(reply, false));
        }
        json!({ "index": index, "message": message, "logprobs": null, "finish_reason": finish(reply) })
    };
    let choices: Vec<Value> = replies.iter().enumerate().map(choice).collect();
    json!({
        "id": id(replies), "object": "chat.completion", "created": 0, "model": model, "choices": choices,
        "usage": usage(replies),
    })
}

pub(super) fn events(model: &str, call: &Call, replies: &[Reply]) -> String {
    let chunk = |choices: Value, usage: Value| {
        json!({
            "id": id(replies), "object": "chat.completion.chunk", "created": 0, "model": model,
            "choices": choices, "usage": usage,
        })
    };
    let mut events = String::new();
    for (index, reply) in replies.iter().enumerate() {
        let choice = |delta: Value, finish: Value| json!([{ "index": index, "delta": delta, "finish_reason": finish }]);
        let mut delta = json!({ "role": "assistant", "content": content(reply) });
        if !reply.tool_calls.is_empty() {
            delta["tool_calls"] = Value::Array(calls(reply, true));
        }
        events += &event(None, &chunk(choice(delta, Value::Null), Value::Null));
        events += &event(None, &chunk(choice(json!({}), json!(finish(reply))), Value::Null));
    }
    if call.stream_usage {
        events += &event(None, &chunk(json!([]), usage(replies)));
    }
    events + "data: [DONE]\n\n"
}
