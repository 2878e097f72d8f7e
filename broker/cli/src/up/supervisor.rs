//! Starts processes and restarts them when they die. A process that repeatedly dies right after its
//! start is given up, so that a mistake in its settings is reported instead of repeated for ever.
//! Processes start one after the other, so that a signal is heeded between two starts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::sync::Mutex as Turns;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::folder::write_whole;
use crate::follow::News;
use crate::tied::tied;

/// Back-off before the first restart; doubled with each quick death.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Maximal back-off.
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// A process that lived this long has started successfully.
const SETTLED: Duration = Duration::from_secs(5);
/// Deaths in a row, each before [`SETTLED`] and none by a signal, after which a process is given
/// up.
const QUICK_DEATHS: u32 = 6;
/// Characters of a log's line that are shown.
const SHOWN_CHARS: usize = 300;
/// Bytes at the end of a log in which that line is looked for. A backtrace may follow an error.
const TAIL_BYTES: u64 = 65_536;

/// A process to be kept alive.
#[derive(Debug, Clone)]
pub(super) struct Role {
    /// Its name: its log file, and its key in `pids.json`.
    pub(super) name: String,
    /// The program.
    pub(super) program: PathBuf,
    /// Its arguments.
    pub(super) args: Vec<String>,
    /// Environment variables to add.
    pub(super) env: Vec<(&'static str, String)>,
    /// Time to end after SIGTERM, before it is killed.
    pub(super) grace: Duration,
    /// It may end by itself, successfully: then it has left, and is not restarted.
    pub(super) may_leave: bool,
}

/// Keeps processes alive.
pub(super) struct Supervisor {
    shared: Arc<SupervisorState>,
    running: Mutex<Vec<RunningProcess>>,
}

struct RunningProcess {
    name: String,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

struct SupervisorState {
    logs: PathBuf,
    pids_file: PathBuf,
    pids: Mutex<BTreeMap<String, u32>>,
    /// Who has it starts a process. To start one blocks a thread of the runtime.
    turns: Turns<()>,
    restarts: Arc<AtomicU64>,
    news: UnboundedSender<News>,
}

impl Supervisor {
    /// Logs go to the folder `logs`, process ids to `pids_file`.
    pub(super) fn new(logs: PathBuf, pids_file: PathBuf, news: UnboundedSender<News>) -> Self {
        let own = ("up".to_owned(), std::process::id());
        let pids = Mutex::new(BTreeMap::from([own]));
        let (turns, restarts) = (Turns::default(), Arc::default());
        let shared = SupervisorState { logs, pids_file, pids, turns, restarts, news };
        Self { shared: Arc::new(shared), running: Mutex::default() }
    }

    /// Starts a process and keeps it alive.
    pub(super) fn keep(&self, role: Role) {
        let stop = CancellationToken::new();
        let (name, shared) = (role.name.clone(), Arc::clone(&self.shared));
        let task = tokio::spawn(keep_alive(role, stop.clone(), shared));
        self.running().push(RunningProcess { name, stop, task });
    }

    /// Asks the processes that `which` names to end, together, and waits until they have.
    pub(super) async fn stop(&self, which: impl Fn(&str) -> bool) {
        let stopping: Vec<RunningProcess> =
            self.running().extract_if(.., |process| which(&process.name)).collect();
        stopping.iter().for_each(|process| process.stop.cancel());
        for process in stopping {
            // A panic there has been reported. The process is tied to this one and will not remain.
            let _ = process.task.await;
        }
    }

    /// The names of the processes that are kept alive and have not left.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let mut running = self.running();
        running.retain(|process| !process.task.is_finished());
        running.iter().map(|process| process.name.clone()).collect()
    }

    fn running(&self) -> MutexGuard<'_, Vec<RunningProcess>> {
        // A panic cannot leave it half changed.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restarts of processes.
    pub(super) fn restarts(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.restarts)
    }
}

/// Consumes: deaths of one process. Produces: restarts, news, `pids.json`. Waits for: its turn, the
/// process or `stop`. Unblocked by: any of them. On failure: restarts, or gives up after
/// [`QUICK_DEATHS`].
async fn keep_alive(role: Role, stop: CancellationToken, shared: Arc<SupervisorState>) {
    let (mut quick_deaths, mut wait) = (0, FIRST_WAIT);
    loop {
        let turn = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            turn = shared.turns.lock() => turn,
        };
        let (began, written) = (Instant::now(), shared.log_bytes(&role));
        let started = start(&role, &shared.logs);
        // The runtime looks for signals when no task is ready, so the others wait on.
        yield_now().await;
        drop(turn);
        let how = match started {
            Ok(mut child) => {
                shared.set_pid(&role.name, child.id());
                let ended = tokio::select! {
                    status = child.wait() => Some(status),
                    () = stop.cancelled() => None,
                };
                let Some(status) = ended else {
                    end(&mut child, role.grace).await;
                    shared.set_pid(&role.name, None);
                    return;
                };
                shared.set_pid(&role.name, None);
                if role.may_leave && status.as_ref().is_ok_and(ExitStatus::success) {
                    return;
                }
                Death::of(status)
            }
            Err(e) => Death { message: format!("{e:#}"), by_signal: false },
        };
        if began.elapsed() >= SETTLED || how.by_signal {
            (quick_deaths, wait) = (0, FIRST_WAIT);
        } else {
            quick_deaths += 1;
        }
        if shared.report_death(&role, &how, written, quick_deaths >= QUICK_DEATHS) {
            return;
        }
        tokio::select! {
            () = sleep(wait) => wait = (wait * 2).min(LONGEST_WAIT),
            () = stop.cancelled() => return,
        }
    }
}

