//! The text codec: text to tokens and back, for environments that speak text, with the tokenizer
//! and chat template of a model. Sampled tokens stay as they were sampled; only the turns of others
//! are tokenised here.

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::Tokenizer;

use special_names::{SpecialNames, pieces};
use template::Template;
use thought::Thought;

mod template;
mod chat;
mod special_names;
mod thought;
pub mod tool_calls;
mod tool_form;

pub use tool_form::{Arguments, ToolForm};

/// The tokenizer, as the `tokenizers` library writes it.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// Special tokens, and the chat template where it has no file of its own.
pub const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";
/// The chat template.
pub const TEMPLATE_FILE: &str = "chat_template.jinja";
/// The tokens that end a turn.
pub const GENERATION_FILE: &str = "generation_config.json";
/// Files of a version that a [`Codec`] reads, besides `config.json`.
pub const FILES: [&str; 4] = [TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, TEMPLATE_FILE, GENERATION_FILE];

/// A placeholder for the policy's turn.
const TURN: &str = "millrace-turn";

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// The system prompt.
    System,
    /// The environment.
    User,
    /// The policy.
    Assistant,
}

impl Speaker {
    /// The role of the chat template.
    #[must_use]
    pub const fn role(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its author.
    pub speaker: Speaker,
    /// Its text.
    pub content: &'a str,
}

/// Why the text codec failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The model has no such file.
    #[error("the model has no {0}; a model that speaks text brings its tokenizer and its chat template")]
    Missing(&'static str),
    /// A file is malformed.
    #[error("failed to read {file}: {reason}")]
    Read {
        /// The file.
        file: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer does not take a text.
    #[error("failed to tokenize bytes={bytes}: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// The tokenizer's error.
        reason: String,
    },
    /// The tokenizer does not take tokens.
    #[error("failed to make text of tokens={tokens}: {reason}")]
    Decode {
        /// How many.
        tokens: usize,
        /// The tokenizer's error.
        reason: String,
    },
    /// The template refuses the conversation, or cannot be computed.
    #[error("failed to render the chat template: {0}")]
    Render(String),
}

/// The tokenizer, chat template and end tokens of one model.
pub struct Codec {
    tokenizer: Tokenizer,
    special: SpecialNames,
    template: Option<Template>,
    /// The one for conversations with tools, where the model brings another.
    tool_template: Option<Template>,
    end_tokens: Vec<u32>,
    /// Found at the first use.
    tool_form: OnceLock<ToolForm>,
    /// Found at the first use.
    thought: OnceLock<Thought>,
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").field("end_tokens", &self.end_tokens).finish_non_exhaustive()
    }
}

impl Codec {
    /// Reads the files of [`FILES`] and `config.json` by `file`. Only the tokenizer is required: a
    /// model without a chat template can still encode text.
    ///
    /// # Errors
    /// There is no tokenizer, or a file is damaged.
    pub fn read(file: impl Fn(&str) -> Option<Bytes>) -> Result<Self, TextError> {
        let json = file(TOKENIZER_FILE).ok_or(TextError::Missing(TOKENIZER_FILE))?;
        let tokenizer = read_tokenizer(&json)?;
        let config: TokenizerConfig = match file(TOKENIZER_CONFIG_FILE) {
            Some(json) => read_json(TOKENIZER_CONFIG_FILE, &json)?,
            None => TokenizerConfig::default(),
        };
        let (source, tool_source) = match file(TEMPLATE_FILE) {
            Some(bytes) => (Some(read_text(TEMPLATE_FILE, &bytes)?), None),
            None => config.templates()?,
        };
        let template = |source: Option<String>| {
            source.map(|source| Template::new(source, config.special_tokens())).transpose()
        };
        let (template, tool_template) = (template(source)?, template(tool_source)?);
        let mut end_tokens = declared_end_tokens(&file)?;
        if end_tokens.is_empty() {
            end_tokens.extend(config.end_token(&tokenizer));
        }
        let special = SpecialNames::of(&tokenizer)?;
        let (tool_form, thought) = (OnceLock::new(), OnceLock::new());
        Ok(Self { tokenizer, special, template, tool_template, end_tokens, tool_form, thought })
    }

