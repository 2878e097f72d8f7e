//! What travels between the owner of a sandbox and the first process within: frames of MessagePack,
//! each behind its length.

use std::io::{Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::job::End;
use crate::live::spec::{Exec, Spec, TerminalSize, Wall};

/// Bytes of a frame at most. A longer one ends the connection.
const FRAME_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a file that travel at once.
pub const PIECE_BYTES: usize = 512 * 1024;
/// Bytes of a path at most, as the kernel has it.
pub const PATH_BYTES: usize = 4096;
/// Connections of a forwarded port at once; more wait. Each has two open files in the owner's process, which
/// are those of all its sandboxes.
pub const CONNECTIONS: u16 = 128;

/// How a sandbox is built: the same bytes for the two stages within.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// What the caller asks.
    pub spec: Spec,
    /// Frozen layers, topmost first. `[L]`.
    pub lower: Vec<u64>,
    /// The layer that is written to.
    pub upper: u64,
    /// Where the sockets of the spec's forwarded ports are, from outside. `[F]`.
    pub sockets: Vec<PathBuf>,
}

/// To the keeper of layers, a line of JSON each; one answer each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToKeeper {
    /// Make an empty layer.
    Make {
        /// Its number.
        layer: u64,
        /// Bytes of its files.
        bytes: u64,
        /// Number of its files.
        files: u32,
    },
    /// Show a folder of the machine as a layer that is not written to.
    Show {
        /// Its number.
        layer: u64,
        /// The folder, whose `u` has the files.
        folder: PathBuf,
    },
    /// Remove a layer. What still runs on it keeps it until its end.
    Drop {
        /// Its number.
        layer: u64,
    },
}

/// From the keeper of layers, a line of JSON each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromKeeper {
    /// It is there, or has done what it was asked.
    Done,
    /// It has not.
    Failed(String),
}

/// To the first process within.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToInit {
    /// Start a command under this number.
    Start {
        /// Numbers its messages. None is used twice.
        id: u64,
        /// The command.
        exec: Exec,
    },
    /// Bytes for its standard input.
    Input {
        /// Its number.
        id: u64,
        /// The bytes; none: the input ends.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Another size for a command's terminal.
    Resize {
        /// Its number.
        id: u64,
        /// The size.
        size: TerminalSize,
    },
    /// Kill all that a command started.
    Kill {
        /// Its number.
        id: u64,
    },
    /// Send a signal to a command's own process.
    Signal {
        /// Its number.
        id: u64,
        /// The signal's number.
        signal: i32,
    },
    /// Kill every process of the sandbox; commands end with this.
    KillAll {
        /// Why.
        end: End,
    },
    /// Do something with files.
    File {
        /// Numbers the answer.
        id: u64,
        /// What.
        ask: FileAsk,
    },
}

/// From the processes within.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromInit {
    /// The namespaces are there; the sandbox waits for its `Build`.
    Warm,
    /// It can be used, without these walls.
    Ready {
        /// The walls that the machine lacks.
        lacks: Vec<Wall>,
    },
    /// There is no sandbox, for this reason. The last message.
    Failed(String),
    /// A command runs.
    Started {
        /// Its number.
        id: u64,
    },
    /// A command does not start.
    Refused {
        /// Its number.
        id: u64,
        /// Why.
        reason: String,
    },
    /// A command wrote something.
    Wrote {
        /// Its number.
        id: u64,
        /// Where.
        stream: Stream,
        /// What.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// A command ended.
    Ended {
        /// Its number.
        id: u64,
        /// How.
        end: End,
        /// Milliseconds from start to end.
        wall_ms: u64,
    },
    /// What came of a question about files.
    File {
        /// Its number.
        id: u64,
        /// The answer.
        answer: Result<FileAnswer, Fault>,
    },
}

