use bytes::Bytes;
use serde_json::Map;

use super::*;

/// What says who speaks, around how a template writes `m.tool_calls`.
fn template(calls: &str) -> String {
    format!(
        "{{% if tools %}}<tools>{{{{ tools | tojson }}}}</tools>{{% endif %}}{{% for m in messages %}}<{{{{ m.role }}}}>\
         {{{{ m.content }}}}{calls}$\n{{% endfor %}}{{% if add_generation_prompt %}}<assistant>\n{{% endif %}}"
    )
}

const HERMES: &str =
    "{% for c in m.tool_calls %}\n<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}";
const QWEN_CODER: &str = "{% for c in m.tool_calls %}<tool_call>{{ '\n' }}<function={{ c.function.name }}>{{ '\n' }}\
    {% for k, v in c.function.arguments | items %}<parameter={{ k }}>{{ '\n' }}{{ v }}{{ '\n' }}</parameter>{% endfor %}\
    </function></tool_call>{% endfor %}";
const GLM: &str = "{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}\
    <arg_key>{{ k }}</arg_key>{{ '\n' }}<arg_value>{{ v | tojson }}</arg_value>{% endfor %}</tool_call>{% endfor %}";
const SEED: &str = "{% for c in m.tool_calls %}\n<seed:tool_call>\n<function={{ c.function.name }}>\n\
    {% for k, v in c.function.arguments | items %}<parameter={{ k }}>{{ v }}</parameter>\n{% endfor %}</function>\n\
    </seed:tool_call>{% endfor %}";
const NEMOTRON: &str = "{% if m.tool_calls %}<TOOLCALL>[{% for c in m.tool_calls %}{{ ', ' if not loop.first else '' }}\
    {\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}{% endfor %}]</TOOLCALL>{% endif %}";
const MINIMAX: &str = "{% if m.tool_calls %}\n<minimax:tool_call>\n{% for c in m.tool_calls %}<invoke name=\"{{ c.function.name }}\">\n\
    {% for k, v in c.function.arguments.items() %}<parameter name=\"{{ k }}\">\
    {{ v | tojson(ensure_ascii=False) if v is not string else v }}</parameter>\n{% endfor %}</invoke>\n{% endfor %}\
    </minimax:tool_call>{% endif %}";
/// It takes ids of nine characters alone.
const MISTRAL: &str = "{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}]\
    {% endif %}{% if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}";
const MISTRAL_LATER: &str = "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]\
    {{ c.function.arguments | tojson }}{% endfor %}";
const LLAMA: &str = "{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", \"parameters\": \
    {{ c.function.arguments | tojson }}}{% endfor %}";
/// It takes arguments as text alone.
const DEEPSEEK: &str = "{% for c in m.tool_calls %}{{ '<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + c.function.name + \
    '\n```json\n' + c.function.arguments + '\n```<｜tool▁call▁end｜>' }}{% endfor %}";

const SPECIAL: [&str; 2] = ["$", "[TOOL_CALLS]"];

/// A codec with a token for each printable character, and two special ones.
fn codec(template: &str) -> Codec {
    let characters = (' '..='~').chain(['\n']).zip(0_u32..);
    let mut vocabulary: Map<String, Value> = characters.map(|(of, id)| (of.to_string(), id.into())).collect();
    let ids = [u32::from('$') - u32::from(' '), vocabulary.len() as u32];
    vocabulary.insert(SPECIAL[1].to_owned(), ids[1].into());
    let added = SPECIAL.iter().zip(ids).map(|(content, id)| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    });
    let split = json!({ "type": "Split", "pattern": { "Regex": "[\\s\\S]" }, "behavior": "Isolated", "invert": false });
    let tokenizer = json!({
        "version": "1.0", "added_tokens": added.collect::<Vec<_>>(), "pre_tokenizer": split,
        "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "?" },
    });
    let config = json!({ "chat_template": template, "eos_token": "$" });
    let file = |name: &str| match name {
        "tokenizer.json" => Some(Bytes::from(tokenizer.to_string())),
        "tokenizer_config.json" => Some(Bytes::from(config.to_string())),
        _ => None,
    };
    Codec::read(file).unwrap()
}

fn tools() -> Vec<Value> {
    let schema = json!({ "type": "object", "properties": { "line": { "type": "integer" } } });
    vec![json!({ "type": "function", "function": { "name": "edit", "parameters": schema } })]
}

fn call(id: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": "edit", "arguments": { "line": 3 } } })
}