struct Death {
    message: String,
    by_signal: bool,
}

impl Death {
    fn of(status: std::io::Result<ExitStatus>) -> Self {
        let signal = status.as_ref().ok().and_then(ExitStatus::signal);
        let message = status.map_or_else(|e| e.to_string(), |status| status.to_string());
        Self { message, by_signal: signal.is_some() }
    }
}

impl SupervisorState {
    fn set_pid(&self, name: &str, pid: Option<u32>) {
        let mut pids = self.pids.lock().unwrap_or_else(PoisonError::into_inner);
        match pid {
            Some(pid) => pids.insert(name.to_owned(), pid),
            None => pids.remove(name),
        };
        let text = serde_json::to_string_pretty(&*pids).expect("names and numbers are JSON") + "\n";
        // The file is only for people and tests: a full disk must not end the run.
        if let Err(error) = write_whole(&self.pids_file, &text) {
            tracing::warn!(%error, "process ids not written");
        }
    }

    fn log(&self, role: &Role) -> PathBuf {
        self.logs.join(format!("{}.log", role.name))
    }

    /// Bytes of the process's log so far; 0 where there is none.
    fn log_bytes(&self, role: &Role) -> u64 {
        std::fs::metadata(self.log(role)).map_or(0, |log| log.len())
    }

    /// Reports the death of a process that wrote its log from the byte `written` on. Returns whether
    /// it is given up.
    fn report_death(&self, role: &Role, death: &Death, written: u64, give_up: bool) -> bool {
        let (name, log) = (&role.name, self.log(role));
        let tail = telling_line(&log, written).map_or(String::new(), |line| format!("\n  {line}"));
        let news = if give_up {
            News::Fatal(format!(
                "{name} ended {QUICK_DEATHS} times right after its start ({}); see {}{tail}",
                death.message,
                log.display()
            ))
        } else {
            self.restarts.fetch_add(1, Ordering::Relaxed);
            let tail = if death.by_signal { "" } else { &tail };
            News::Line(format!("{name} ended ({}) and is restarted{tail}", death.message))
        };
        // There is no receiver during shutdown.
        let _ = self.news.send(news);
        give_up
    }
}

/// Starts a process, tied to the thread that starts it (one of the runtime's, which live as long as
/// this process), in a process group of its own so that a Ctrl-C in the terminal reaches it only by
/// way of the supervisor.
fn start(role: &Role, logs: &Path) -> Result<Child> {
    let own = std::env::current_exe().context("failed to find this program")?;
    tied(&own, &role.program, &logs.join(format!("{}.log", role.name)))?
        .args(&role.args)
        .envs(role.env.iter().map(|(name, value)| (name, value)))
        .spawn()
        .with_context(|| format!("failed to start program={}", role.program.display()))
}

/// Asks a process to end, and kills it after `grace`.
async fn end(child: &mut Child, grace: Duration) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // It may have ended meanwhile, but it was not waited for yet, so its id is not reused.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if timeout(grace, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// The line that best tells why a process died, of what it wrote to its log from the byte `written`
/// on: the first error, else the last line. The last line of clap says only how to get help.
pub(super) fn telling_line(log: &Path, written: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let end = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(written.max(end.saturating_sub(TAIL_BYTES)))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes).ok()?;
    let tail = String::from_utf8_lossy(&bytes);
    let is_error = |line: &&str| line.starts_with("error:") || line.starts_with("Error:");
    let last = || tail.lines().rev().find(|line| !line.trim().is_empty());
    let line = tail.lines().find(is_error).or_else(last)?;
    Some(line.chars().take(SHOWN_CHARS).collect())
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[test]
    fn the_error_tells_more_than_the_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("worker.log");
        let told = |text: &str, written| {
            std::fs::write(&log, text).unwrap();
            telling_line(&log, written)
        };
        assert_eq!(telling_line(&log, 0), None, "there is no log");
        let clap = "error: unexpected argument '--x' found\n\nFor more information, try '--help'.\n";
        assert_eq!(told(clap, 0).as_deref(), Some("error: unexpected argument '--x' found"));
        assert_eq!(told("INFO begins\nError: no server\n\n", 0).as_deref(), Some("Error: no server"));
        assert_eq!(told("one\ntwo\n \n", 0).as_deref(), Some("two"));
        assert_eq!(told("Error: before\nError: now\n", 14).as_deref(), Some("Error: now"));
        assert_eq!(told("Error: before\n", 14), None, "it wrote nothing");
        let long = format!("Error: long ago\n{}\nthe end\n", "x".repeat(70_000));
        assert_eq!(told(&long, 0).as_deref(), Some("the end"));
    }

    #[tokio::test]
    async fn a_process_that_is_stopped_before_its_turn_is_never_started() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().to_owned();
        let supervisor = Supervisor::new(logs, folder.path().join("pids.json"), unbounded_channel().0);
        let others_turn = supervisor.shared.turns.lock().await;
        for number in 0..1_000 {
            supervisor.keep(Role {
                name: format!("worker-{number}"),
                program: "/bin/true".into(),
                args: vec![],
                env: vec![],
                grace: FIRST_WAIT,
                may_leave: false,
            });
        }
        timeout(SETTLED, supervisor.stop(|_| true)).await.unwrap();
        drop(others_turn);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "a process was started");
    }
}
