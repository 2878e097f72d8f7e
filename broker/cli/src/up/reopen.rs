//! The queue of a folder whose `millrace up` has ended, for as long as one command reads it: its
//! nats-server, and a coordinator for commands that ask one.

use std::fmt;
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use millrace_queue::ConnectArgs;
use millrace_schemas::api::{ListRequest, RunList};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use super::folder::Folder;
use super::stack::{QueueArgs, coordinator_role, server_role};
use super::supervisor::{Role, telling_line};
use crate::connect::{Api, CallError, SERVICE_PATIENCE};
use crate::term::remark;
use crate::tied::tied;

/// Pause between two looks at a process that starts.
const LOOK: Duration = Duration::from_millis(20);

/// What a command asks of the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// The log, dead letters or keys.
    Queue,
    /// Also a coordinator's answers.
    Coordinator,
    /// The same where the run is over: the command would not end before.
    CoordinatorOfEnded,
}

/// A place for what a command reopened. It is closed when the last clone is dropped.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Option<Reopened>>>);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// A folder whose processes run for this command. No other command starts them meanwhile.
pub(crate) struct Reopened {
    /// Ended in this order, each waited for. The kernel kills them if this process is killed.
    _processes: Vec<Process>,
    _folder: Folder,
}

/// A process that ends with its value.
struct Process {
    role: Role,
    child: Child,
    log: std::path::PathBuf,
    /// Bytes of the log that earlier processes wrote.
    written: u64,
}

impl Drop for Process {
    fn drop(&mut self) {
        if let (Ok(None), Ok(pid)) = (self.child.try_wait(), i32::try_from(self.child.id())) {
            // It was not waited for, so its id is not reused.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        // An interrupt ends this process, and the kernel then kills that one.
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(folder: &Folder, role: Role) -> Result<Self> {
        let own = std::env::current_exe().context("failed to find this program")?;
        let log = folder.path("logs").join(format!("{}.log", role.name));
        let written = std::fs::metadata(&log).map_or(0, |log| log.len());
        let mut command = tied(&own, &role.program, &log)?.into_std();
        command.args(&role.args).envs(role.env.iter().map(|(name, value)| (name, value)));
        let child = command.spawn();
        let child = child.with_context(|| format!("failed to start program={}", role.program.display()))?;
        Ok(Self { role, child, log, written })
    }

    /// Waits until it ends. Returns what to report of it.
    async fn ended(&mut self) -> String {
        loop {
            let status = match self.child.try_wait() {
                Ok(None) => {
                    sleep(LOOK).await;
                    continue;
                }
                Ok(Some(status)) => status.to_string(),
                Err(e) => e.to_string(),
            };
            let tail = telling_line(&self.log, self.written);
            let tail = tail.map_or(String::new(), |line| format!("\n  {line}"));
            let name = &self.role.name;
            return format!(
                "{name} ended right after its start ({status}); see {}{tail}",
                self.log.display()
            );
        }
    }
}

/// Connects to the queue of the `millrace up` whose folder is `dir`. If it has ended, its
/// nats-server runs until `kept` is dropped. `None` if a `millrace up` runs in it, or if nothing was
/// ever queued there: then the caller connects as it always does.
///
/// # Errors
/// A process cannot be started, or does not answer.
pub(crate) async fn reopen(
    dir: &Path,
    objects: impl FnOnce() -> Result<String>,
    asks: Asks,
    kept: &Kept,
) -> Result<Option<Api>> {
    let there = |name: &str| dir.join(name).exists();
    let was_up = there("nats") && there("nats.url") && there("run.json");
    if !was_up || (asks == Asks::CoordinatorOfEnded && !there("report.json")) {
        return Ok(None);
    }
    let Some(folder) = Folder::open_to_read(dir).await? else { return Ok(None) };
    if !there("report.json") {
        remark(format_args!(
            "no `millrace up` runs in {}: its run is as it was when that stopped",
            dir.display()
        ));
    }
    let (key, public) = folder.server_key()?;
    let port = folder.nats_port()?;
    let url = format!("nats://127.0.0.1:{port}");
    let who = ConnectArgs { nats_nkey: Some(key), ..ConnectArgs::default() };
    let mut server = Process::start(&folder, server_role(&folder, port, &public, false)?)?;
    let api = tokio::select! {
        api = Api::connect(&url, &who, SERVICE_PATIENCE) => api?,
        reason = server.ended() => bail!(reason),
    };
    let mut processes = vec![server];
    if asks != Asks::Queue {
        let place = ["--nats".to_owned(), url, "--objects".to_owned(), filled(objects()?)?];
        let common = [place.to_vec(), who.to_arguments()].concat();
        let role = coordinator_role(&common, &QueueArgs::default(), None)?;
        let mut coordinator = Process::start(&folder, role)?;
        tokio::select! {
            answers = answers(&api) => answers?,
            reason = coordinator.ended() => bail!(reason),
        }
        processes.insert(0, coordinator);
    }
    *kept.0.lock().unwrap_or_else(PoisonError::into_inner) =
        Some(Reopened { _processes: processes, _folder: folder });
    Ok(Some(api))
}

/// The object store's location, unless it is a folder that nothing was ever stored in: a coordinator
/// of another store would not find the run's versions.
fn filled(objects: String) -> Result<String> {
    if Path::new(&objects).read_dir().is_ok_and(|mut entries| entries.next().is_none()) {
        bail!("object store location={objects:?} is empty; give --objects LOCATION as to `millrace up`");
    }
    Ok(objects)
}

/// Waits until a coordinator answers.
async fn answers(api: &Api) -> Result<()> {
    let give_up = Instant::now() + SERVICE_PATIENCE;
    loop {
        match api.call::<RunList>("list", &ListRequest::default()).await {
            Err(CallError::Silent(_)) if Instant::now() < give_up => sleep(LOOK).await,
            answer => return Ok(answer.map(drop)?),
        }
    }
}
