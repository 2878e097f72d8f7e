//! Programs started and watched.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use millrace_schemas::report::Report;
use millrace_server::{Server, ServerOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// Longest wait for anything. Machines of CI are slow; what is broken shows as this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A gang for a run file: two make a step together, and one alone after two seconds without the other.
pub(crate) const GANG: &str = "\n[gang]\nranks = 2\npatience_ms = 2000\ntimeout_ms = 5000\n";

/// The `millrace` program of this build.
pub(crate) fn millrace() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    // What a developer has set must not lead a test elsewhere.
    command.env_remove("NATS_URL").env_remove("MILLRACE_OBJECTS").kill_on_drop(true).stdin(Stdio::null());
    command
}

/// Where the `millrace-worker` of this build is.
pub(crate) fn worker_program() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_millrace")).with_file_name("millrace-worker");
    assert!(program.is_file(), "there is no {}; build the workspace first", program.display());
    program
}

/// The `millrace-worker` program of this build.
pub(crate) fn millrace_worker() -> Command {
    let mut command = Command::new(worker_program());
    command.kill_on_drop(true);
    command
}

/// Arguments of a worker for all stages.
pub(crate) const ALL_STAGES: &str = "generate,env_step,reward,train_shard,publish_weights";

/// A worker for all stages at `place`, which writes its log to `log`.
pub(crate) fn all_stages(place: &[String], log: std::fs::File) -> Child {
    millrace_worker().args(["--stages", ALL_STAGES]).args(place).stderr(log).spawn().unwrap()
}

/// Runs `millrace` to its end.
pub(crate) async fn run(args: &[&str]) -> Output {
    let ran = millrace().args(args).output();
    timeout(PATIENCE, ran).await.expect("millrace ends").expect("millrace starts")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A run file of this repository.
pub(crate) fn run_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../coordinator/runs").join(name)
}

/// Writes the run file of this name, with texts changed that it must have, as `run.toml` into
/// `folder`.
pub(crate) fn changed_run_file(name: &str, folder: &Path, changes: &[(&str, &str)]) -> PathBuf {
    let path = folder.join("run.toml");
    std::fs::copy(run_file(name), &path).unwrap();
    change(&path, changes);
    path
}

/// Changes texts of a file that it must have.
pub(crate) fn change(file: &Path, changes: &[(&str, &str)]) {
    let mut text = std::fs::read_to_string(file).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{} has no {from:?}", file.display());
        text = text.replace(from, to);
    }
    std::fs::write(file, text).unwrap();
}

/// Waits until `condition` gives something. `what` is written only where it does not.
pub(crate) async fn until<T>(what: impl Display, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(Instant::now() < give_up, "waited in vain until {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A nats-server, an empty object store and a coordinator.
pub(crate) struct Coordinated {
    pub(crate) url: String,
    pub(crate) objects: String,
    coordinator: Child,
    _server: Server,
    _folder: TempDir,
}

impl Coordinated {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&ServerOptions::in_folder(folder.path().join("nats"))).await.unwrap();
        let objects = folder.path().join("objects");
        std::fs::create_dir(&objects).unwrap();
        let (url, objects) = (server.url().to_owned(), objects.to_string_lossy().into_owned());
        let log = std::fs::File::create(folder.path().join("coordinator.log")).unwrap();
        let coordinator = millrace()
            .args(["coordinator", "--nats", &url, "--objects", &objects])
            .stderr(log)
            .spawn()
            .unwrap();
        let ready = Self { url, objects, coordinator, _server: server, _folder: folder };
        until("the coordinator answers", async || ready.run(&["list"]).await.status.success().then_some(()))
            .await;
        ready
    }

    /// Kills the coordinator.
    pub(crate) fn kill_coordinator(&self) {
        send(self.coordinator.id().expect("it was not waited for"), Signal::SIGKILL);
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Output {
        let place = ["--nats", &self.url, "--objects", &self.objects];
        run(&[args, &place[..]].concat()).await
    }
}

/// What it wrote up to now.
impl Display for Up {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.output())
    }
}

/// A `millrace up` on `counter.toml`.
pub(crate) struct Up {
    child: Child,
    pub(crate) folder: PathBuf,
}

impl Up {
    /// Starts it in `folder` with further arguments.
    pub(crate) fn start(folder: &Path, args: &[&str]) -> Self {
        Self::start_file(folder, &run_file("counter.toml"), args)
    }

    /// The same with another run file for the run `counter`.
    pub(crate) fn start_file(folder: &Path, file: &Path, args: &[&str]) -> Self {
        Self::start_with(folder, file, args, &[])
    }

    /// The same with variables in the environment, which its processes inherit.
    pub(crate) fn start_with(folder: &Path, file: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("up.out")).unwrap();
        let child = millrace()
            .arg("up")
            .arg(file)
            .arg("--dir")
            .arg(folder)
            .args(args)
            .envs(env.iter().copied())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, folder: folder.to_owned() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it was not waited for")
    }

    /// Waits for its end; shows what it wrote if that does not come.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        match timeout(2 * PATIENCE, self.child.wait()).await {
            Ok(status) => status.unwrap(),
            Err(_) => panic!("millrace up does not end:\n{}", self.output()),
        }
    }

    /// All that it wrote, and the end of each process's log.
    pub(crate) fn output(&self) -> String {
        let mut text = std::fs::read_to_string(self.folder.join("up.out")).unwrap_or_default();
        for entry in std::fs::read_dir(self.folder.join("logs")).into_iter().flatten().flatten() {
            let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().rev().take(15).collect();
            text += &format!("--- {}\n", entry.path().display());
            lines.iter().rev().for_each(|line| text += &format!("{line}\n"));
        }
        text
    }

    /// Process ids by name.
    pub(crate) fn pids(&self) -> BTreeMap<String, u32> {
        let text = std::fs::read(self.folder.join("pids.json")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Waits until the process called `name` runs, and is not `other`.
    pub(crate) async fn pid_of(&self, name: &str, other: Option<u32>) -> u32 {
        until(&format!("{name} runs"), async || {
            self.pids().get(name).copied().filter(|pid| Some(*pid) != other)
        })
        .await
    }

    /// Waits until the run has made version `version`.
    pub(crate) async fn reached(&self, version: u64) {
        until(format_args!("version {version} is made\n{self}"), async || {
            (self.ask_version().await? >= version).then_some(())
        })
        .await;
    }

    /// The newest version.
    pub(crate) async fn version(&self) -> u64 {
        until("the status is told", async || self.ask_version().await).await
    }

    async fn ask_version(&self) -> Option<u64> {
        let folder = self.folder.to_string_lossy().into_owned();
        let output = run(&["status", "counter", "--json", "--dir", &folder]).await;
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        status["version"].as_u64()
    }

    pub(crate) fn report(&self) -> Report {
        let text = std::fs::read(self.folder.join("report.json"))
            .unwrap_or_else(|e| panic!("no report: {e}\n{}", self.output()));
        serde_json::from_slice(&text).unwrap()
    }
}

pub(crate) fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

/// Whether a process lives. One that is dead and not waited for does not.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which is in brackets and may have any characters.
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}
