use serde_json::json;

use super::*;

fn call<'a>(name: &str, arguments: Value) -> TurnPart<'a> {
    TurnPart::Call { name: name.to_owned(), arguments }
}

/// Tools whose arguments have types.
fn tools() -> Vec<Value> {
    let typed = json!({
        "line": { "type": "integer" }, "share": { "type": ["number", "null"] }, "all": { "type": "boolean" },
        "names": { "type": "array" }, "text": { "type": "string" },
        "either": { "anyOf": [{ "type": "integer" }, { "type": "string" }] },
        "maybe": { "anyOf": [{ "type": "integer" }, { "type": "null" }] },
        "level": { "enum": [1, 2] },
    });
    vec![json!({ "type": "function", "function": { "name": "edit", "parameters": { "properties": typed } } })]
}

#[test]
fn calls_are_taken_out_of_the_text() {
    let text = "I look.\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\": \".\"}}\n</tool_call>\n\
                <tool_call>{\"name\": \"pwd\"}</tool_call><tool_call>{\"name\":\"../a\",\"parameters\":[1]}";
    let expected = [
        TurnPart::Text("I look.\n"),
        call("ls", json!({ "path": "." })),
        TurnPart::Text("\n"),
        call("pwd", json!({})),
        call("../a", json!([1])),
    ];
    assert_eq!(CallForm::Json.parts(text, &[]), expected);
}

#[test]
fn values_without_types_are_those_of_the_schema() {
    let function = "So.\n<tool_call>\n<function=edit>\n<parameter=line>\n3\n</parameter>\n<parameter=text>\n4\n\n\
                    </parameter>\n<parameter=all>True</parameter><parameter=share>None</parameter>\
                    <parameter=names>[\"a\"]</parameter><parameter=either>5</parameter><parameter=maybe>6</parameter>\
                    <parameter=level>2</parameter><parameter=other>7</parameter></function>\n</tool_call>";
    let arguments = json!({
        "line": 3, "text": "4\n", "all": true, "share": null, "names": ["a"], "either": "5", "maybe": 6, "level": 2,
        "other": "7",
    });
    let expected = [TurnPart::Text("So.\n"), call("edit", arguments)];
    assert_eq!(CallForm::Function.parts(function, &tools()), expected);
    let keys = "<tool_call>edit\n<arg_key>line</arg_key>\n<arg_value>3</arg_value>\n<arg_key>text</arg_key>\
                <arg_value>\n4 </arg_value></tool_call><tool_call>pwd</tool_call>";
    let expected = [call("edit", json!({ "line": 3, "text": "\n4 " })), call("pwd", json!({}))];
    assert_eq!(CallForm::ArgKeys.parts(keys, &tools()), expected);
    // What is not of its type, and what belongs to an unknown tool, stays text.
    let wrong = "<tool_call><function=edit><parameter=line>three</parameter></function></tool_call>\
                 <tool_call><function=cut><parameter=line>3</parameter></function></tool_call>";
    let expected = [call("edit", json!({ "line": "three" })), call("cut", json!({ "line": "3" }))];
    assert_eq!(CallForm::Function.parts(wrong, &tools()), expected);
}

#[test]
fn mistral_writes_a_list_or_a_name_and_arguments() {
    let (ls, pwd) = (call("ls", json!({ "path": "[TOOL" })), call("pwd", json!({})));
    let read = |text| CallForm::Mistral.parts(text, &[]);
    let list = "[TOOL_CALLS] [{\"name\": \"ls\", \"arguments\": {\"path\": \"[TOOL\"}, \"id\": \"abcdefghi\"}, {\"name\": \"pwd\"}]";
    assert_eq!(read(list), [ls.clone(), pwd.clone()]);
    let named = "I look.[TOOL_CALLS]ls[CALL_ID]abcdefghi[ARGS]{\"path\": \"[TOOL\"}[TOOL_CALLS]pwd{} so";
    assert_eq!(read(named), [TurnPart::Text("I look."), ls, pwd, TurnPart::Text(" so")]);
    assert_eq!(read("[1, 2]"), [TurnPart::Text("[1, 2]")]);
}

