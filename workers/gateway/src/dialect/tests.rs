use super::*;
use crate::call::{Finish, ToolCall};
use crate::refusal::Refusal;

const ALL: [Dialect; 3] = [Dialect::Chat, Dialect::Messages, Dialect::Responses];

fn reply() -> Reply {
    Reply {
        turn: 3,
        text: "I look.".into(),
        tool_calls: vec![ToolCall {
            id: "call_3_0".into(),
            name: "ls".into(),
            arguments: json!({ "path": "." }),
        }],
        finish: Finish::ToolCalls,
        stop: None,
        prompt_tokens: 10,
        completion_tokens: 4,
    }
}

fn read(dialect: Dialect, body: &Value) -> Result<Call, Refusal> {
    dialect.read(body.to_string().as_bytes())
}

/// A call without tools.
fn plain() -> Call {
    read(Dialect::Chat, &json!({ "messages": [{ "role": "user", "content": "go" }] })).unwrap()
}

/// An answer as the agent sends it back, with the tool's result, in the dialect.
fn sent_back(dialect: Dialect, reply: &Reply) -> Value {
    let written = dialect.write("m", &plain(), std::slice::from_ref(reply));
    match dialect {
        Dialect::Chat => json!({ "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "go" }] },
            written["choices"][0]["message"],
            { "role": "tool", "tool_call_id": "call_3_0", "content": "x.py" },
        ]}),
        Dialect::Messages => json!({ "max_tokens": 9, "messages": [
            { "role": "user", "content": "go" },
            { "role": "assistant", "content": written["content"] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "call_3_0", "content": "x.py" }] },
        ]}),
        Dialect::Responses => {
            let mut input = vec![json!({ "role": "user", "content": "go" })];
            input.extend(written["output"].as_array().unwrap().iter().cloned());
            input.push(json!({ "type": "function_call_output", "call_id": "call_3_0", "output": "x.py" }));
            json!({ "input": input })
        }
    }
}

#[test]
fn an_answer_that_comes_back_is_the_message_that_was_given() {
    for dialect in ALL {
        for tool_calls in [reply().tool_calls, vec![]] {
            let reply = Reply { tool_calls, ..reply() };
            let call = read(dialect, &sent_back(dialect, &reply)).unwrap();
            assert_eq!(call.messages[0], json!({ "role": "user", "content": "go" }), "{dialect:?}");
            assert_eq!(call.messages[1], reply.message(), "{dialect:?}");
            let result = json!({ "role": "tool", "content": "x.py", "tool_call_id": "call_3_0" });
            assert_eq!(call.messages[2], result, "{dialect:?}");
        }
    }
}

#[test]
fn tools_and_limits_are_read_alike() {
    let function = json!({ "name": "ls", "description": "Lists.", "parameters": { "type": "object" } });
    let bodies = [
        json!({ "messages": [{ "role": "user", "content": "go" }], "max_tokens": 7, "stop": "END", "stream": true,
                "temperature": 0.3, "tools": [{ "type": "function", "function": function }] }),
        json!({ "messages": [{ "role": "user", "content": "go" }], "max_tokens": 7, "stop_sequences": ["END"],
                "stream": true, "tools": [{ "name": "ls", "description": "Lists.", "input_schema": { "type": "object" } }] }),
        json!({ "input": "go", "max_output_tokens": 7, "stream": true,
                "tools": [{ "type": "function", "name": "ls", "description": "Lists.", "parameters": { "type": "object" } }] }),
    ];
    for (dialect, body) in ALL.into_iter().zip(bodies) {
        let call = read(dialect, &body).unwrap();
        assert_eq!(call.tools, [json!({ "type": "function", "function": function })], "{dialect:?}");
        assert_eq!((call.limits.max_new_tokens, call.stream), (Some(7), true), "{dialect:?}");
        assert!(dialect == Dialect::Responses || call.limits.stop == ["END"], "{dialect:?}");
    }
}

