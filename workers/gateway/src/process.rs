//! What an agent runs in. [`Plain`] is a process group in a folder, with no walls: for agents that
//! you trust.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Bytes of output that are kept: the last.
const OUTPUT_BYTES: usize = 16 * 1024;
/// Wait for output that a dead program's pipe still holds.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(2);

/// A program to start.
#[derive(Debug, Clone)]
pub struct Program {
    /// It and its arguments. `[A]`, 1 or more.
    pub argv: Vec<String>,
    /// All variables of its environment.
    pub env: BTreeMap<String, String>,
    /// Where it starts.
    pub folder: PathBuf,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// The end of its output and of its errors.
    pub output: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "exit code {code}"),
            None => f.write_str("ended by a signal"),
        }
    }
}

/// Why a program does not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// There is no such program, or it may not be started.
    #[error("failed to start program={program:?}: {reason}")]
    Start {
        /// Its name.
        program: String,
        /// What the system said.
        reason: String,
    },
    /// What it runs in broke. It says nothing of the program.
    #[error("failed to run a program: {0}")]
    Broken(String),
}

/// Starts programs.
#[async_trait]
pub trait Walls: fmt::Debug + Send + Sync + 'static {
    /// Starts one.
    ///
    /// # Errors
    /// It cannot be started.
    async fn start(&self, program: Program) -> Result<Box<dyn Running>, LaunchError>;
}

/// A program that runs. Dropping it kills it, with all that it started.
#[async_trait]
pub trait Running: Send {
    /// Waits for its end.
    ///
    /// # Errors
    /// It is not known how it ended.
    async fn wait(&mut self) -> Result<Ended, LaunchError>;

    /// Kills it, with all that it started. Returns when they are gone.
    async fn kill(&mut self);
}

/// Processes of this machine, as the worker's own user. With a guard, what an agent started ends with
/// the worker even if that is killed.
#[derive(Debug, Clone, Default)]
pub struct Plain {
    /// The program that starts another and outlives it, and its first arguments. Empty for none.
    pub guard: Vec<String>,
}

#[async_trait]
impl Walls for Plain {
    async fn start(&self, program: Program) -> Result<Box<dyn Running>, LaunchError> {
        let Program { argv, env, folder } = program;
        let named = argv.first().cloned().unwrap_or_default();
        if !is_found(&named, env.get("PATH").map_or("", String::as_str), &folder) {
            // A guard would find out too late to tell.
            return Err(LaunchError::Start { program: named, reason: "there is no such program".to_owned() });
        }
        let words: Vec<&String> = self.guard.iter().chain(&argv).collect();
        let mut command = Command::new(words.first().map(|word| word.as_str()).unwrap_or_default());
        command.args(&words[words.len().min(1)..]).env_clear().envs(&env).current_dir(&folder);
        let is_guarded = !self.guard.is_empty();
        // The guard ends what it started when its input ends, so it must not be killed itself.
        command.stdin(if is_guarded { Stdio::piped() } else { Stdio::null() }).kill_on_drop(!is_guarded);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command
            .spawn()
            .map_err(|error| LaunchError::Start { program: named, reason: error.to_string() })?;
        let output = Arc::new(Mutex::new(Vec::new()));
        let stdout = child.stdout.take().map(|pipe| tokio::spawn(keep(pipe, output.clone())));
        let stderr = child.stderr.take().map(|pipe| tokio::spawn(keep(pipe, output.clone())));
        let readers = stdout.into_iter().chain(stderr).collect();
        let group = child.id().and_then(|pid| i32::try_from(pid).ok()).filter(|_| !is_guarded);
        let guard = child.stdin.take();
        Ok(Box::new(PlainRunning { child, group, guard, output, readers }))
    }
}

/// Whether there is such a program: at its path, which may start in `folder`, or in a folder of `path`.
fn is_found(program: &str, path: &str, folder: &Path) -> bool {
    match program.contains('/') {
        true => folder.join(program).is_file(),
        false => path.split(':').any(|at| !program.is_empty() && Path::new(at).join(program).is_file()),
    }
}

struct PlainRunning {
    child: Child,
    /// The process group to kill; `None` with a guard.
    group: Option<i32>,
    /// The guard's input.
    guard: Option<ChildStdin>,
    /// The end of what it wrote.
    output: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

impl PlainRunning {
    fn kill_all(&mut self) {
        self.guard = None;
        if let Some(group) = self.group.take() {
            // It may have ended, with all its processes.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
    }
}

#[async_trait]
impl Running for PlainRunning {
    async fn wait(&mut self) -> Result<Ended, LaunchError> {
        let status = self.child.wait().await.map_err(|error| LaunchError::Broken(error.to_string()))?;
        let is_guarded = self.guard.is_some();
        // Others of its group may still write.
        self.kill_all();
        for reader in &mut self.readers {
            let _ = timeout(OUTPUT_PATIENCE, reader).await;
        }
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        // A guard passes a signal on as a shell does.
        let code = status.code().filter(|code| !is_guarded || *code < 128);
        Ok(Ended { code, output: String::from_utf8_lossy(&output).into_owned() })
    }

    async fn kill(&mut self) {
        self.kill_all();
        let _ = self.child.wait().await;
    }
}

impl Drop for PlainRunning {
    fn drop(&mut self) {
        self.kill_all();
        self.readers.iter().for_each(JoinHandle::abort);
    }
}

/// Reads to the end, and keeps the last bytes.
async fn keep(mut pipe: impl AsyncRead + Unpin, output: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        output.extend_from_slice(&buffer[..read]);
        if output.len() > 2 * OUTPUT_BYTES {
            let surplus = output.len() - OUTPUT_BYTES;
            output.drain(..surplus);
        }
    }
}