/// One of the two streams of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Something to do with files. Paths are absolute, as seen from within.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileAsk {
    /// Read a piece.
    Read {
        /// The file.
        path: String,
        /// Where the piece begins.
        offset: u64,
        /// Its length at most.
        most: u64,
    },
    /// Write a piece.
    Write {
        /// The file.
        path: String,
        /// The piece.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// Whether it comes behind what is there; else it replaces that.
        append: bool,
    },
    /// Remove a file, or a folder with all that is in it.
    Remove {
        /// Which.
        path: String,
    },
    /// Say what is in a folder.
    List {
        /// Which.
        path: String,
    },
    /// Say what a path is.
    Look {
        /// Which.
        path: String,
    },
    /// Make a folder, and those above it.
    MakeFolder {
        /// Which.
        path: String,
    },
    /// Move something.
    Move {
        /// From here.
        from: String,
        /// To here.
        to: String,
    },
    /// Stop all processes, and begin nothing that may change a file, until `Thaw`.
    Freeze,
    /// Let all of it go on.
    Thaw,
}

impl FileAsk {
    /// The paths in it, which clients name.
    pub(crate) fn paths(&self) -> Vec<&str> {
        match self {
            Self::Read { path, .. }
            | Self::Write { path, .. }
            | Self::Remove { path }
            | Self::List { path }
            | Self::Look { path }
            | Self::MakeFolder { path } => vec![path],
            Self::Move { from, to } => vec![from, to],
            Self::Freeze | Self::Thaw => Vec::new(),
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileAnswer {
    /// It is done.
    Done,
    /// Bytes of a file; fewer than asked at its end alone.
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// What is in a folder, by name.
    Entries(Vec<Entry>),
}

/// Something in a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name, without folders; what is no UTF-8 is replaced.
    pub name: String,
    /// What it is.
    pub kind: FileKind,
    /// Bytes.
    pub bytes: u64,
    /// Who may do what, as the system's numbers have it.
    pub mode: u32,
    /// When it was changed, in seconds of the year 1970.
    pub changed_s: i64,
    /// Where a symlink leads.
    pub leads_to: Option<String>,
}

/// What something in a folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A symlink.
    Symlink,
    /// A pipe, socket or device.
    Other,
}

/// Why something was not done with a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("failed to {what} {path:?}: {reason}")]
pub struct Fault {
    /// What was to be done.
    pub what: String,
    /// With which path.
    pub path: String,
    /// Why not.
    pub reason: String,
    /// Whether there is nothing under this path.
    pub missing: bool,
}

fn too_long(bytes: usize) -> std::io::Error {
    std::io::Error::other(format!("a frame of {bytes} bytes; at most {FRAME_BYTES}"))
}

/// The bytes of a frame.
///
/// # Errors
/// It is longer than its receiver takes.
pub fn encode(message: &impl Serialize) -> std::io::Result<Vec<u8>> {
    let body = rmp_serde::to_vec(message).map_err(std::io::Error::other)?;
    match u32::try_from(body.len()) {
        Ok(length) if body.len() <= FRAME_BYTES => Ok([&length.to_be_bytes()[..], &body].concat()),
        _ => Err(too_long(body.len())),
    }
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> std::io::Result<T> {
    rmp_serde::from_slice(body).map_err(std::io::Error::other)
}

fn length_of(head: [u8; 4]) -> std::io::Result<usize> {
    let length = u32::from_be_bytes(head) as usize;
    if length > FRAME_BYTES { Err(too_long(length)) } else { Ok(length) }
}

/// Reads one frame, and no byte more.
///
/// # Errors
/// The connection ended, or holds something else.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> std::io::Result<T> {
    let mut head = [0; 4];
    from.read_exact(&mut head)?;
    let mut body = vec![0; length_of(head)?];
    from.read_exact(&mut body)?;
    decode(&body)
}

/// Writes one frame.
///
/// # Errors
/// It is too long, or the connection ended.
pub fn write(to: &mut impl Write, message: &impl Serialize) -> std::io::Result<()> {
    to.write_all(&encode(message)?)?;
    to.flush()
}

/// Reads one frame; not to be dropped in the middle.
///
/// # Errors
/// The connection ended, or holds something else.
pub async fn receive<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<T> {
    let mut head = [0; 4];
    from.read_exact(&mut head).await?;
    let mut body = vec![0; length_of(head)?];
    from.read_exact(&mut body).await?;
    decode(&body)
}
