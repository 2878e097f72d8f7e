//! Whether a directory's tokenizer, chat template and end tokens are the model's.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Fault;
use crate::CONFIG_FILE;
use crate::decoder::Config;
use crate::text_codec::{
    Codec, GENERATION_FILE, Message, Speaker, SpecialToken, TEMPLATE_FILE, TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE, TextError, end_tokens_of,
};

/// The fields of `tokenizer_config.json` that declare the ids of tokens.
#[derive(Debug, Default, Deserialize)]
struct DeclaredTokens {
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, Added>,
    #[serde(default)]
    eos_token: Option<SpecialToken>,
}

#[derive(Debug, Deserialize)]
struct Added {
    content: String,
}

/// Checks the files of the text codec, if there is a tokenizer: a model may be trained on an
/// environment of bare tokens.
pub(super) fn check(
    files: &BTreeMap<String, Bytes>,
    config: Option<(&Config, &Map<String, Value>)>,
    faults: &mut Vec<Fault>,
) {
    if !files.contains_key(TOKENIZER_FILE) {
        return;
    }
    let json = config.and_then(|(_, json)| serde_json::to_vec(json).ok()).map(Bytes::from);
    let file = |name: &str| if name == CONFIG_FILE { json.clone() } else { files.get(name).cloned() };
    let codec = match Codec::read(file) {
        Ok(codec) => codec,
        Err(error) => {
            let file = match error {
                TextError::Missing(file) | TextError::Read { file, .. } => file,
                TextError::Encode { .. } | TextError::Decode { .. } => TOKENIZER_FILE,
                TextError::Render(_) => TEMPLATE_FILE,
            };
            faults.push(Fault::new(file, error.to_string()));
            return;
        }
    };
    let Some((config, _)) = config else { return };
    let (known, vocabulary) = (codec.vocabulary() as i64, config.vocab_size);
    if known > vocabulary {
        faults.push(Fault::new(
            TOKENIZER_FILE,
            format!(
                "its largest id is {}, and the model has vocab_size={vocabulary}; it is another model's",
                known - 1
            ),
        ));
    }
    if let Some(end) = codec.end_tokens().iter().find(|&&end| i64::from(end) >= vocabulary) {
        faults.push(Fault::new(
            GENERATION_FILE,
            format!("eos_token_id={end} is not below vocab_size={vocabulary}"),
        ));
    }
    let ends = [GENERATION_FILE, CONFIG_FILE].into_iter();
    let ends: Vec<u32> = ends.filter_map(|name| end_tokens_of(name, &file(name)?).ok()).flatten().collect();
    check_names(&codec, files, &ends, faults);
    let hello = Message { speaker: Speaker::User, content: "Hello" };
    if codec.has_template()
        && let Err(error) = codec.render(&[hello], true)
    {
        faults.push(Fault::new(TEMPLATE_FILE, error.to_string()));
    }
}

/// Checks that special tokens have the ids that the other files declare.
fn check_names(codec: &Codec, files: &BTreeMap<String, Bytes>, ends: &[u32], faults: &mut Vec<Fault>) {
    let Some(text) = files.get(TOKENIZER_CONFIG_FILE) else { return };
    let declared: DeclaredTokens = match serde_json::from_slice(text) {
        Ok(declared) => declared,
        Err(error) => {
            faults.push(Fault::new(TOKENIZER_CONFIG_FILE, format!("failed to read it: {error}")));
            return;
        }
    };
    for (id, Added { content }) in &declared.added_tokens_decoder {
        let found = codec.token(content);
        if found.map(|found| found.to_string()).as_ref() != Some(id) {
            let found = found.map_or("none".to_owned(), |found| found.to_string());
            faults.push(Fault::new(
                TOKENIZER_FILE,
                format!("it does not match {TOKENIZER_CONFIG_FILE}: {content:?} has id={found}, not {id}"),
            ));
        }
    }
    let name = declared.eos_token.as_ref().map(SpecialToken::text);
    if let Some(name) = name.filter(|_| !ends.is_empty()) {
        let id = codec.token(name);
        if !id.is_some_and(|id| ends.contains(&id)) {
            let id = id.map_or("none".to_owned(), |id| id.to_string());
            faults.push(Fault::new(
                TOKENIZER_FILE,
                format!("it does not match {CONFIG_FILE}: the end token {name:?} has id={id}, not one of eos_token_id={ends:?}"),
            ));
        }
    }
}