    /// Tokens that end a turn.
    #[must_use]
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Size of the vocabulary: ids are below this.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        let largest = self.tokenizer.get_vocab(true).into_values().max();
        largest.map_or(0, |id| id as usize + 1)
    }

    /// The id of the token with this name or text.
    #[must_use]
    pub fn token(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    /// Whether there is a chat template.
    #[must_use]
    pub const fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens of `text`. Names of special tokens in it become those tokens; none are added.
    ///
    /// # Errors
    /// The tokenizer does not take the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoded = self.tokenizer.encode_fast(text, false);
        let fail = |e: tokenizers::Error| TextError::Encode { bytes: text.len(), reason: e.to_string() };
        Ok(encoded.map_err(fail)?.get_ids().to_vec())
    }

    /// The text of `tokens`, with the names of special tokens or without. Bytes that are no UTF-8
    /// show as U+FFFD.
    ///
    /// # Errors
    /// The tokenizer does not take the tokens.
    pub fn decode(&self, tokens: &[u32], special: bool) -> Result<String, TextError> {
        let fail = |e: tokenizers::Error| TextError::Decode { tokens: tokens.len(), reason: e.to_string() };
        self.tokenizer.decode(tokens, !special).map_err(fail)
    }

    /// The text of a conversation. With `open` it ends where the assistant's turn starts.
    ///
    /// # Errors
    /// The model has no chat template, or the template refuses the conversation.
    pub fn render(&self, messages: &[Message<'_>], open: bool) -> Result<String, TextError> {
        Ok(pieces(&self.render_broken(messages, open)?).collect())
    }

    /// The same, with the names of special tokens in messages broken.
    fn render_broken(&self, messages: &[Message<'_>], open: bool) -> Result<String, TextError> {
        let texts: Vec<Cow<'_, str>> =
            messages.iter().map(|message| self.special.broken(message.content)).collect();
        let messages = messages.iter().zip(&texts);
        let messages: Vec<Message<'_>> =
            messages.map(|(message, content)| Message { speaker: message.speaker, content }).collect();
        self.template.as_ref().ok_or(TextError::Missing(TEMPLATE_FILE))?.render(&messages, open)
    }

    /// The tokens of a rendered text. Names of special tokens in messages stay text.
    fn encode_rendered(&self, rendered: &str) -> Result<Vec<u32>, TextError> {
        let tokens: Result<Vec<Vec<u32>>, TextError> =
            pieces(rendered).map(|piece| self.encode(piece)).collect();
        Ok(tokens?.concat())
    }

    /// The tokens that a rollout begins with: a conversation that ends where the policy's turn
    /// starts. Special tokens are the template's alone: their names in messages stay text.
    ///
    /// # Errors
    /// As [`Self::render`] and [`Self::encode`].
    pub fn first_turn(&self, messages: &[Message<'_>]) -> Result<Vec<u32>, TextError> {
        self.encode_rendered(&self.render_broken(messages, true)?)
    }

    /// The tokens after the policy's turn `turn` when the environment answers `text`: the end of
    /// the assistant's message, unless the policy sampled it, the environment's message, and the
    /// start of the next turn. The tokens before stay as they are.
    ///
    /// # Errors
    /// As [`Self::render`] and [`Self::encode`], or the template changes the assistant's message.
    pub fn next_turn(&self, turn: &[u32], text: &str) -> Result<Vec<u32>, TextError> {
        let message = |speaker, content| Message { speaker, content };
        let conversation =
            [message(Speaker::User, "?"), message(Speaker::Assistant, TURN), message(Speaker::User, text)];
        self.after_turn(turn, &self.render_broken(&conversation, true)?)
    }

    /// The tokens that `rendered` has after [`TURN`], which stands for the sampled `turn`.
    fn after_turn(&self, turn: &[u32], rendered: &str) -> Result<Vec<u32>, TextError> {
        let Some((_, after)) = rendered.split_once(TURN) else {
            return Err(TextError::Render("it leaves out the assistant's message".to_owned()));
        };
        let end = turn.last().filter(|token| self.end_tokens.contains(token));
        let Some(end) = end.map(|token| self.decode(&[*token], true)).transpose()? else {
            return self.encode_rendered(after);
        };
        // Some templates set the end off by white space, which the policy did not write.
        let rest = after.strip_prefix(&end).or_else(|| after.trim_start().strip_prefix(&end));
        self.encode_rendered(rest.unwrap_or(after))
    }
}

/// The tokens that end a turn of the model whose files `file` returns by name; empty where none are
/// declared. Where only `tokenizer_config.json` names one, its id is the tokenizer's.
///
/// # Errors
/// A file is damaged.
pub fn end_tokens(file: impl Fn(&str) -> Option<Bytes>) -> Result<Vec<u32>, TextError> {
    let declared = declared_end_tokens(&file)?;
    let (true, Some(config), Some(tokenizer)) =
        (declared.is_empty(), file(TOKENIZER_CONFIG_FILE), file(TOKENIZER_FILE))
    else {
        return Ok(declared);
    };
    let config: TokenizerConfig = read_json(TOKENIZER_CONFIG_FILE, &config)?;
    // A tokenizer takes long to read, and an engine asks for each version.
    match &config.eos_token {
        Some(_) => Ok(config.end_token(&read_tokenizer(&tokenizer)?).into_iter().collect()),
        None => Ok(declared),
    }
}

/// Texts are encoded whole: what a training script once cut or filled texts to, which its tokenizer was stored with, is
/// no part of the model. transformers sets it for each call.
fn read_tokenizer(json: &[u8]) -> Result<Tokenizer, TextError> {
    let fail = |e: tokenizers::Error| TextError::Read { file: TOKENIZER_FILE, reason: e.to_string() };
    let mut tokenizer = Tokenizer::from_bytes(json).map_err(fail)?;
    tokenizer.with_padding(None).with_truncation(None).map_err(fail)?;
    Ok(tokenizer)
}

fn declared_end_tokens(file: impl Fn(&str) -> Option<Bytes>) -> Result<Vec<u32>, TextError> {
    for name in [GENERATION_FILE, crate::CONFIG_FILE] {
        let tokens = file(name).map(|json| end_tokens_of(name, &json)).transpose()?.unwrap_or_default();
        if !tokens.is_empty() {
            return Ok(tokens);
        }
    }
    Ok(Vec::new())
}

/// The fields of `tokenizer_config.json` that the codec reads.
#[derive(Debug, Default, Deserialize)]
struct TokenizerConfig {
    #[serde(default)]
    chat_template: Option<Value>,
    #[serde(default)]
    bos_token: Option<SpecialToken>,
    #[serde(default)]
    eos_token: Option<SpecialToken>,
    #[serde(default)]
    pad_token: Option<SpecialToken>,
    #[serde(default)]
    unk_token: Option<SpecialToken>,
}

/// A special token: its text, or its text with settings.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum SpecialToken {
    Text(String),
    Added { content: String },
}

impl SpecialToken {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Added { content: text } => text,
        }
    }
}