#[test]
fn what_is_not_done_is_refused_by_field() {
    let with = |base: Value, (field, value): (&str, Value)| {
        let mut body = base;
        body[field] = value;
        body
    };
    let chat = || json!({ "messages": [{ "role": "user", "content": "go" }] });
    let image = json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]);
    let refused = [
        (Dialect::Chat, chat(), ("n", json!(0))),
        (Dialect::Chat, chat(), ("n", json!(17))),
        (Dialect::Chat, chat(), ("n", json!("2"))),
        (Dialect::Chat, chat(), ("logprobs", json!(true))),
        (Dialect::Chat, chat(), ("response_format", json!({ "type": "json_object" }))),
        (Dialect::Chat, chat(), ("tool_choice", json!("required"))),
        (Dialect::Chat, chat(), ("max_tokens", json!(0))),
        (Dialect::Chat, chat(), ("max_tokens", json!("7"))),
        (Dialect::Chat, chat(), ("stop", json!([7]))),
        (Dialect::Chat, chat(), ("stop", json!(vec!["x"; 17]))),
        (Dialect::Chat, chat(), ("stream", json!("yes"))),
        (Dialect::Chat, chat(), ("messages", json!([]))),
        (Dialect::Chat, chat(), ("messages", json!("go"))),
        (Dialect::Chat, chat(), ("messages", image)),
        (Dialect::Chat, chat(), ("messages", json!([{ "role": "robot", "content": "go" }]))),
        (Dialect::Chat, chat(), ("tools", json!([{ "type": "web_search" }]))),
        (Dialect::Chat, chat(), ("pad", json!(vec![json!({}); 50_001]))),
        (Dialect::Messages, chat(), ("output_config", json!({ "format": { "type": "json_schema" } }))),
        (Dialect::Messages, chat(), ("tools", json!([{ "type": "bash_20250124", "name": "bash" }]))),
        (Dialect::Messages, chat(), ("tool_choice", json!({ "type": "any" }))),
        (Dialect::Responses, json!({ "input": "go" }), ("previous_response_id", json!("resp_1"))),
        (Dialect::Responses, json!({ "input": "go" }), ("input", json!([{ "type": "reasoning" }]))),
        (Dialect::Responses, json!({ "input": "go" }), ("tools", json!([{ "type": "local_shell" }]))),
        (Dialect::Responses, json!({ "input": "go" }), ("tools", json!([custom("a"), custom("a")]))),
    ];
    for (dialect, base, (field, value)) in refused {
        let refusal = read(dialect, &with(base.clone(), (field, value.clone()))).unwrap_err();
        assert_eq!(refusal.status.as_u16(), 400, "{dialect:?} {field}={value}");
        assert!(
            refusal.message.contains(field) || ["messages", "pad"].contains(&field),
            "{field}: {refusal}"
        );
        assert!(
            read(dialect, &with(base, (field, Value::Null))).is_ok()
                || field == "messages"
                || field == "input"
        );
    }
}

fn custom(name: &str) -> Value {
    json!({ "type": "custom", "name": name, "format": { "type": "grammar", "syntax": "lark", "definition": "start: /x/" } })
}

/// Codex, Claude Code and others declare more than functions.
#[test]
fn tools_of_agents_from_npm_are_read_and_called_in_their_own_form() {
    let inner = json!({ "type": "function", "name": "spawn", "parameters": { "type": "object" } });
    let tools = json!([
        custom("patch"), { "type": "namespace", "name": "agents", "tools": [inner] }, { "type": "web_search" },
    ]);
    let call = read(Dialect::Responses, &json!({ "input": "go", "tools": tools })).unwrap();
    let names: Vec<&Value> = call.tools.iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names, ["patch", "spawn"]);
    assert!(call.tools[0]["function"]["parameters"].to_string().contains("lark grammar"), "{:?}", call.tools);

    let called = |name: &str, arguments: Value| ToolCall { id: name.into(), name: name.into(), arguments };
    let calls = vec![
        called("patch", json!({ "input": "x" })),
        called("spawn", json!({})),
        // What is no text for a custom tool is told as the model wrote it.
        called("patch", json!({ "input": "x", "more": 1 })),
        called("patch", json!(["x"])),
    ];
    let reply = Reply { tool_calls: calls, ..reply() };
    let written = Dialect::Responses.write("m", &call, std::slice::from_ref(&reply));
    let output = written["output"].as_array().unwrap().clone();
    let kinds: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["message", "custom_tool_call", "function_call", "function_call", "function_call"]);
    assert_eq!((&output[1]["input"], &output[2]["namespace"]), (&json!("x"), &json!("agents")));
    let events = data(&Dialect::Responses.events("m", &call, std::slice::from_ref(&reply)));
    let delta = events.iter().find(|event| event["type"] == "response.custom_tool_call_input.delta").unwrap();
    assert_eq!(delta["delta"], "x");

    let result = json!({ "type": "custom_tool_call_output", "call_id": "patch", "output": "done" });
    let input: Vec<Value> = output.into_iter().chain([result]).collect();
    let back = read(Dialect::Responses, &json!({ "input": input })).unwrap();
    assert_eq!(back.messages[0], reply.message());
    assert_eq!(back.messages[1], json!({ "role": "tool", "content": "done", "tool_call_id": "patch" }));

    let hosted = json!([{ "type": "web_search_20250305", "name": "web_search" }, { "name": "ls" }]);
    let messages = json!([{ "role": "user", "content": "go" }, { "role": "system", "content": [{ "type": "text", "text": "now" }] }]);
    let body = json!({ "messages": messages, "tools": hosted, "thinking": { "type": "adaptive" } });
    let call = read(Dialect::Messages, &body).unwrap();
    assert_eq!((call.tools.len(), &call.messages[1]["role"]), (1, &json!("system")));
}

