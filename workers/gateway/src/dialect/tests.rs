use super::*;
use crate::call::{Finish, ToolCall};

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

/// An answer as the agent sends it back, with the tool's result, in the dialect.
fn sent_back(dialect: Dialect, reply: &Reply) -> Value {
    let written = dialect.write("m", std::slice::from_ref(reply));
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
            let call = dialect.read(&sent_back(dialect, &reply)).unwrap();
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
        let call = dialect.read(&body).unwrap();
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
        (Dialect::Messages, chat(), ("thinking", json!({ "type": "enabled" }))),
        (Dialect::Messages, chat(), ("tool_choice", json!({ "type": "any" }))),
        (Dialect::Messages, chat(), ("messages", json!([{ "role": "system", "content": "go" }]))),
        (Dialect::Responses, json!({ "input": "go" }), ("previous_response_id", json!("resp_1"))),
        (Dialect::Responses, json!({ "input": "go" }), ("input", json!([{ "type": "reasoning" }]))),
    ];
    for (dialect, base, (field, value)) in refused {
        let refusal = dialect.read(&with(base.clone(), (field, value.clone()))).unwrap_err();
        assert_eq!(refusal.status.as_u16(), 400, "{dialect:?} {field}={value}");
        assert!(refusal.message.contains(field) || field == "messages", "{field}: {refusal}");
        assert!(
            dialect.read(&with(base, (field, Value::Null))).is_ok()
                || field == "messages"
                || field == "input"
        );
    }
}

/// The data of events.
fn data(events: &str) -> Vec<Value> {
    let lines = events.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.filter(|line| *line != "[DONE]").map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn events_add_up_to_the_answer() {
    let body = json!({ "messages": [{ "role": "user", "content": "go" }], "stream_options": { "include_usage": true } });
    let call = Dialect::Chat.read(&body).unwrap();
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
    assert_eq!(last["response"]["output"], Dialect::Responses.write("m", &[reply()])["output"]);
}

#[test]
fn several_answers_are_choices_of_one() {
    let call =
        Dialect::Chat.read(&json!({ "messages": [{ "role": "user", "content": "go" }], "n": 2 })).unwrap();
    assert_eq!(call.choices, 2);
    let other = Reply { tool_calls: vec![], finish: Finish::Stop, text: "No.".into(), turn: 4, ..reply() };
    let replies = [reply(), other];
    let written = Dialect::Chat.write("m", &replies);
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