impl TokenizerConfig {
    /// The template, and the one for conversations with tools: one text for both, or those named `default` and `tool_use`
    /// of several.
    fn templates(&self) -> Result<(Option<String>, Option<String>), TextError> {
        let fail = |reason: String| TextError::Read { file: TOKENIZER_CONFIG_FILE, reason };
        match &self.chat_template {
            None | Some(Value::Null) => Ok((None, None)),
            Some(Value::String(text)) => Ok((Some(text.clone()), None)),
            Some(Value::Array(named)) => {
                let text_of = |one: &Value| one["template"].as_str().map(str::to_owned);
                let find = |name: &str| named.iter().find(|one| one["name"] == name);
                let text = find("default").or(named.first()).and_then(text_of);
                let text =
                    text.ok_or_else(|| fail("chat_template has no template named default".to_owned()))?;
                Ok((Some(text), find("tool_use").and_then(text_of)))
            }
            Some(_) => Err(fail("chat_template is neither text nor a list of named texts".to_owned())),
        }
    }

    fn end_token(&self, tokenizer: &Tokenizer) -> Option<u32> {
        tokenizer.token_to_id(self.eos_token.as_ref()?.text())
    }

    fn special_tokens(&self) -> Vec<(&'static str, String)> {
        let tokens = [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
            ("pad_token", &self.pad_token),
            ("unk_token", &self.unk_token),
        ];
        let present = tokens.into_iter().filter_map(|(name, token)| Some((name, token.as_ref()?)));
        present.map(|(name, token)| (name, token.text().to_owned())).collect()
    }
}

/// `eos_token_id` of a file: none, one, or several.
pub(crate) fn end_tokens_of(file: &'static str, json: &[u8]) -> Result<Vec<u32>, TextError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Tokens {
        One(u32),
        Several(Vec<u32>),
    }
    #[derive(Deserialize)]
    struct Ends {
        #[serde(default)]
        eos_token_id: Option<Tokens>,
    }
    let ends: Ends = read_json(file, json)?;
    Ok(match ends.eos_token_id {
        None => Vec::new(),
        Some(Tokens::One(token)) => vec![token],
        Some(Tokens::Several(tokens)) => tokens,
    })
}

fn read_json<T: for<'a> Deserialize<'a>>(file: &'static str, json: &[u8]) -> Result<T, TextError> {
    serde_json::from_slice(json).map_err(|e| TextError::Read { file, reason: e.to_string() })
}

fn read_text(file: &'static str, bytes: &[u8]) -> Result<String, TextError> {
    String::from_utf8(bytes.to_vec()).map_err(|e| TextError::Read { file, reason: e.to_string() })
}
