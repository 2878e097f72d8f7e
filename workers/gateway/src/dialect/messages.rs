//! Anthropic's messages.

use std::collections::BTreeMap;

use millrace_schemas::env_step::TurnLimits;
use serde_json::{Value, json};

use super::fields::{event, flag, list, max_tokens, part_text, refuse, stop, text};
use crate::call::{Call, Finish, Reply, ToolCall, assistant};
use crate::refusal::Refusal;

pub(super) fn read(body: &Value) -> Result<Call, Refusal> {
    let is_text = |config: &Value| config["format"].is_null();
    refuse(body, "output_config", is_text, "tokens are drawn from the policy alone; ask for text")?;
    let is_free = |choice: &Value| choice["type"] == "auto";
    refuse(body, "tool_choice", is_free, "tokens are drawn from the policy alone; leave the choice to it")?;
    let system = text(&body["system"], "system")?;
    let mut all = Vec::new();
    if !system.is_empty() {
        all.push(json!({ "role": "system", "content": system }));
    }
    for (i, message) in list(body, "messages")?.iter().enumerate() {
        read_message(message, &format!("messages[{i}]"), &mut all)?;
    }
    Ok(Call {
        messages: all,
        tools: list(body, "tools")?
            .iter()
            .filter_map(|declared| tool(declared).transpose())
            .collect::<Result<_, _>>()?,
        kinds: BTreeMap::new(),
        limits: TurnLimits {
            max_new_tokens: max_tokens(body, &["max_tokens"])?,
            stop: stop(body, "stop_sequences")?,
        },
        stream: flag(body, "stream")?,
        choices: 1,
        stream_usage: false,
    })
}

/// One message of Anthropic's is several of the template's where it has results of tools.
fn read_message(message: &Value, at: &str, all: &mut Vec<Value>) -> Result<(), Refusal> {
    let role = message["role"].as_str().unwrap_or("");
    if !matches!(role, "user" | "assistant" | "system") {
        return Err(Refusal::bad(format!("{at}.role={role:?} is none of user, assistant, system")));
    }
    let Value::Array(blocks) = &message["content"] else {
        let content = text(&message["content"], at)?;
        all.push(match role {
            "assistant" => assistant(&content, vec![]),
            _ => json!({ "role": role, "content": content }),
        });
        return Ok(());
    };
    let (mut words, mut calls) = (Vec::new(), Vec::new());
    for block in blocks {
        match (role, block["type"].as_str().unwrap_or("")) {
            ("user", "tool_result") => {
                let id = block["tool_use_id"].as_str().unwrap_or_default();
                let content = text(&block["content"], at)?;
                all.push(json!({ "role": "tool", "content": content, "tool_call_id": id }));
            }
            ("assistant", "tool_use") => {
                let call = ToolCall {
                    id: block["id"].as_str().unwrap_or_default().to_owned(),
                    name: block["name"].as_str().unwrap_or_default().to_owned(),
                    arguments: block["input"].clone(),
                };
                calls.push(call.object());
            }
            _ => words.push(part_text(block, at)?),
        }
    }
    match role {
        "assistant" => all.push(assistant(&words.concat(), calls)),
        _ if !words.is_empty() => all.push(json!({ "role": role, "content": words.join("\n") })),
        _ => {}
    }
    Ok(())
}

/// A declaration. None of a tool that Anthropic's servers would run: the model is not told of it.
fn tool(tool: &Value) -> Result<Option<Value>, Refusal> {
    let kind = tool["type"].as_str().unwrap_or("custom");
    if ["web_search_", "web_fetch_", "code_execution_"].iter().any(|hosted| kind.starts_with(hosted)) {
        return Ok(None);
    }
    if kind != "custom" || !tool["name"].is_string() {
        return Err(Refusal::bad(format!(
            "tools has {tool}: only tools of the agent's own with a name are supported"
        )));
    }
    let function = json!({ "name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"] });
    Ok(Some(json!({ "type": "function", "function": function })))
}

const fn finish(reply: &Reply) -> &'static str {
    match reply.finish {
        Finish::Stop => "end_turn",
        Finish::StopText => "stop_sequence",
        Finish::Length => "max_tokens",
        Finish::ToolCalls => "tool_use",
    }
}

fn blocks(reply: &Reply) -> Vec<Value> {
    let words = (!reply.text.is_empty() || reply.tool_calls.is_empty())
        .then(|| json!({ "type": "text", "text": reply.text }));
    let call = |call: &ToolCall| json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments });
    words.into_iter().chain(reply.tool_calls.iter().map(call)).collect()
}

fn shell(model: &str, reply: &Reply, content: &Value, stop: &(Value, Value), output: usize) -> Value {
    json!({
        "id": format!("msg_{}", reply.turn), "type": "message", "role": "assistant", "model": model,
        "content": content, "stop_reason": stop.0, "stop_sequence": stop.1,
        "usage": { "input_tokens": reply.prompt_tokens, "output_tokens": output },
    })
}

pub(super) fn write(model: &str, reply: &Reply) -> Value {
    let stop = (json!(finish(reply)), json!(reply.stop));
    shell(model, reply, &Value::Array(blocks(reply)), &stop, reply.completion_tokens)
}

pub(super) fn events(model: &str, reply: &Reply) -> String {
    let named = |mut data: Value, name: &str| {
        data["type"] = json!(name);
        event(Some(name), &data)
    };
    let start = shell(model, reply, &json!([]), &(Value::Null, Value::Null), 0);
    let mut events = named(json!({ "message": start }), "message_start");
    for (index, block) in blocks(reply).iter().enumerate() {
        let (empty, delta) = match block["type"].as_str() {
            Some("tool_use") => {
                let mut empty = block.clone();
                empty["input"] = json!({});
                let written = block["input"].to_string();
                (empty, json!({ "type": "input_json_delta", "partial_json": written }))
            }
            _ => (
                json!({ "type": "text", "text": "" }),
                json!({ "type": "text_delta", "text": block["text"] }),
            ),
        };
        events += &named(json!({ "index": index, "content_block": empty }), "content_block_start");
        events += &named(json!({ "index": index, "delta": delta }), "content_block_delta");
        events += &named(json!({ "index": index }), "content_block_stop");
    }
    let usage = json!({ "output_tokens": reply.completion_tokens });
    let end = json!({ "stop_reason": finish(reply), "stop_sequence": reply.stop });
    events += &named(json!({ "delta": end, "usage": usage }), "message_delta");
    events + &named(json!({}), "message_stop")
}
