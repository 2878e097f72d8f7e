//! A peer's process, which takes requests and answers in lines of JSON. All that it starts is found
//! and killed: by its process group, and by a mark in the environment, which those inherit that
//! leave the group. Some programs write over their environment, so neither is enough.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::Sample;

/// The files of the peers. `harness.py` is imported by each.
const FILES: [(&str, &str); 5] = [
    ("harness.py", include_str!("harness.py")),
    ("ray_peer.py", include_str!("ray_peer.py")),
    ("celery_peer.py", include_str!("celery_peer.py")),
    ("celery_tasks.py", include_str!("celery_tasks.py")),
    ("transferqueue_peer.py", include_str!("transferqueue_peer.py")),
];
/// The variable that all of a peer's processes inherit. `harness.py` has the same.
const MARK: &str = "MILLRACE_PEER";
/// Seconds for a peer to start, and for what a measurement takes beyond its own time.
const PATIENCE: Duration = Duration::from_secs(240);
/// Bytes of a peer's output that are repeated when it fails.
const SAID_BYTES: usize = 400;

/// Kills all processes of a group and of a mark when dropped.
#[derive(Debug)]
struct Marked {
    mark: String,
    group: Option<Pid>,
}

impl Marked {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mark = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { mark, group: None }
    }

    /// Starts a command as the leader of the group, and with the mark.
    fn spawn(&mut self, command: &mut Command) -> std::io::Result<Child> {
        command.env(MARK, &self.mark).process_group(0).stdin(Stdio::piped()).kill_on_drop(true);
        let child = command.spawn()?;
        self.group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        Ok(child)
    }

    /// Processes that have the mark.
    fn processes(&self) -> Vec<Pid> {
        let mark = format!("{MARK}={}", self.mark);
        let has_mark = |folder: &Path| {
            let variables = std::fs::read(folder.join("environ")).unwrap_or_default();
            variables.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        let Ok(folders) = std::fs::read_dir("/proc") else { return Vec::new() };
        let folders = folders.filter_map(|folder| Some(folder.ok()?.path()));
        let marked = folders.filter(|folder| has_mark(folder));
        marked.filter_map(|folder| Some(Pid::from_raw(folder.file_name()?.to_str()?.parse().ok()?))).collect()
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // All of it may have ended by itself.
            let _ = killpg(group, Signal::SIGKILL);
        }
        // One that was starting another may have done so before it was killed.
        for _ in 0..10 {
            let processes = self.processes();
            if processes.is_empty() {
                return;
            }
            for process in processes {
                // It may have ended by itself.
                let _ = kill(process, Signal::SIGKILL);
            }
        }
    }
}

/// Installs a peer. What failed is the last line of what the program says.
///
/// # Errors
/// It cannot be installed.
pub(super) async fn install(setup: &Path, package: &str) -> anyhow::Result<()> {
    let mut mark = Marked::new();
    let mut command = Command::new(setup);
    command.arg(package).stdout(Stdio::piped()).stderr(Stdio::piped());
    let fail = || format!("failed to start {}", setup.display());
    let output = mark.spawn(&mut command).with_context(fail)?.wait_with_output().await?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let last = said.iter().flat_map(|text| text.lines()).rfind(|line| !line.trim().is_empty());
    bail!("{} {package} ended with {}: {}", setup.display(), output.status, last.unwrap_or("it says nothing"))
}

/// A peer. Dropping it ends it with all that it started.
pub(super) struct Peer {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    log: PathBuf,
    _mark: Marked,
    _child: Child,
    /// Dropped last, when nothing writes into it any more.
    _folder: TempDir,
}

#[derive(Deserialize)]
struct Rate {
    per_s: f64,
}

#[derive(Deserialize)]
struct Latency {
    p50_us: f64,
    p99_us: f64,
}

impl Peer {
    /// Starts a script in a folder of its own.
    ///
    /// # Errors
    /// There is no such Python, or the folder cannot be written.
    pub(super) fn start(python: &Path, script: &str, argument: &str) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        for (name, text) in FILES {
            std::fs::write(folder.path().join(name), text)?;
        }
        let log = folder.path().join("log");
        let python = std::path::absolute(python)?;
        let mut mark = Marked::new();
        let mut command = Command::new(&python);
        command
            .args([script, argument])
            .current_dir(folder.path())
            // It sends nobody a count of how it is used.
            .env("RAY_USAGE_STATS_ENABLED", "0")
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log)?);
        let child = mark.spawn(&mut command);
        let mut child = child.with_context(|| format!("failed to start {}", python.display()))?;
        let input = child.stdin.take().context("its input is piped")?;
        let output = BufReader::new(child.stdout.take().context("its output is piped")?);
        Ok(Self { input, output, log, _mark: mark, _child: child, _folder: folder })
    }

    /// Measures it once.
    ///
    /// # Errors
    /// It ends, or does not answer.
    pub(super) async fn sample(&mut self, in_flight: u32, time: Duration) -> anyhow::Result<Sample> {
        let tasks: Rate = self.ask("tasks", in_flight, time).await?;
        let lone: Latency = self.ask("lone", 1, time).await?;
        let chain: Rate = self.ask("chain", in_flight, time).await?;
        let Latency { p50_us, p99_us } = lone;
        Ok(Sample { tasks_per_s: tasks.per_s, p50_us, p99_us, chain_per_s: Some(chain.per_s) })
    }

    async fn ask<T: DeserializeOwned>(
        &mut self,
        measure: &str,
        most: u32,
        time: Duration,
    ) -> anyhow::Result<T> {
        let request = json!({"measure": measure, "in_flight": most, "seconds": time.as_secs_f64()});
        let answered = async {
            self.input.write_all(format!("{request}\n").as_bytes()).await?;
            let mut line = String::new();
            self.output.read_line(&mut line).await?;
            ensure!(!line.is_empty(), "the process ended");
            Ok(serde_json::from_str(&line)?)
        };
        let answered = timeout(PATIENCE + time * 2, answered).await.context("no answer in time").flatten();
        answered.with_context(|| format!("measure={measure}, and it says: {}", self.said()))
    }

    /// The end of what it printed, in one line.
    fn said(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let end = String::from_utf8_lossy(&text[text.len().saturating_sub(SAID_BYTES)..]).into_owned();
        end.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
