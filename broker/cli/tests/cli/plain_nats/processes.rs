//! A nats-server, a coordinator and one worker for every stage, as separate processes. No torch.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_queue::testing::TestServer;

use crate::support::{ALL_STAGES, worker_program};

/// For anything to happen; a passing test takes far less.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The processes; killed when dropped.
pub(crate) struct Processes {
    children: Vec<(&'static str, Child)>,
    server: TestServer,
}

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in the repository")
}

impl Processes {
    /// Starts all of them, and waits until the API answers.
    pub(crate) async fn start() -> Self {
        let server = TestServer::start().await;
        let mut processes = Self { children: Vec::new(), server };
        fs::create_dir(processes.objects()).expect("the object store's folder can be made");
        processes.spawn("coordinator", Path::new(env!("CARGO_BIN_EXE_millrace")), &["coordinator"]);
        processes.spawn("worker", &worker_program(), &["--stages", ALL_STAGES, "--id", "worker-0"]);
        processes.answers();
        processes
    }

    fn objects(&self) -> PathBuf {
        self.server.folder().join("objects")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.server.folder().join(name).with_extension("log")
    }

    fn spawn(&mut self, name: &'static str, program: &Path, args: &[&str]) {
        let log = File::create(self.log(name)).expect("the log can be written");
        let child = Command::new(program)
            .args(args)
            .args(["--nats", self.url(), "--objects"])
            .arg(self.objects())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log can be written"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        self.children.push((name, child));
    }

    /// Waits until a coordinator answers.
    fn answers(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let list = Command::new(env!("CARGO_BIN_EXE_millrace"))
                .args(["list", "--nats", self.url()])
                .output()
                .expect("millrace runs");
            if list.status.success() {
                return;
            }
            let why = String::from_utf8_lossy(&list.stderr).into_owned();
            assert!(Instant::now() < deadline, "no coordinator answers: {why}");
            for (name, child) in &mut self.children {
                let ended = child.try_wait().expect("a child can be asked");
                assert!(ended.is_none(), "{name} ended: {ended:?}");
            }
        }
    }

    /// Where clients connect.
    pub(crate) fn url(&self) -> &str {
        self.server.url()
    }

    /// A folder for whatever the test writes.
    pub(crate) fn folder(&self) -> &Path {
        self.server.folder()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (name, child) in &mut self.children {
            // It may have died already; then there is nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                let log = self.server.folder().join(*name).with_extension("log");
                let text = fs::read_to_string(log).unwrap_or_default();
                let tail: Vec<&str> = text.lines().rev().take(20).collect();
                println!("last lines of {name}:");
                tail.iter().rev().for_each(|line| println!("  {line}"));
            }
        }
    }
}
