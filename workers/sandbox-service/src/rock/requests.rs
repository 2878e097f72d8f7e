//! What ROCK's clients ask. Fields that mean nothing here are left out, as ROCK does with fields
//! that it does not know.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A sandbox to start.
#[derive(Debug, Deserialize)]
pub(super) struct Start {
    pub(super) image: String,
    pub(super) image_os: Option<String>,
    /// Minutes without use until it ends.
    pub(super) auto_clear_time_minutes: Option<u64>,
    pub(super) memory: Option<String>,
    pub(super) disk: Option<String>,
    pub(super) sandbox_id: Option<String>,
    pub(super) num_gpus: Option<f64>,
    pub(super) use_kata_runtime: Option<bool>,
    /// Seconds for which its files stay once it is stopped.
    pub(super) auto_delete_seconds: Option<u64>,
    pub(super) auto_archive_seconds: Option<u64>,
}

/// A sandbox by its name.
#[derive(Debug, Deserialize)]
pub(super) struct ById {
    pub(super) sandbox_id: String,
}

/// The same, with whether one that has ended counts.
#[derive(Debug, Deserialize)]
pub(super) struct StatusOf {
    pub(super) sandbox_id: String,
    pub(super) include_all_states: Option<String>,
}

/// A program with its arguments, or a line for a shell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Shell(String),
    Program(Vec<String>),
}

impl<'de> Deserialize<'de> for Line {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(from)? {
            serde_json::Value::String(line) => Ok(Self::Shell(line)),
            other => serde_json::from_value(other)
                .map(Self::Program)
                .map_err(|_| serde::de::Error::custom("a line or a list of words is expected")),
        }
    }
}

/// A command of no session.
#[derive(Debug, Deserialize)]
pub(super) struct Execute {
    pub(super) sandbox_id: String,
    pub(super) command: Line,
    pub(super) timeout: Option<f64>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) cwd: Option<String>,
    pub(super) check: Option<bool>,
    pub(super) error_msg: Option<String>,
}

fn default_session() -> String {
    "default".to_owned()
}

/// A session to create.
#[derive(Debug, Deserialize)]
pub(super) struct CreateSession {
    pub(super) sandbox_id: String,
    #[serde(default = "default_session")]
    pub(super) session: String,
    #[serde(default)]
    pub(super) startup_source: Vec<String>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) remote_user: Option<String>,
}

/// What becomes of a command that fails: a failure, or a result with its code, or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Check {
    #[default]
    Raise,
    Silent,
    Ignore,
}

/// A command of a session.
#[derive(Debug, Deserialize)]
pub(super) struct Run {
    pub(super) sandbox_id: String,
    #[serde(default = "default_session")]
    pub(super) session: String,
    pub(super) command: String,
    pub(super) timeout: Option<f64>,
    #[serde(default)]
    pub(super) check: Check,
    /// It starts a program that goes on talking, or is a line for it.
    #[serde(default)]
    pub(super) is_interactive_command: bool,
    /// It is the last line for such a program.
    #[serde(default)]
    pub(super) is_interactive_quit: bool,
    /// Regular expressions for what such a program writes when it waits.
    #[serde(default)]
    pub(super) expect: Vec<String>,
    pub(super) error_msg: Option<String>,
}

/// A session to close.
#[derive(Debug, Deserialize)]
pub(super) struct CloseSession {
    pub(super) sandbox_id: String,
    #[serde(default = "default_session")]
    pub(super) session: String,
}

/// A sandbox to store as an image.
#[derive(Debug, Deserialize)]
pub(super) struct CommitOf {
    pub(super) sandbox_id: String,
    pub(super) image_tag: String,
}

/// A file to read.
#[derive(Debug, Deserialize)]
pub(super) struct ReadFile {
    pub(super) sandbox_id: String,
    pub(super) path: String,
    pub(super) encoding: Option<String>,
    pub(super) errors: Option<String>,
}

/// A file to write.
#[derive(Debug, Deserialize)]
pub(super) struct WriteFile {
    pub(super) sandbox_id: String,
    pub(super) path: String,
    pub(super) content: String,
}
