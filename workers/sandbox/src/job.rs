//! What travels between a worker and `millrace-sandbox`: a line of JSON in, lines of JSON out.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Programs to run one after another, each in a sandbox of its own: no run can plant anything for
/// the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Written into the folder of each run before it begins.
    pub files: Vec<File>,
    /// The runs, in order.
    pub runs: Vec<Run>,
    /// Bounds of each run.
    pub limits: Limits,
    /// Folders that may be read, besides those of the system's programs. Absolute.
    pub read: Vec<PathBuf>,
    /// What may be missing on this machine. Nothing runs where anything else is.
    pub may_lack: Vec<Protection>,
}

impl Job {
    /// Bytes of the files and of the longest input.
    #[must_use]
    pub fn text_bytes(&self) -> u64 {
        let files: usize = self.files.iter().map(|file| file.text.len()).sum();
        let stdin = self.runs.iter().map(|run| run.stdin.len()).max().unwrap_or(0);
        (files + stdin) as u64
    }

    /// Bytes of the longest file or input.
    #[must_use]
    pub fn longest_text(&self) -> u64 {
        let files = self.files.iter().map(|file| file.text.len());
        files.chain(self.runs.iter().map(|run| run.stdin.len())).max().unwrap_or(0) as u64
    }
}

/// A file of a run's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Its name; no path.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// One start of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Path and arguments. `[N]`, 1 or more.
    pub command: Vec<String>,
    /// What it reads from its standard input.
    pub stdin: String,
}

/// Bounds of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Milliseconds from start to end.
    pub wall_ms: u64,
    /// Milliseconds of processor time of one process, rounded up to seconds.
    pub cpu_ms: u64,
    /// Bytes of memory: of one process's address space, and of all processes' private pages and
    /// shared mappings.
    pub memory_bytes: u64,
    /// Bytes of a run's files.
    pub disk_bytes: u64,
    /// Bytes that a run may write to its standard output and error.
    pub output_bytes: u64,
    /// Processes and threads at once.
    pub processes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            wall_ms: 5_000,
            cpu_ms: 5_000,
            memory_bytes: 512 * MIB,
            disk_bytes: 64 * MIB,
            output_bytes: MIB,
            processes: 16,
        }
    }
}

/// A wall. Namespaces are not among them: nothing runs without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// Which files may be read and written, a second time after the mounts.
    Landlock,
    /// Which calls of the kernel may be made.
    Seccomp,
}

/// What the sandbox says, a line each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The walls stand, but for these.
    Ready(Vec<Protection>),
    /// The program's first instruction may have run: whatever fails from here on is its result.
    Started,
    /// The next run has ended.
    Ran(Ran),
    /// There is no sandbox, for this reason. The last line.
    Failed(String),
}

/// What became of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// How it ended.
    pub end: End,
    /// What it wrote to its standard output; what is no UTF-8 is replaced.
    pub stdout: String,
    /// The end of what it wrote to its standard error.
    pub stderr: String,
    /// Milliseconds from start to end.
    pub wall_ms: u64,
    /// Milliseconds of processor time, of all its processes.
    pub cpu_ms: u64,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// By itself, with this code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// It was killed: `wall_ms` were over.
    Wall,
    /// It was killed: `cpu_ms` were used up.
    Cpu,
    /// It was killed: it wrote more than `output_bytes`.
    Output,
    /// It was killed: its processes had more than `memory_bytes`.
    Memory,
    /// The sandbox itself ended under it.
    Broke,
}

impl Ran {
    /// A run whose sandbox tells nothing more of it.
    pub(crate) fn cut_off(end: End, reason: String, wall_ms: u64) -> Self {
        Self { end, stdout: String::new(), stderr: reason, wall_ms, cpu_ms: 0 }
    }
}

impl End {
    /// The code as shells have it: 124 where it was killed for its time, 137 for any other bound.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Exit(code) => code,
            Self::Signal(signal) => 128 + signal,
            Self::Wall => 124,
            Self::Cpu | Self::Output | Self::Memory | Self::Broke => 137,
        }
    }

    /// For people: what ended it.
    #[must_use]
    pub fn reason(self) -> String {
        match self {
            Self::Exit(code) => format!("it ended with code={code}"),
            Self::Signal(signal) => format!("it ended by signal={signal}"),
            Self::Wall => "it took longer than wall_ms".to_owned(),
            Self::Cpu => "it used more processor time than cpu_ms".to_owned(),
            Self::Output => "it wrote more than output_kib".to_owned(),
            Self::Memory => "it used more memory than memory_mib".to_owned(),
            Self::Broke => "the sandbox ended under it".to_owned(),
        }
    }
}
