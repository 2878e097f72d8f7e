//! What E2B's clients ask. Fields that mean nothing here are left out; those that would change what
//! a sandbox is or may do are refused, see [`NewSandbox::refused`].

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// A sandbox to make.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewSandbox {
    #[serde(rename = "templateID")]
    pub(super) template: String,
    /// Seconds that it lives.
    pub(super) timeout: Option<i64>,
    pub(super) metadata: Option<BTreeMap<String, String>>,
    pub(super) env_vars: Option<BTreeMap<String, String>>,
    auto_pause: Option<bool>,
    #[serde(rename = "allow_internet_access")]
    internet: Option<bool>,
    pub(super) network: Option<NetworkOf>,
    mcp: Option<Value>,
    iam: Option<Value>,
    volume_mounts: Option<Vec<Value>>,
}

impl NewSandbox {
    /// A field that asks for what is not there, and what to do instead.
    pub(super) fn refused(&self) -> Option<(&'static str, &'static str)> {
        let is_set = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        [
            ("autoPause", self.auto_pause == Some(true), "sandboxes are not paused; leave it out"),
            (
                "allow_internet_access",
                self.internet == Some(true),
                "no sandbox reaches the whole network; list hosts in network.allowOut",
            ),
            (
                "network",
                self.network.as_ref().is_some_and(|network| !network.is_list()),
                "list hosts in network.allowOut, and set nothing else of it but denyOut, to all addresses",
            ),
            ("mcp", is_set(&self.mcp), "there is no gateway for MCP; start servers by commands"),
            ("iam", is_set(&self.iam), "there is no workload identity; leave it out"),
            (
                "volumeMounts",
                self.volume_mounts.as_ref().is_some_and(|mounts| !mounts.is_empty()),
                "there are no volumes; write files",
            ),
        ]
        .into_iter()
        .find_map(|(field, is_set, remedy)| is_set.then_some((field, remedy)))
    }
}

/// Which hosts a sandbox shall reach.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NetworkOf {
    pub(super) allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

impl NetworkOf {
    /// Whether it lists what is allowed and leaves all else denied. Without a list E2B allows all.
    fn is_list(&self) -> bool {
        let denied = self.deny_out.iter().flatten();
        let denies_rest = denied.into_iter().all(|what| what == "0.0.0.0/0");
        self.allow_out.is_some() && denies_rest && self.others.values().all(Value::is_null)
    }
}

/// When a sandbox shall end: seconds from now.
#[derive(Debug, Deserialize)]
pub(super) struct Timeout {
    pub(super) timeout: Option<i64>,
}

/// Which sandboxes of a key to list.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListOf {
    /// Names and values, encoded as in an address, twice.
    pub(super) metadata: Option<String>,
    /// `running`, `paused` or both, by commas.
    pub(super) state: Option<String>,
    pub(super) order: Option<String>,
    pub(super) started_after: Option<String>,
    pub(super) template: Option<String>,
    pub(super) next_token: Option<String>,
    pub(super) limit: Option<usize>,
}

/// A file to move as a whole.
#[derive(Debug, Deserialize)]
pub(super) struct FileOf {
    pub(super) path: Option<String>,
    pub(super) username: Option<String>,
    pub(super) signature: Option<String>,
    pub(super) signature_expiration: Option<u64>,
}

/// A path.
#[derive(Debug, Deserialize)]
pub(super) struct PathOf {
    #[serde(default)]
    pub(super) path: String,
}

/// A folder to list.
#[derive(Debug, Deserialize)]
pub(super) struct ListDir {
    #[serde(default)]
    pub(super) path: String,
    /// 1: what is in it; more: what is in its folders as well.
    #[serde(default)]
    pub(super) depth: u32,
}

/// Something to move.
#[derive(Debug, Deserialize)]
pub(super) struct Move {
    #[serde(default)]
    pub(super) source: String,
    #[serde(default)]
    pub(super) destination: String,
}

/// A command to start.
#[derive(Debug, Deserialize)]
pub(super) struct Start {
    pub(super) process: Config,
    pub(super) pty: Option<Pty>,
    pub(super) tag: Option<String>,
    /// Clients that do not know it mean that there is an input.
    pub(super) stdin: Option<bool>,
}

/// A terminal.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pty {
    pub(super) size: PtySize,
}

/// Its size: characters of a line, and lines.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct PtySize {
    pub(super) cols: u32,
    pub(super) rows: u32,
}

/// Another size of a command's terminal.
#[derive(Debug, Deserialize)]
pub(super) struct Update {
    pub(super) process: Selector,
    #[serde(default)]
    pub(super) pty: Pty,
}

/// What of it is told in lists, too.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) cmd: String,
    #[serde(default)]
    pub(super) args: Vec<String>,
    #[serde(default)]
    pub(super) envs: BTreeMap<String, String>,
    pub(super) cwd: Option<String>,
}

/// One of the commands that run.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Selector {
    Pid(u32),
    Tag(String),
}

/// A command by its selector.
#[derive(Debug, Deserialize)]
pub(super) struct Of {
    pub(super) process: Selector,
}

/// A signal, by name or by number.
#[derive(Debug, Deserialize)]
pub(super) struct Signal {
    pub(super) process: Selector,
    #[serde(default)]
    pub(super) signal: Value,
}

/// Input for a command, base64. A terminal's has another name.
#[derive(Debug, Deserialize)]
pub(super) struct Input {
    pub(super) stdin: Option<String>,
    pub(super) pty: Option<String>,
}

/// Input that comes at once.
#[derive(Debug, Deserialize)]
pub(super) struct SendInput {
    pub(super) process: Selector,
    pub(super) input: Input,
}

/// One message of a stream of input.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StreamInput {
    Start(Of),
    Data { input: Input },
    Keepalive {},
}
