//! OpenAI's responses. Nothing is stored for a later call: each brings the whole conversation.

use millrace_schemas::env_step::TurnLimits;
use serde_json::{Value, json};

use super::fields::{arguments, event, flag, list, max_tokens, refuse, text};
use crate::call::{Call, Finish, Reply, ToolCall, assistant};
use crate::refusal::Refusal;

pub(super) fn read(body: &Value) -> Result<Call, Refusal> {
    refuse(
        body,
        "previous_response_id",
        |_| false,
        "nothing is stored; send the whole conversation as input",
    )?;
    refuse(body, "background", |value| *value == false, "ask and wait")?;
    refuse(body, "conversation", |_| false, "nothing is stored; send the whole conversation as input")?;
    refuse(body, "tool_choice", |choice| choice == "auto", "tokens are drawn from the policy alone")?;
    let is_text = |value: &Value| value["format"].is_null() || value["format"]["type"] == "text";
    refuse(body, "text", is_text, "tokens are drawn from the policy alone; ask for text")?;
    let mut all = Vec::new();
    if let Some(instructions) = body["instructions"].as_str().filter(|text| !text.is_empty()) {
        all.push(json!({ "role": "system", "content": instructions }));
    }
    match &body["input"] {
        Value::String(text) => all.push(json!({ "role": "user", "content": text })),
        _ => {
            for (i, item) in list(body, "input")?.iter().enumerate() {
                read_item(item, &format!("input[{i}]"), &mut all)?;
            }
        }
    }
    Ok(Call {
        messages: all,
        tools: list(body, "tools")?.iter().map(tool).collect::<Result<_, _>>()?,
        limits: TurnLimits { max_new_tokens: max_tokens(body, &["max_output_tokens"])?, stop: Vec::new() },
        stream: flag(body, "stream")?,
        choices: 1,
        stream_usage: false,
    })
}

/// Items of one turn are one message: its text, then its calls of tools.
fn read_item(item: &Value, at: &str, all: &mut Vec<Value>) -> Result<(), Refusal> {
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let content = text(&item["content"], at)?;
            match item["role"].as_str().unwrap_or("") {
                "system" | "developer" => all.push(json!({ "role": "system", "content": content })),
                "user" => all.push(json!({ "role": "user", "content": content })),
                "assistant" => all.push(assistant(&content, vec![])),
                role => {
                    return Err(Refusal::bad(format!(
                        "{at}.role={role:?} is none of system, developer, user, assistant"
                    )));
                }
            }
        }
        "function_call" => {
            let call = ToolCall {
                id: item["call_id"].as_str().unwrap_or_default().to_owned(),
                name: item["name"].as_str().unwrap_or_default().to_owned(),
                arguments: arguments(&item["arguments"]),
            };
            match all.last_mut().filter(|last| last["role"] == "assistant") {
                Some(last) => match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call.object()),
                    None => last["tool_calls"] = json!([call.object()]),
                },
                None => all.push(assistant("", vec![call.object()])),
            }
        }
        "function_call_output" => {
            let (id, output) = (item["call_id"].as_str().unwrap_or_default(), text(&item["output"], at)?);
            all.push(json!({ "role": "tool", "content": output, "tool_call_id": id }));
        }
        kind => {
            return Err(Refusal::bad(format!(
                "{at}.type={kind:?} is not supported; there are message, function_call and function_call_output"
            )));
        }
    }
    Ok(())
}

fn tool(tool: &Value) -> Result<Value, Refusal> {
    if tool["type"] != "function" || !tool["name"].is_string() {
        return Err(Refusal::bad(format!("tools has {tool}: only functions with a name are supported")));
    }
    let function =
        json!({ "name": tool["name"], "description": tool["description"], "parameters": tool["parameters"] });
    Ok(json!({ "type": "function", "function": function }))
}

fn items(reply: &Reply) -> Vec<Value> {
    let words = (!reply.text.is_empty() || reply.tool_calls.is_empty()).then(|| {
        json!({
            "id": format!("msg_{}", reply.turn), "type": "message", "role": "assistant", "status": "completed",
            "content": [{ "type": "output_text", "text": reply.text, "annotations": [] }],
        })
    });
    let call = |call: &ToolCall| {
        json!({
            "id": format!("fc_{}", call.id), "type": "function_call", "status": "completed", "call_id": call.id,
            "name": call.name, "arguments": call.arguments.to_string(),
        })
    };
    words.into_iter().chain(reply.tool_calls.iter().map(call)).collect()
}

fn shell(model: &str, reply: &Reply, status: &str, output: &Value, usage: &Value) -> Value {
    let details = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
    json!({
        "id": format!("resp_{}", reply.turn), "object": "response", "created_at": 0, "status": status,
        "error": null, "incomplete_details": details, "instructions": null, "metadata": {}, "model": model,
        "output": output, "parallel_tool_calls": true, "temperature": null, "tool_choice": "auto", "tools": [],
        "top_p": null, "usage": usage,
    })
}

pub(super) fn write(model: &str, reply: &Reply) -> Value {
    let status = if reply.finish == Finish::Length { "incomplete" } else { "completed" };
    let (input, output) = (reply.prompt_tokens, reply.completion_tokens);
    let usage = json!({
        "input_tokens": input, "input_tokens_details": { "cached_tokens": 0 }, "output_tokens": output,
        "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": input + output,
    });
    shell(model, reply, status, &Value::Array(items(reply)), &usage)
}

pub(super) fn events(model: &str, reply: &Reply) -> String {
    let (mut events, mut number) = (String::new(), 0_u32);
    let mut send = |name: &str, mut data: Value| {
        data["type"] = json!(name);
        data["sequence_number"] = json!(number);
        number += 1;
        events += &event(Some(name), &data);
    };
    let begun = shell(model, reply, "in_progress", &json!([]), &Value::Null);
    send("response.created", json!({ "response": begun }));
    for (index, item) in items(reply).into_iter().enumerate() {
        let at = |field: &str, value: &Value| json!({ "item_id": item["id"], "output_index": index, "content_index": 0, field: value });
        let is_message = item["type"] == "message";
        let mut empty = item.clone();
        empty["status"] = json!("in_progress");
        empty[if is_message { "content" } else { "arguments" }] =
            if is_message { json!([]) } else { json!("") };
        send("response.output_item.added", json!({ "output_index": index, "item": empty }));
        if is_message {
            let part = &item["content"][0];
            let nothing = json!({ "type": "output_text", "text": "", "annotations": [] });
            send("response.content_part.added", at("part", &nothing));
            send("response.output_text.delta", at("delta", &part["text"]));
            send("response.output_text.done", at("text", &part["text"]));
            send("response.content_part.done", at("part", part));
        } else {
            send("response.function_call_arguments.delta", at("delta", &item["arguments"]));
            send("response.function_call_arguments.done", at("arguments", &item["arguments"]));
        }
        send("response.output_item.done", json!({ "output_index": index, "item": item }));
    }
    let whole = write(model, reply);
    let last = if whole["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
    send(last, json!({ "response": whole }));
    events
}
