//! A codec for tests: a token for each printable character, and a template that names who speaks.

use std::sync::Arc;

use bytes::Bytes;
use millrace_policy::text_codec::Codec;
use serde_json::{Map, Value, json};

/// The token that ends a turn, `$`.
pub(crate) const END: u32 = '$' as u32 - ' ' as u32;

/// Messages look so: `<user>hello$`.
const TEMPLATE: &str = "{% if tools %}<tools>{{ tools | tojson }}${% endif %}{% for m in messages %}<{{ m.role }}>\
                        {{ m.content }}{% for call in m.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>\
                        {% endfor %}${% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";

pub(crate) fn codec() -> Arc<Codec> {
    let characters = (' '..='~').chain(['\n']).zip(0..);
    let vocabulary: Map<String, Value> = characters.map(|(of, id)| (of.to_string(), id.into())).collect();
    let split = json!({ "type": "Split", "pattern": { "Regex": "[\\s\\S]" }, "behavior": "Isolated", "invert": false });
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [{ "id": END, "content": "$", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true }], "pre_tokenizer": split, "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "?" },
    });
    let config = json!({ "chat_template": TEMPLATE, "eos_token": "$" });
    let file = |name: &str| match name {
        "tokenizer.json" => Some(Bytes::from(tokenizer.to_string())),
        "tokenizer_config.json" => Some(Bytes::from(config.to_string())),
        _ => None,
    };
    Arc::new(Codec::read(file).unwrap())
}

/// The tokens of a text, one for each character.
pub(crate) fn tokens(text: &str) -> Vec<u32> {
    text.chars().map(|c| if c == '\n' { 95 } else { c as u32 - ' ' as u32 }).collect()
}

/// The text of tokens.
pub(crate) fn words(tokens: &[u32]) -> String {
    tokens.iter().map(|id| if *id == 95 { '\n' } else { char::from_u32(id + ' ' as u32).unwrap() }).collect()
}
