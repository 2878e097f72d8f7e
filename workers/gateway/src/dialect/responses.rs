//! OpenAI's responses. Nothing is stored for a later call: each brings the whole conversation.

use std::collections::BTreeMap;

use millrace_schemas::env_step::TurnLimits;
use serde_json::{Value, json};

use super::fields::{Room, arguments, event, flag, list, max_tokens, refuse, text};
use crate::call::{Call, Finish, Reply, ToolCall, ToolKind, assistant};
use crate::refusal::Refusal;

pub(super) fn read(body: &Value, room: &mut Room) -> Result<Call, Refusal> {
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
                read_item(item, &format!("input[{i}]"), &mut all, room)?;
            }
        }
    }
    let (mut tools, mut kinds) = (Vec::new(), BTreeMap::new());
    for tool in list(body, "tools")? {
        read_tool(tool, &mut tools, &mut kinds)?;
    }
    Ok(Call {
        messages: all,
        tools,
        kinds,
        limits: TurnLimits { max_new_tokens: max_tokens(body, &["max_output_tokens"])?, stop: Vec::new() },
        stream: flag(body, "stream")?,
        choices: 1,
        stream_usage: false,
    })
}

/// Items of one turn are one message: its text, then its calls of tools.
fn read_item(item: &Value, at: &str, all: &mut Vec<Value>, room: &mut Room) -> Result<(), Refusal> {
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
        kind @ ("function_call" | "custom_tool_call") => {
            let call = ToolCall {
                id: item["call_id"].as_str().unwrap_or_default().to_owned(),
                name: item["name"].as_str().unwrap_or_default().to_owned(),
                arguments: match kind {
                    "function_call" => arguments(&item["arguments"], room)?,
                    _ => json!({ INPUT: item["input"] }),
                },
            };
            match all.last_mut().filter(|last| last["role"] == "assistant") {
                Some(last) => match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call.object()),
                    None => last["tool_calls"] = json!([call.object()]),
                },
                None => all.push(assistant("", vec![call.object()])),
            }
        }
        "function_call_output" | "custom_tool_call_output" => {
            let (id, output) = (item["call_id"].as_str().unwrap_or_default(), text(&item["output"], at)?);
            all.push(json!({ "role": "tool", "content": output, "tool_call_id": id }));
        }
        kind => {
            return Err(Refusal::bad(format!(
                "{at}.type={kind:?} is not supported; there are message, and calls of functions and custom tools with their outputs"
            )));
        }
    }
    Ok(())
}

/// Adds a declaration, or several of a namespace. A tool that OpenAI's servers would run is left out: the model is not
/// told of it.
fn read_tool(
    tool: &Value,
    tools: &mut Vec<Value>,
    kinds: &mut BTreeMap<String, ToolKind>,
) -> Result<(), Refusal> {
    let kind = tool["type"].as_str().unwrap_or_default();
    let name = tool["name"].as_str();
    let mut add = |name: &str, declared: Value, kind: Option<ToolKind>| {
        if tools.iter().any(|tool: &Value| tool["function"]["name"] == name) {
            return Err(Refusal::bad(format!("tools has {name:?} twice; a call names only one")));
        }
        tools.push(json!({ "type": "function", "function": declared }));
        kinds.extend(kind.map(|kind| (name.to_owned(), kind)));
        Ok(())
    };
    match (kind, name) {
        ("function", Some(name)) => add(name, function(tool), None),
        ("custom", Some(name)) => add(name, custom(tool), Some(ToolKind::Custom)),
        ("namespace", Some(space)) => list(tool, "tools")?.iter().try_for_each(|tool| {
            match (tool["type"].as_str(), tool["name"].as_str()) {
                (Some("function"), Some(name)) => {
                    add(name, function(tool), Some(ToolKind::Within(space.to_owned())))
                }
                _ => Err(unknown(tool)),
            }
        }),
        (hosted, None) if is_hosted(hosted) => Ok(()),
        _ => Err(unknown(tool)),
    }
}

fn is_hosted(kind: &str) -> bool {
    kind.starts_with("web_search") || matches!(kind, "file_search" | "code_interpreter" | "image_generation")
}

fn unknown(tool: &Value) -> Refusal {
    Refusal::bad(format!("tools has {tool}: only functions and custom tools with a name are supported"))
}

fn function(tool: &Value) -> Value {
    json!({ "name": tool["name"], "description": tool["description"], "parameters": tool["parameters"] })
}

/// The argument that has the text which a custom tool takes.
const INPUT: &str = "input";

