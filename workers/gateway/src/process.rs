//! What an agent runs in: a place with its files, in which programs start. [`Sandboxed`] is one
//! behind walls; [`Plain`] is a folder and a process group, with none, for agents that you trust.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use async_trait::async_trait;

mod output;
mod plain;
mod sandboxed;

pub use plain::Plain;
pub use sandboxed::Sandboxed;

/// A program to start. It starts in its place's folder.
#[derive(Debug, Clone)]
pub struct Program {
    /// It and its arguments. `[A]`, 1 or more.
    pub argv: Vec<String>,
    /// All variables of its environment, but those that every program of the place has.
    pub env: BTreeMap<String, String>,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// The end of its output and of its errors, in the order in which they were read.
    pub output: String,
    /// The end of its output alone.
    pub printed: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "exit code {code}"),
            None => f.write_str("ended by a signal"),
        }
    }
}

/// Why a place does not do what it is asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// There is no such program, or it may not be started.
    #[error("failed to start program={program:?}: {reason}")]
    Start {
        /// Its name.
        program: String,
        /// What the system said.
        reason: String,
    },
    /// What programs left there is in the way: it says something of them.
    #[error("failed to go on with what the agent left: {0}")]
    InTheWay(String),
    /// The run asks for hosts that this worker does not allow.
    #[error("{0}")]
    Network(String),
    /// The place itself broke. It says nothing of programs.
    #[error("failed to run a program: {0}")]
    Broken(String),
}

/// Where the gateway listens.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// For programs of this machine.
    pub address: SocketAddr,
    /// For places that no network leads to.
    pub socket: PathBuf,
}

/// Makes places.
#[async_trait]
pub trait Walls: fmt::Debug + Send + Sync + 'static {
    /// Makes one, from which the gateway can be reached, and the hosts of these rules. Where there is no
    /// wall, others can be reached as well.
    ///
    /// # Errors
    /// It cannot be made, or these hosts may not be reached from this machine.
    async fn place(&self, gateway: &Gateway, network: &[String]) -> Result<Box<dyn Place>, PlaceError>;
}

/// Where the programs of one agent run. Dropping it ends all of it.
#[async_trait]
pub trait Place: Send + Sync {
    /// Its folder, as programs in it see it.
    fn folder(&self) -> &str;

    /// The gateway's URL, as programs in it see it. Without a path.
    fn gateway(&self) -> &str;

    /// Its variable `PATH`.
    fn path(&self) -> &str;

    /// Writes files, from relative path to text, in place of what stands in their way.
    ///
    /// # Errors
    /// They cannot be written.
    async fn write(&self, files: &BTreeMap<String, String>) -> Result<(), PlaceError>;

    /// Starts a program.
    ///
    /// # Errors
    /// It cannot be started.
    async fn start(&self, program: Program) -> Result<Box<dyn Running>, PlaceError>;

    /// Kills all that runs in it. Files stay.
    ///
    /// # Errors
    /// It is not known whether that was done.
    async fn clear(&self) -> Result<(), PlaceError>;

    /// Ends it. Returns when all that ran in it is gone.
    async fn end(&self);
}

/// A program that runs. Dropping it kills it, with all that it started.
#[async_trait]
pub trait Running: Send {
    /// Waits for its end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// It is not known how it ended.
    async fn wait(&mut self) -> Result<Ended, PlaceError>;

    /// Kills it, with all that it started. Returns when they are gone.
    async fn kill(&mut self);
}

/// Where a program may be that is asked for by this name: at its path, which starts in `folder` unless
/// it is absolute, or in a folder of `path`.
fn places_of(program: &str, folder: &str, path: &str) -> Vec<String> {
    match program {
        "" => Vec::new(),
        _ if program.starts_with('/') => vec![program.to_owned()],
        _ if program.contains('/') => vec![format!("{folder}/{program}")],
        _ => path.split(':').map(|at| format!("{at}/{program}")).collect(),
    }
}

/// The environment of any program in a place: nothing of the worker's.
fn variables(place: &dyn Place) -> BTreeMap<String, String> {
    let folder = place.folder();
    let all = [("PATH", place.path()), ("HOME", folder), ("TMPDIR", folder), ("LANG", "C.UTF-8")];
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}