#[test]
fn several_calls_may_stand_between_two_marks() {
    let both = |more: Value| {
        [TurnPart::Text("So."), call("edit", more), call("pwd", json!({})), TurnPart::Text("\n")]
    };
    let list = "So.<TOOLCALL>[{\"name\": \"edit\", \"arguments\": {\"line\": 3, \"text\": \"</x>\"}}, {\"name\": \"pwd\"}]</TOOLCALL>\n";
    assert_eq!(CallForm::List.parts(list, &tools()), both(json!({ "line": 3, "text": "</x>" })));
    let minimax = "So.<minimax:tool_call>\n<invoke name=\"edit\">\n<parameter name=\"line\">3</parameter>\n\
                   <parameter name=\"text\">\na\n\n</parameter>\n</invoke>\n<invoke name=\"pwd\">\n</invoke>\n</minimax:tool_call>\n";
    assert_eq!(CallForm::MiniMax.parts(minimax, &tools()), both(json!({ "line": 3, "text": "a\n" })));
    let seed = "So.<seed:tool_call>\n<function=edit>\n<parameter=line>3</parameter>\n</function>\n<function=pwd>\n\
                </function></seed:tool_call>\n";
    assert_eq!(CallForm::Seed.parts(seed, &tools()), both(json!({ "line": 3 })));
    // One that cannot be read makes all of its section unread: the policy would not know which was made.
    let half = "<TOOLCALL>[{\"name\": \"pwd\"}, {\"name\": 3}]</TOOLCALL>";
    assert!(matches!(CallForm::List.parts(half, &[])[..], [TurnPart::Malformed { .. }]));
}

#[test]
fn a_turn_of_llama_is_a_call_or_none() {
    let read = |text| CallForm::Llama.parts(text, &[]);
    let ls = || call("ls", json!({ "path": "." }));
    assert_eq!(read("\n{\"name\": \"ls\", \"parameters\": {\"path\": \".\"}}"), [ls()]);
    let two = "<|python_tag|>{\"name\": \"ls\", \"parameters\": {\"path\": \".\"}}; {\"name\": \"pwd\", \"arguments\": {}} so";
    assert_eq!(read(two), [ls(), call("pwd", json!({})), TurnPart::Text(" so")]);
    // Other JSON is an answer.
    for text in [
        "{\"name\": \"Ada\"}",
        "{\"name\": \"Ada\", \"parameters\": 3}",
        "{\"a\": 1}",
        "{",
        "I call {\"name\"",
        "4",
    ] {
        assert_eq!(read(text), [TurnPart::Text(text)]);
    }
    assert!(matches!(read("<|python_tag|>print(1)")[..], [TurnPart::Malformed { .. }]));
}

