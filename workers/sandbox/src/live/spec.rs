//! What a caller asks of a long-lived sandbox.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::job::End;
use crate::live::wire::Fault;

/// Layers of one file system at most; each snapshot adds one. The kernel's bound is 500, and their
/// names have to fit into one page.
pub(crate) const MAX_LAYERS: usize = 200;
/// Forwarded ports of a sandbox at most.
const MAX_FORWARDS: usize = 16;
/// Folders to read of a sandbox at most.
const MAX_READ: usize = 64;
/// Bytes of a command's arguments and environment together. The kernel takes a quarter of a stack.
const MAX_COMMAND_BYTES: usize = 1024 * 1024;

/// How a sandbox is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Folders and files of the machine that may be read, at the same place within. Absolute. A
    /// sandbox whose files come from an image needs none of the system's: see `system`.
    pub read: Vec<PathBuf>,
    /// Whether the machine's own programs (`/usr`, `/bin`, `/lib*`) are there, to read.
    pub system: bool,
    /// Ports on the sandbox's loopback, the only network.
    pub forward: Vec<Forward>,
    /// Bounds.
    pub bounds: Bounds,
    /// Environment of every process, over the usual one.
    pub env: BTreeMap<String, String>,
    /// Walls without which the sandbox is refused. Namespaces always are among them.
    pub needs: Vec<Wall>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            read: Vec::new(),
            system: true,
            forward: Vec::new(),
            bounds: Bounds::default(),
            env: BTreeMap::new(),
            needs: vec![Wall::Landlock, Wall::Seccomp],
        }
    }
}

/// A port on the sandbox's `127.0.0.1` that leads to a Unix socket outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    /// The port within.
    pub port: u16,
    /// The socket outside. It is connected to with the caller's own rights.
    pub to: PathBuf,
}

/// Bounds of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Bytes of memory: private pages and shared mappings of all processes. Looked at from outside;
    /// beyond it all processes of the sandbox are killed, and their files stay.
    pub memory_bytes: u64,
    /// Bytes of files written since the last snapshot, which are in memory as well.
    pub disk_bytes: u64,
    /// Files written since the last snapshot.
    pub files: u32,
    /// Processes and threads at once. Each command counts one more for its supervisor.
    pub processes: u64,
    /// Open files of a process.
    pub open_files: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            memory_bytes: 2_048 * MIB,
            disk_bytes: 1_024 * MIB,
            files: 262_144,
            processes: 512,
            open_files: 1_024,
        }
    }
}

/// What separates a sandbox from the machine, besides namespaces and limits, which are always there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    /// No file beyond the sandbox's tree, no signal and no abstract socket beyond its processes, by
    /// other code of the kernel than namespaces.
    Landlock,
    /// Only the system calls that programs need.
    Seccomp,
    /// Its own `/proc`. Without it programs see none, and a timeout kills all processes of the
    /// sandbox instead of one command's.
    Proc,
    /// Stacked file systems. Without them there are neither snapshots nor forks.
    Overlay,
}

/// A command to run in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Program and arguments. `[N]`, 1 or more.
    pub argv: Vec<String>,
    /// Environment, over the sandbox's.
    pub env: BTreeMap<String, String>,
    /// Where it runs. Default: the home folder.
    pub cwd: Option<String>,
    /// Milliseconds until everything that it started is killed. `None`: no limit.
    pub timeout_ms: Option<u64>,
    /// Bytes that it may write; beyond them everything that it started is killed.
    pub output_bytes: u64,
    /// The terminal that it has in place of its three streams. What it writes there is told as its
    /// standard output. `None`: pipes.
    pub terminal: Option<Terminal>,
}

/// A terminal of a command, which is its controlling one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// Its size.
    pub size: TerminalSize,
    /// Whether it writes what is typed until a program says otherwise.
    pub echo: bool,
}

/// Characters of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Of a line.
    pub columns: u16,
    /// Lines.
    pub rows: u16,
}

