//! No walls: a temporary folder, and processes of this machine as the worker's own user.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::output::Written;
use super::{Ended, Gateway, Place, PlaceError, Program, Running, Walls, places_of, variables};
use crate::folder;

/// Wait for output that a dead program's pipe still holds.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(2);

/// Processes of this machine, as the worker's own user. With a guard, what an agent started ends with
/// the worker even if that is killed.
#[derive(Debug, Clone, Default)]
pub struct Plain {
    /// The program that starts another and outlives it, and its first arguments. Empty for none.
    pub guard: Vec<String>,
}

#[async_trait]
impl Walls for Plain {
    async fn place(&self, gateway: &Gateway, _network: &[String]) -> Result<Box<dyn Place>, PlaceError> {
        let broken = |error| PlaceError::Broken(format!("failed to make the agent's folder: {error}"));
        let folder = tempfile::Builder::new().prefix("millrace-agent-").tempdir().map_err(broken)?;
        Ok(Box::new(PlainPlace {
            name: folder.path().to_string_lossy().into_owned(),
            folder,
            gateway: format!("http://{}", gateway.address),
            path: std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned()),
            guard: self.guard.clone(),
        }))
    }
}

/// A folder. What runs in it ends with its program, so that there is nothing else to end.
struct PlainPlace {
    folder: TempDir,
    name: String,
    gateway: String,
    path: String,
    guard: Vec<String>,
}

#[async_trait]
impl Place for PlainPlace {
    fn folder(&self) -> &str {
        &self.name
    }

    fn gateway(&self) -> &str {
        &self.gateway
    }

    fn path(&self) -> &str {
        &self.path
    }

    async fn write(&self, files: &BTreeMap<String, String>) -> Result<(), PlaceError> {
        let broken = |error| PlaceError::Broken(format!("failed to place files: {error}"));
        folder::write(self.folder.path(), files).map_err(broken)
    }

    async fn start(&self, program: Program) -> Result<Box<dyn Running>, PlaceError> {
        let Program { argv, env } = program;
        let env: BTreeMap<String, String> = variables(self).into_iter().chain(env).collect();
        let folder = self.folder.path();
        if !folder.is_dir() {
            return Err(PlaceError::InTheWay("its folder is gone".to_owned()));
        }
        let named = argv.first().cloned().unwrap_or_default();
        let path = env.get("PATH").map_or("", String::as_str);
        if !places_of(&named, &self.name, path).iter().any(|place| Path::new(place).is_file()) {
            // A guard would find out too late to tell.
            return Err(PlaceError::Start { program: named, reason: "there is no such program".to_owned() });
        }
        let words: Vec<&String> = self.guard.iter().chain(&argv).collect();
        let mut command = Command::new(words.first().map(|word| word.as_str()).unwrap_or_default());
        command.args(&words[words.len().min(1)..]).env_clear().envs(&env).current_dir(folder);
        let is_guarded = !self.guard.is_empty();
        // The guard ends what it started when its input ends, so it must not be killed itself.
        command.stdin(if is_guarded { Stdio::piped() } else { Stdio::null() }).kill_on_drop(!is_guarded);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command
            .spawn()
            .map_err(|error| PlaceError::Start { program: named, reason: error.to_string() })?;
        let output: Arc<Mutex<Written>> = Arc::default();
        let (printed, complained) = (Arc::clone(&output), Arc::clone(&output));
        let stdout = child.stdout.take().map(|pipe| tokio::spawn(keep(pipe, printed, Written::print)));
        let stderr = child.stderr.take().map(|pipe| tokio::spawn(keep(pipe, complained, Written::complain)));
        let readers = stdout.into_iter().chain(stderr).collect();
        let group = child.id().and_then(|pid| i32::try_from(pid).ok()).filter(|_| !is_guarded);
        let guard = child.stdin.take();
        Ok(Box::new(PlainRunning { child, group, guard, output, readers }))
    }

    async fn clear(&self) -> Result<(), PlaceError> {
        Ok(())
    }

    async fn end(&self) {}
}

struct PlainRunning {
    child: Child,
    /// The process group to kill; `None` with a guard.
    group: Option<i32>,
    /// The guard's input.
    guard: Option<ChildStdin>,
    output: Arc<Mutex<Written>>,
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
    async fn wait(&mut self) -> Result<Ended, PlaceError> {
        let status = self.child.wait().await.map_err(|error| PlaceError::Broken(error.to_string()))?;
        let is_guarded = self.guard.is_some();
        // Others of its group may still write.
        self.kill_all();
        for reader in &mut self.readers {
            let _ = timeout(OUTPUT_PATIENCE, reader).await;
        }
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        // A guard passes a signal on as a shell does.
        let code = status.code().filter(|code| !is_guarded || *code < 128);
        Ok(output.ended(code))
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
async fn keep(mut pipe: impl AsyncRead + Unpin, output: Arc<Mutex<Written>>, add: fn(&mut Written, &[u8])) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        add(&mut output.lock().unwrap_or_else(PoisonError::into_inner), &buffer[..read]);
    }
}