#[test]
fn values_within_arguments_count_too() {
    let arguments = format!("[{}]", vec!["{}"; 30_000].join(","));
    let called =
        json!({ "id": "a", "type": "function", "function": { "name": "ls", "arguments": arguments } });
    let body = |calls: usize| json!({ "messages": [{ "role": "assistant", "tool_calls": vec![&called; calls] }, { "role": "user", "content": "go" }] });
    assert!(read(Dialect::Chat, &body(1)).is_ok());
    assert!(read(Dialect::Chat, &body(2)).unwrap_err().message.contains("more than 100000 values"));
    // Brackets within a text are none.
    let long = json!({ "messages": [{ "role": "user", "content": "[\\\"{,".repeat(100_000) }] });
    assert!(read(Dialect::Chat, &long).is_ok());
}

/// The data of events.
fn data(events: &str) -> Vec<Value> {
    let lines = events.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.filter(|line| *line != "[DONE]").map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn events_add_up_to_the_answer() {
    let body = json!({ "messages": [{ "role": "user", "content": "go" }], "stream_options": { "include_usage": true } });
    let call = read(Dialect::Chat, &body).unwrap();
    let events = Dialect::Chat.events("m", &call, &[reply()]);
    assert!(events.ends_with("data: [DONE]\n\n"));
    let chunks = data(&events);
    assert_eq!(chunks[0]["choices"][0]["delta"]["content"], "I look.");
    assert_eq!(chunks[0]["choices"][0]["delta"]["tool_calls"][0]["index"], 0);
    assert_eq!(chunks[1]["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(chunks[2]["usage"]["total_tokens"], 14);
    let named: Vec<String> = data(&Dialect::Messages.events("m", &call, &[reply()]))
        .iter()
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .collect();
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    assert_eq!(named, [&["message_start"][..], &block, &block, &["message_delta", "message_stop"]].concat());
    let last = data(&Dialect::Responses.events("m", &call, &[reply()])).pop().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["output"], Dialect::Responses.write("m", &call, &[reply()])["output"]);
}

#[test]
fn several_answers_are_choices_of_one() {
    let call =
        read(Dialect::Chat, &json!({ "messages": [{ "role": "user", "content": "go" }], "n": 2 })).unwrap();
    assert_eq!(call.choices, 2);
    let other = Reply { tool_calls: vec![], finish: Finish::Stop, text: "No.".into(), turn: 4, ..reply() };
    let replies = [reply(), other];
    let written = Dialect::Chat.write("m", &call, &replies);
    let choices = written["choices"].as_array().unwrap();
    let seen: Vec<_> =
        choices.iter().map(|c| (&c["index"], &c["message"]["content"], &c["finish_reason"])).collect();
    assert_eq!(
        seen,
        [(&json!(0), &json!("I look."), &json!("tool_calls")), (&json!(1), &json!("No."), &json!("stop"))]
    );
    // What both share counts once.
    let (prompt, completion) = (reply().prompt_tokens, 2 * reply().completion_tokens);
    assert_eq!(written["usage"]["total_tokens"], json!(prompt + completion));
    let chunks = data(&Dialect::Chat.events("m", &call, &replies));
    let indices: Vec<_> = chunks.iter().map(|chunk| chunk["choices"][0]["index"].clone()).collect();
    assert_eq!(indices, [0, 0, 1, 1].map(|index| json!(index)));
}
