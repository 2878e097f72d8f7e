//! A process that is restarted when it ends, except while a fault keeps it down. It dies with this
//! one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use millrace_cli::tied::tied;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Pause before the restart of a process that ended by itself.
const PAUSE: Duration = Duration::from_millis(300);

/// What to start.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its name, and its log's.
    pub name: String,
    /// The `millrace` program, which ties other programs to this process.
    pub tie: PathBuf,
    /// The program.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where it writes.
    pub log: PathBuf,
}

/// A process that is kept alive. Dropping it ends it.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: watch::Receiver<Option<i32>>,
    down: watch::Sender<bool>,
    unasked: Arc<AtomicU64>,
    keeper: JoinHandle<()>,
}

impl Process {
    /// Starts it, and again whenever it ends.
    #[must_use]
    pub fn keep(program: Program) -> Self {
        let (pids, pid) = watch::channel(None);
        let (down, downs) = watch::channel(false);
        let unasked = Arc::<AtomicU64>::default();
        let name = program.name.clone();
        let keeper = tokio::spawn(keep(program, pids, downs, unasked.clone()));
        Self { name, pid, down, unasked, keeper }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until it runs.
    pub async fn up(&self) {
        // The keeper lives as long as this does.
        let _ = self.pid.clone().wait_for(Option::is_some).await;
    }

    /// How often it ended although nobody had killed it.
    #[must_use]
    pub fn ended_unasked(&self) -> u64 {
        self.unasked.load(Ordering::Relaxed)
    }

    /// Kills it as `kill -9` does and keeps it down until [`Process::start`].
    pub async fn kill(&self) {
        self.down.send_replace(true);
        self.signal(Signal::SIGKILL);
        let _ = self.pid.clone().wait_for(Option::is_none).await;
    }

    /// Asks it to leave as the system does, with SIGTERM, and keeps it down until [`Process::start`].
    pub async fn drain(&self) {
        self.down.send_replace(true);
        self.signal(Signal::SIGTERM);
        let _ = self.pid.clone().wait_for(Option::is_none).await;
    }

    /// Lets it start again.
    pub fn start(&self) {
        self.down.send_replace(false);
    }

    /// Pauses or resumes it.
    pub fn pause(&self, pause: bool) {
        self.signal(if pause { Signal::SIGSTOP } else { Signal::SIGCONT });
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = *self.pid.borrow() {
            // It may have ended by itself a moment ago.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// Consumes the ends of one process. Produces new starts. Waits for its end, and while it is kept down.
/// Ends when aborted, and the process with it. On failure: tries again after a pause.
async fn keep(
    program: Program,
    pids: watch::Sender<Option<i32>>,
    mut downs: watch::Receiver<bool>,
    unasked: Arc<AtomicU64>,
) {
    loop {
        if downs.wait_for(|down| !down).await.is_err() {
            return;
        }
        let (ended, asked) = match spawn(&program) {
            Ok(mut child) => {
                pids.send_replace(child.id().and_then(|pid| i32::try_from(pid).ok()));
                let status = child.wait().await;
                // Who waits for its end may let it start again at once.
                let asked = *downs.borrow();
                pids.send_replace(None);
                (status.map_or_else(|e| e.to_string(), |status| status.to_string()), asked)
            }
            Err(error) => (format!("{error:#}"), false),
        };
        if !asked {
            unasked.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(name = program.name, ended, "a process ended unasked and is started again");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn spawn(program: &Program) -> anyhow::Result<Child> {
    tied(&program.tie, &program.path, &program.log)?
        .args(&program.args)
        // What a developer has set must not lead it elsewhere; of the cores each process computes on one.
        .env_remove("NATS_URL")
        .env_remove("MILLRACE_OBJECTS")
        .env("OMP_NUM_THREADS", "1")
        .spawn()
        .with_context(|| format!("failed to start program={}", program.path.display()))
}