impl Exec {
    /// A command with the usual bounds: ten minutes, 16 MiB of output.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            cwd: None,
            timeout_ms: Some(600_000),
            output_bytes: 16 * 1024 * 1024,
            terminal: None,
        }
    }

    /// A line for `bash`.
    #[must_use]
    pub fn shell(line: &str) -> Self {
        Self::new(["/bin/bash", "-c", line])
    }

    /// The same with this timeout.
    #[must_use]
    pub fn timeout_ms(self, timeout_ms: u64) -> Self {
        Self { timeout_ms: Some(timeout_ms), ..self }
    }

    /// The same in this folder.
    #[must_use]
    pub fn cwd(self, cwd: &str) -> Self {
        Self { cwd: Some(cwd.to_owned()), ..self }
    }

    pub(crate) fn check(&self) -> Result<(), LiveError> {
        let wrong =
            |field, value: &str, remedy| LiveError::Invalid { field, value: value.to_owned(), remedy };
        if self.argv.first().is_none_or(String::is_empty) {
            return Err(wrong("argv", &format!("{:?}", self.argv), "name a program first"));
        }
        let env = self.env.iter().flat_map(|(name, value)| [name, value]);
        let all: Vec<&String> = self.argv.iter().chain(env).chain(&self.cwd).collect();
        if let Some(text) = all.iter().find(|text| text.contains('\0')) {
            return Err(wrong("argv, env or cwd", &format!("{text:?}"), "leave out the NUL byte"));
        }
        if let Some(name) = self.env.keys().find(|name| name.is_empty() || name.contains('=')) {
            return Err(wrong("env", name, "a name is not empty and has no `=`"));
        }
        // Each ends with a NUL byte, and empty ones are no less to send.
        let bytes: usize = all.iter().map(|text| text.len() + 1).sum();
        if bytes > MAX_COMMAND_BYTES {
            let remedy = "write long text to a file, or to the standard input";
            return Err(wrong("argv and env", &format!("{bytes} bytes"), remedy));
        }
        Ok(())
    }
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub end: End,
    /// What it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error.
    pub stderr: Vec<u8>,
    /// Milliseconds from start to end.
    pub wall_ms: u64,
}

impl Output {
    /// Its code as shells have it, see [`End::code`].
    #[must_use]
    pub const fn code(&self) -> i32 {
        self.end.code()
    }
}

/// Why something could not be done in a long-lived sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LiveError {
    /// The caller asked for what cannot be.
    #[error("failed to take {field}={value}: {remedy}")]
    Invalid {
        /// Which part of the request.
        field: &'static str,
        /// What it was.
        value: String,
        /// What to write instead.
        remedy: &'static str,
    },
    /// `millrace-sandbox` does not start.
    #[error("failed to start {program:?}: {reason}; it belongs beside millrace-worker")]
    Start {
        /// Its path.
        program: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The machine lacks something.
    #[error("failed to set up a sandbox: {0}")]
    Refused(String),
    /// A command does not start where it should, or nothing answers on a port.
    #[error("{0}")]
    Failed(String),
    /// A file of the sandbox.
    #[error("{0}")]
    File(#[from] Fault),
    /// It has ended, or ended in the middle of this.
    #[error("the sandbox has ended")]
    Ended,
}

impl LiveError {
    /// `program` does not start.
    pub(crate) fn start(program: &Path, reason: &dyn Display) -> Self {
        Self::Start { program: program.to_owned(), reason: reason.to_string() }
    }
}

impl Spec {
    pub(crate) fn check(&self) -> Result<(), LiveError> {
        let wrong = |field, value: String, remedy| Err(LiveError::Invalid { field, value, remedy });
        for path in &self.read {
            let climbs = path.components().any(|part| matches!(part, std::path::Component::ParentDir));
            if !path.is_absolute() || climbs || path.parent().is_none() {
                let remedy = "name an absolute path below / without `..`";
                return wrong("read", path.display().to_string(), remedy);
            }
        }
        let ports: std::collections::BTreeSet<u16> =
            self.forward.iter().map(|forward| forward.port).collect();
        if ports.len() < self.forward.len() || ports.contains(&0) || ports.len() > MAX_FORWARDS {
            return wrong("forward", format!("{ports:?}"), "at most 16 ports, none twice, none 0");
        }
        if self.read.len() > MAX_READ {
            return wrong("read", format!("{} folders", self.read.len()), "at most 64 folders");
        }
        let bounds = &self.bounds;
        for (field, value) in [
            ("bounds.memory_bytes", bounds.memory_bytes),
            ("bounds.disk_bytes", bounds.disk_bytes),
            ("bounds.files", bounds.files.into()),
            ("bounds.processes", bounds.processes),
            ("bounds.open_files", bounds.open_files),
        ] {
            // A file system needs a few pages and names for itself.
            let least = if field == "bounds.disk_bytes" { 64 * 1024 } else { 16 };
            if value < least {
                return wrong(field, value.to_string(), "at least 16, and 65536 for disk_bytes");
            }
        }
        Exec { env: self.env.clone(), ..Exec::new(["true"]) }.check()
    }
}
