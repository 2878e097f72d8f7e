//! Rows of prompts and answers: how a run file names them, what a row is, and which rows are
//! invalid. The program that submits a run and the worker that plays it read the same bytes by the
//! same rules.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::env_step::Split;

mod row;
mod rows;
mod leak;
mod tools;

pub use leak::{Leak, Prompts};
pub use row::{ANSWER, ChatMessage, ChatRole, Row, whole_number};
pub use rows::{DatasetError, Rows};
pub use tools::{ToolRef, ToolRefError, is_server_name};

/// A dataset file whose rows are prompts in text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatasetSpec {
    /// The file: JSONL, a JSON object on each line, or Parquet. A relative path starts at the run
    /// file's folder.
    pub path: String,
    /// The field of the prompt: text, or a list of chat messages `{"role": …, "content": …}` whose
    /// last is the user's. Default `prompt`.
    #[serde(default = "DatasetSpec::default_prompt")]
    pub prompt: String,
    /// The field of the answer: text, a number, true or false; empty if the rows have none. Rewards
    /// get it under the name `answer`, and all other fields but the prompt under their own. Default
    /// `answer`.
    #[serde(default = "DatasetSpec::default_answer")]
    pub answer: String,
    /// How the answer is recognised. Default `by_reward`.
    #[serde(default)]
    pub check: AnswerCheck,
    /// Share of the prompts that are held out for evaluation, chosen by a hash of the prompt: the
    /// same prompt is never on both sides, and another seed holds out the same ones. Default 0.125.
    #[serde(default = "DatasetSpec::default_held_out")]
    pub held_out: f64,
    /// Shuffle the rows in each epoch, by the run's seed; false for the file's own order. Default
    /// true.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// Turns at one prompt: tries, and with `tools` also turns that call them. Without tools more
    /// than 1 needs a `check`. Default 1.
    #[serde(default = "one")]
    pub max_turns: u32,
    /// System message of conversations whose row has none. Default empty: that of the chat
    /// template, if any.
    #[serde(default)]
    pub system: String,
    /// Tokens of one turn of the environment at most, including those of the chat template; a
    /// longer prompt is refused before the run starts. Default 512.
    #[serde(default = "DatasetSpec::default_prompt_tokens")]
    pub prompt_tokens: u32,
    /// Tools that the policy may call: names of MCP servers that the workers' operators provide
    /// (`millrace-worker --mcp NAME=COMMAND`), or `server/tool` for one tool of a server. Their tasks
    /// are of the pool `dataset_tools`. Default none. `[T]`, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("default" = []))]
    pub tools: Vec<String>,
    /// Milliseconds of one call at most; the policy is told that a call took longer. Default 10000.
    #[serde(default = "ten_seconds", skip_serializing_if = "is_ten_seconds")]
    #[schemars(extend("default" = 10_000))]
    pub tool_ms: u64,
    /// Tokens of one call's result at most; a longer one is cut, and the policy is told so. The
    /// results of a turn are cut further where they are more than `prompt_tokens` together.
    /// Default 256.
    #[serde(default = "two_hundred_fifty_six", skip_serializing_if = "is_two_hundred_fifty_six")]
    #[schemars(extend("default" = 256))]
    pub tool_result_tokens: u32,
    /// The content of the file. It is set when the run is submitted, which also copies the file to
    /// the object store: every worker reads the same bytes, even if the file changes. Default: not
    /// submitted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub content: Option<DatasetContent>,
}

/// The content of a file of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatasetContent {
    /// The rows as JSONL, among the run's blobs.
    pub blob: BlobRef,
    /// Rows that are trained on.
    pub train: u64,
    /// Rows that are held out.
    pub held_out: u64,
}

impl DatasetContent {
    /// Rows of a split.
    #[must_use]
    pub const fn rows(&self, split: Split) -> u64 {
        match split {
            Split::Train => self.train,
            Split::HeldOut => self.held_out,
        }
    }
}

/// How an answer is recognised in the policy's text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerCheck {
    /// By the run's first reward: the rollout succeeded if it is 1 or more. The environment's own
    /// reward is 0.
    #[default]
    ByReward,
    /// The last whole number in the text must be the answer. The environment's reward is then 1,
    /// else 0.
    Number,
    /// The text must be the answer, apart from white space before and after. The environment's
    /// reward is then 1, else 0.
    Exact,
}

impl DatasetSpec {
    fn default_prompt() -> String {
        "prompt".to_owned()
    }

    fn default_answer() -> String {
        "answer".to_owned()
    }

    const fn default_held_out() -> f64 {
        0.125
    }

    const fn default_prompt_tokens() -> u32 {
        512
    }
}

const fn yes() -> bool {
    true
}
const fn one() -> u32 {
    1
}
const fn ten_seconds() -> u64 {
    10_000
}
const fn two_hundred_fifty_six() -> u32 {
    256
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
const fn is_ten_seconds(ms: &u64) -> bool {
    *ms == ten_seconds()
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
const fn is_two_hundred_fifty_six(tokens: &u32) -> bool {
    *tokens == two_hundred_fifty_six()
}

#[cfg(test)]
mod tests;
