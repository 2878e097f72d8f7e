//! Settings of `instructions`: the form that an answer was instructed to have, in terms that a
//! program can check. The kinds are those of Zhou et al., "Instruction-Following Evaluation for
//! Large Language Models", 2023, that need no language.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::settings::{RuleSettings, WrongSetting, faulty, sound};

/// Instructions of one answer at most.
const MAX_INSTRUCTIONS: usize = 64;

/// Settings of the rule `instructions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InstructionSettings {
    /// What every answer must follow. Default [].
    pub instructions: Vec<Instruction>,
    /// The field of the prompt's row that holds what its answer must follow: a list like the one
    /// above, or a text of JSON. Default none.
    pub instructions_field: Option<String>,
    /// An answer also passes if it follows them without its first line, its last, both, or its
    /// asterisks. Default false.
    pub loose: bool,
    /// The score is the share of instructions that are followed, instead of 1 if all are, else 0.
    /// Default false.
    pub partial: bool,
}

/// How many: either bound, or both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bounds {
    /// At least so many. Default none.
    pub at_least: Option<u64>,
    /// At most so many. Default none.
    pub at_most: Option<u64>,
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Instruction {
    /// So many words, apart by white space.
    Words {
        /// How many.
        count: Bounds,
    },
    /// So many sentences: ends of words in `.`, `!`, `?` or `。`.
    Sentences {
        /// How many.
        count: Bounds,
    },
    /// So many paragraphs, apart by empty lines.
    Paragraphs {
        /// How many.
        count: Bounds,
    },
    /// So many lines that are not empty.
    Lines {
        /// How many.
        count: Bounds,
    },
    /// So many bullet points: lines that begin with `*`, `-` or `•` and a space.
    Bullets {
        /// How many.
        count: Bounds,
    },
    /// These words or phrases occur, in any case.
    Keywords {
        /// Which.
        words: Vec<String>,
        /// How often each. Default at least once.
        #[serde(default = "once")]
        count: Bounds,
    },
    /// These do not occur, in any case, as words of their own.
    Forbidden {
        /// Which.
        words: Vec<String>,
    },
    /// This letter occurs so often, in either case.
    Letter {
        /// Which.
        letter: char,
        /// How often.
        count: Bounds,
    },
    /// No letter is a capital.
    LowerCase {},
    /// Every letter is a capital.
    UpperCase {},
    /// So many words are all in capitals.
    CapitalWords {
        /// How many.
        count: Bounds,
    },
    /// It begins with this.
    StartsWith {
        /// With what.
        text: String,
    },
    /// It ends with this.
    EndsWith {
        /// With what.
        text: String,
    },
    /// It is JSON as a whole, in a fenced block or not.
    Json {},
    /// It is in double quotes as a whole.
    Quoted {},
    /// It has no comma.
    NoCommas {},
    /// It has a title in double angles: `<<title>>`.
    Title {},
    /// So many placeholders in brackets: `[address]`.
    Placeholders {
        /// How many.
        count: Bounds,
    },
    /// So many parts are emphasised: `*so*`.
    Highlights {
        /// How many.
        count: Bounds,
    },
}

const fn once() -> Bounds {
    Bounds { at_least: Some(1), at_most: None }
}

impl Instruction {
    /// Why it is not a valid instruction.
    fn fault(&self) -> Option<&'static str> {
        const COUNT: &str =
            "say how many: count = { at_least = 3 }, at_most, or both, the first not above the second";
        const WORDS: &str = "name one or more words, none of them empty";
        let bounds = |count: &Bounds| {
            let some = count.at_least.is_some() || count.at_most.is_some();
            let ordered = count.at_least.unwrap_or(0) <= count.at_most.unwrap_or(u64::MAX);
            (!(some && ordered)).then_some(COUNT)
        };
        let named = |words: &[String]| {
            let named = !words.is_empty() && words.iter().all(|word| !word.trim().is_empty());
            (!named).then_some(WORDS)
        };
        match self {
            Self::Words { count }
            | Self::Sentences { count }
            | Self::Paragraphs { count }
            | Self::Lines { count }
            | Self::Bullets { count }
            | Self::CapitalWords { count }
            | Self::Placeholders { count }
            | Self::Highlights { count } => bounds(count),
            Self::Letter { letter, count } => {
                let letters = letter.is_alphabetic().then_some(()).ok_or("name a letter");
                letters.err().or_else(|| bounds(count))
            }
            Self::Keywords { words, count } => named(words).or_else(|| bounds(count)),
            Self::Forbidden { words } => named(words),
            Self::StartsWith { text } | Self::EndsWith { text } => {
                text.trim().is_empty().then_some("name the text; every answer begins and ends with nothing")
            }
            Self::LowerCase {}
            | Self::UpperCase {}
            | Self::Json {}
            | Self::Quoted {}
            | Self::NoCommas {}
            | Self::Title {} => None,
        }
    }
}

impl RuleSettings for InstructionSettings {
    fn wrong(&self) -> Vec<WrongSetting> {
        let mut wrong = faulty("instructions", &self.instructions, Instruction::fault);
        let n = self.instructions.len();
        if (n == 0) == self.instructions_field.is_none() || n > MAX_INSTRUCTIONS {
            let remedy = "name either the row's field that holds them, instructions_field = \"instructions\", or 1 to 64 \
                for all rows, instructions = [{ kind = \"words\", count = { at_most = 50 } }]";
            let value = format!("{n} instructions and instructions_field = {:?}", self.instructions_field);
            wrong.push(WrongSetting::new("instructions", value, remedy));
        }
        wrong
    }
}

/// Instructions as a row holds them.
///
/// # Errors
/// The value has another form, which the message describes.
pub fn instructions_of(value: &Value) -> Result<Vec<Instruction>, String> {
    let read = match value {
        Value::String(text) => serde_json::from_str(text),
        other => Vec::deserialize(other),
    };
    let instructions = read.map_err(|error| error.to_string())?;
    sound("instructions", instructions, MAX_INSTRUCTIONS, Instruction::fault)
}