/// A custom tool takes a text, perhaps of a grammar. The model calls it like a function of one argument.
fn custom(tool: &Value) -> Value {
    let grammar = &tool["format"]["definition"];
    let input = match (grammar.as_str(), tool["format"]["syntax"].as_str()) {
        (Some(grammar), syntax) => {
            format!("A text of this {} grammar:\n{grammar}", syntax.unwrap_or_default())
        }
        (None, _) => "Any text.".to_owned(),
    };
    json!({
        "name": tool["name"], "description": tool["description"],
        "parameters": {
            "type": "object", "properties": { INPUT: { "type": "string", "description": input } }, "required": [INPUT],
        },
    })
}

fn items(call: &Call, reply: &Reply) -> Vec<Value> {
    let words = (!reply.text.is_empty() || reply.tool_calls.is_empty()).then(|| {
        json!({
            "id": format!("msg_{}", reply.turn), "type": "message", "role": "assistant", "status": "completed",
            "content": [{ "type": "output_text", "text": reply.text, "annotations": [] }],
        })
    });
    words.into_iter().chain(reply.tool_calls.iter().map(|called| called_item(call, called))).collect()
}

/// A call as an item: of a custom tool where the model wrote a text for it, else of a function.
fn called_item(call: &Call, called: &ToolCall) -> Value {
    let kind = call.kinds.get(&called.name);
    // Only such a call is the same when it comes back.
    let is_text = called.arguments.as_object().is_some_and(|arguments| arguments.len() == 1);
    if let (Some(ToolKind::Custom), true, Some(input)) = (kind, is_text, called.arguments[INPUT].as_str()) {
        return json!({
            "id": format!("ctc_{}", called.id), "type": "custom_tool_call", "status": "completed",
            "call_id": called.id, "name": called.name, "input": input,
        });
    }
    let mut item = json!({
        "id": format!("fc_{}", called.id), "type": "function_call", "status": "completed", "call_id": called.id,
        "name": called.name, "arguments": called.arguments.to_string(),
    });
    if let Some(ToolKind::Within(space)) = kind {
        item["namespace"] = json!(space);
    }
    item
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

pub(super) fn write(model: &str, call: &Call, reply: &Reply) -> Value {
    let status = if reply.finish == Finish::Length { "incomplete" } else { "completed" };
    let (input, output) = (reply.prompt_tokens, reply.completion_tokens);
    let usage = json!({
        "input_tokens": input, "input_tokens_details": { "cached_tokens": 0 }, "output_tokens": output,
        "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": input + output,
    });
    shell(model, reply, status, &Value::Array(items(call, reply)), &usage)
}

pub(super) fn events(model: &str, call: &Call, reply: &Reply) -> String {
    let (mut events, mut number) = (String::new(), 0_u32);
    let mut send = |name: &str, mut data: Value| {
        data["type"] = json!(name);
        data["sequence_number"] = json!(number);
        number += 1;
        events += &event(Some(name), &data);
    };
    let begun = shell(model, reply, "in_progress", &json!([]), &Value::Null);
    send("response.created", json!({ "response": begun }));
    for (index, item) in items(call, reply).into_iter().enumerate() {
        let at = |field: &str, value: &Value| json!({ "item_id": item["id"], "output_index": index, field: value });
        let within = |field: &str, value: &Value| {
            let mut at = at(field, value);
            at["content_index"] = json!(0);
            at
        };
        let (filled, nothing, events) = match item["type"].as_str() {
            Some("message") => ("content", json!([]), "output_text"),
            Some("custom_tool_call") => ("input", json!(""), "custom_tool_call_input"),
            _ => ("arguments", json!(""), "function_call_arguments"),
        };
        let mut empty = item.clone();
        empty["status"] = json!("in_progress");
        empty[filled] = nothing;
        send("response.output_item.added", json!({ "output_index": index, "item": empty }));
        if filled == "content" {
            let part = &item["content"][0];
            let nothing = json!({ "type": "output_text", "text": "", "annotations": [] });
            send("response.content_part.added", within("part", &nothing));
            send("response.output_text.delta", within("delta", &part["text"]));
            send("response.output_text.done", within("text", &part["text"]));
            send("response.content_part.done", within("part", part));
        } else {
            send(&format!("response.{events}.delta"), at("delta", &item[filled]));
            send(&format!("response.{events}.done"), at(filled, &item[filled]));
        }
        send("response.output_item.done", json!({ "output_index": index, "item": item }));
    }
    let whole = write(model, call, reply);
    let last = if whole["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
    send(last, json!({ "response": whole }));
    events
}
