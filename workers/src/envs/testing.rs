//! What tests of environments that speak text have in common.

use bytes::Bytes;
use millrace_policy::text_codec::Codec;
use serde_json::{Value, json};

/// A tokenizer with a token for each printable character, and these besides.
pub(crate) fn character_tokenizer(added: &Value) -> Value {
    let characters = (' '..='~').chain(['\n']).zip(0..);
    let vocabulary: serde_json::Map<String, Value> =
        characters.map(|(character, id)| (character.to_string(), id.into())).collect();
    let split = json!({ "type": "Split", "pattern": { "Regex": "[\\s\\S]" }, "behavior": "Isolated", "invert": false });
    json!({
        "version": "1.0", "added_tokens": added, "pre_tokenizer": split, "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "?" },
    })
}

/// The codec of a tokenizer and its configuration.
pub(crate) fn codec_of(tokenizer: &Value, config: &Value) -> Codec {
    let file = |name: &str| match name {
        "tokenizer.json" => Some(Bytes::from(tokenizer.to_string())),
        "tokenizer_config.json" => Some(Bytes::from(config.to_string())),
        _ => None,
    };
    Codec::read(file).expect("a tokenizer")
}