#[test]
fn deepseek_marks_each_call_and_all_of_them() {
    let read = |text| CallForm::DeepSeek.parts(text, &[]);
    let (cat, pwd) = (call("cat", json!({ "path": "```json" })), call("pwd", json!({})));
    let third = "So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>cat\n```json\n{\"path\": \"```json\"}\n```\
                 <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>pwd\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    assert_eq!(read(third), [TurnPart::Text("So."), cat.clone(), TurnPart::Text("\n"), pwd]);
    let later = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>cat<｜tool▁sep｜>{\"path\": \"```json\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    assert_eq!(read(later), [cat]);
}

#[test]
fn what_cannot_be_read_is_malformed_with_its_text_and_the_reason() {
    let json = [
        "<tool_call>not json</tool_call>",
        "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"a\"} {}</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>",
    ];
    let function = [
        "<tool_call>edit</tool_call>",
        "<tool_call><function=edit</tool_call>",
        "<tool_call><function=edit>line</function></tool_call>",
        "<tool_call><function=edit><parameter=line>3</function></tool_call>",
        "<tool_call>",
    ];
    let keys = [
        "<tool_call></tool_call>",
        "<tool_call>edit<arg_key>line",
        "<tool_call>edit<arg_key>line</arg_key>3</tool_call>",
        "<tool_call>edit<arg_key>line</arg_key><arg_value>3</tool_call>",
        "<tool_call>edit<arg_key>line</arg_key><arg_value>3</arg_value>so</tool_call>",
    ];
    let mistral = [
        "[TOOL_CALLS]",
        "[TOOL_CALLS]ls",
        "[TOOL_CALLS][{\"name\": 3}]",
        "[TOOL_CALLS][ARGS]{}",
        "[TOOL_CALLS]ls[ARGS]{",
    ];
    let list = [
        "<TOOLCALL>[]</TOOLCALL>",
        "<TOOLCALL>{\"name\": \"a\"}</TOOLCALL>",
        "<TOOLCALL>[{\"name\": 3}]</TOOLCALL>",
        "<TOOLCALL>",
    ];
    let minimax = [
        "<minimax:tool_call></minimax:tool_call>",
        "<minimax:tool_call>edit</minimax:tool_call>",
        "<minimax:tool_call><invoke name=\"edit\"><parameter name=\"line\">3</invoke></minimax:tool_call>",
        "<minimax:tool_call><invoke name=\"edit\">3</invoke></minimax:tool_call>",
        "<minimax:tool_call><invoke name=\"edit\"></invoke>so</minimax:tool_call>",
    ];
    let deepseek = [
        "<｜tool▁call▁begin｜>ls<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>ls",
        "<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>",
    ];
    let forms = [
        (CallForm::Json, &json[..]),
        (CallForm::Function, &function),
        (CallForm::ArgKeys, &keys),
        (CallForm::Mistral, &mistral),
        (CallForm::List, &list),
        (CallForm::MiniMax, &minimax),
        (CallForm::DeepSeek, &deepseek),
    ];
    for (form, texts) in forms {
        for text in texts {
            match &form.parts(text, &tools())[..] {
                [TurnPart::Malformed { written, reason }] => {
                    assert!(written == text && !reason.is_empty(), "{form:?} {text}: {written}");
                }
                other => panic!("{form:?} {text}: {other:?}"),
            }
        }
    }
}

/// No text of a policy is more than its parts, nor does any take long or much memory.
#[test]
fn nothing_that_a_policy_writes_is_lost_or_costs_more_than_its_length() {
    let marks = [
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "<TOOLCALL>",
        "<minimax:tool_call>",
        "<invoke name=\"",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<｜tool▁call▁begin｜>",
        "{",
        "[",
        "```",
        ";",
    ];
    let texts = marks.iter().map(|mark| mark.repeat(50_000)).chain([
        String::new(),
        "</tool_call>".to_owned(),
        format!("<tool_call>{}</tool_call>", "[".repeat(100_000)),
        format!("{{\"name\": \"a\", \"parameters\": {{\"a\": {}", "[".repeat(100_000)),
        format!("[TOOL_CALLS]{}", "[".repeat(100_000)),
        format!("<minimax:tool_call>{}", "<invoke name=\"a\"></invoke>".repeat(20_000)),
        format!("<seed:tool_call><function=a>{}", "<parameter=b>".repeat(20_000)),
    ]);
    for text in texts {
        for form in CallForm::ALL {
            let parts = form.parts(&text, &tools());
            let is_shown = |part: &TurnPart| match part {
                TurnPart::Text(text) | TurnPart::Malformed { written: text, .. } => !text.is_empty(),
                TurnPart::Call { .. } => true,
            };
            assert!(
                parts.iter().all(is_shown) && (text.is_empty() || !parts.is_empty()),
                "{form:?} {text:.40}"
            );
        }
    }
}

#[test]
fn an_example_is_a_call_in_its_form() {
    for form in CallForm::ALL {
        let call = form.example().replace("\"name\": …", "\"name\": \"NAME\"").replace("{…}", "{}");
        let call = call.replace("NAME, ```json, {}, ```, ", "NAME\n```json\n{}\n```");
        let parts = form.parts(&call, &[]);
        assert!(matches!(&parts[..], [TurnPart::Call { name, .. }] if name == "NAME"), "{call}: {parts:?}");
    }
}