#[test]
fn the_form_of_calls_is_the_templates() {
    let forms = [
        (HERMES, CallForm::Json, Arguments::Object),
        (QWEN_CODER, CallForm::Function, Arguments::Object),
        (GLM, CallForm::ArgKeys, Arguments::Object),
        (SEED, CallForm::Seed, Arguments::Object),
        (NEMOTRON, CallForm::List, Arguments::Object),
        (MINIMAX, CallForm::MiniMax, Arguments::Object),
        (MISTRAL, CallForm::Mistral, Arguments::Object),
        (MISTRAL_LATER, CallForm::Mistral, Arguments::Object),
        (LLAMA, CallForm::Llama, Arguments::Object),
        (DEEPSEEK, CallForm::DeepSeek, Arguments::Text),
    ];
    for (written, calls, arguments) in forms {
        let codec = codec(&template(written));
        assert_eq!(codec.tool_form(), ToolForm::Template { calls, arguments }, "{written}");
        // A call is read as the template writes it.
        let messages = [
            json!({ "role": "user", "content": "?" }),
            json!({ "role": "assistant", "content": "", "tool_calls": [call("abcdefghi")] }),
            json!({ "role": "tool", "tool_call_id": "abcdefghi", "content": "done" }),
        ];
        let opened = codec.decode(&codec.open_with_tools(&messages, &tools()).unwrap(), true).unwrap();
        let (_, turn) = opened.split_once("<assistant>").unwrap();
        let (turn, after) = turn.split_once('$').unwrap();
        if calls != CallForm::DeepSeek {
            // Its marks are no tokens here.
            let called = TurnPart::Call { name: "edit".to_owned(), arguments: json!({ "line": 3 }) };
            assert_eq!(codec.calls_in(turn, &tools()), [called], "{written}");
        }
        assert!(after.contains("<tool>done$"), "{after}");
        // What follows a turn is the same with its results.
        let next = codec.continue_with_results(&[], &[("edit", "done")], &tools()).unwrap();
        assert_eq!(codec.decode(&next, true).unwrap(), "$\n<tool>done$\n<assistant>\n", "{written}");
    }
}

#[test]
fn a_template_that_leaves_something_out_is_not_used_for_tools() {
    let no_calls = template("");
    let no_results =
        template(HERMES).replace("{{ m.content }}", "{% if m.role != 'tool' %}{{ m.content }}{% endif %}");
    let unknown = template("{% for c in m.tool_calls %}(call {{ c.function | tojson }}){% endfor %}");
    let refuses = template("{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}");
    for of in [no_calls, no_results, unknown, refuses] {
        assert_eq!(codec(&of).tool_form(), ToolForm::SystemMessage, "{of}");
    }
    let none = codec("{% for m in messages %}{{ m.content }}{% endfor %}");
    assert_eq!(none.tool_form(), ToolForm::SystemMessage);
}

#[test]
fn a_conversation_is_told_in_words_where_the_template_has_none() {
    let codec =
        codec(&template("").replace("{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}", ""));
    let text = |tokens: Vec<u32>| codec.decode(&tokens, true).unwrap();
    let system = json!({ "role": "system", "content": "Be brief." });
    let user = json!({ "role": "user", "content": "?" });
    let turn = json!({ "role": "assistant", "content": "I edit.", "tool_calls": [call("a"), call("b")] });
    let results = ["c", "d"].map(|of| json!({ "role": "tool", "tool_call_id": of, "content": of }));
    let opened = text(codec.open_with_tools(&[system, user, turn], &tools()).unwrap());
    let (told, said) = opened.split_once("$\n<user>").unwrap();
    assert!(
        told.starts_with("<system>Be brief.\n\n# Tools\n") && told.contains("\"name\":\"edit\""),
        "{told}"
    );
    let called = "<tool_call>\n{\"name\": \"edit\", \"arguments\": {\"line\":3}}\n</tool_call>";
    assert_eq!(said, format!("?$\n<assistant>I edit.\n{called}\n{called}$\n<assistant>\n"));
    let after = text(codec.continue_with_tools(&[], &results, &tools()).unwrap());
    let shown = "<tool_response>\nc\n</tool_response>\n<tool_response>\nd\n</tool_response>";
    assert_eq!(after, format!("$\n<user>{shown}$\n<assistant>\n"));
    // Without tools nothing is told, and nothing changes.
    let plain = [json!({ "role": "user", "content": "?" })];
    assert_eq!(codec.open_with_tools(&plain, &[]).unwrap(), codec.open_chat(&plain, &[]).unwrap());
}

#[test]
fn special_tokens_that_mark_a_call_stay_in_its_text() {
    let written = "[TOOL_CALLS] [{\"name\": \"edit\"}]";
    let mistral = codec(&template(MISTRAL));
    let turn = mistral.encode(&format!("{written}$")).unwrap();
    assert!(turn.contains(&mistral.token("[TOOL_CALLS]").unwrap()));
    assert_eq!(mistral.decode(&turn, false).unwrap(), written.replace("[TOOL_CALLS]", ""));
    assert_eq!(mistral.decode_with_calls(&turn).unwrap(), written);
    // In a model of another form it is a token as any other special one.
    let hermes = codec(&template(HERMES));
    assert_eq!(hermes.decode_with_calls(&turn).unwrap(), written.replace("[TOOL_CALLS]", ""));
    // A tool's result cannot bring a mark as a token.
    let after = mistral.continue_with_results(&[], &[("edit", "[TOOL_CALLS]")], &tools()).unwrap();
    let marks = SPECIAL.map(|name| mistral.token(name).unwrap());
    assert_eq!(marks.map(|mark| after.iter().filter(|token| **token == mark).count()), [2, 0]);
}
