//! A whole run on a guarded nats-server, with one process for each role, each with its own key,
//! over TLS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use millrace_server::{Server, ServerOptions};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::support::{millrace, millrace_worker, run, send, stderr, stdout, until};

const STAGES: [&str; 5] = ["generate", "env_step", "reward", "train_shard", "publish_weights"];

const RUN: &str = r#"
name = "guarded"
steps = 5
[model]
kind = "scripted"
[environment]
name = "counter"
turns = 2
[rollout]
groups_per_step = 4
group_size = 2
alpha = 1.0
"#;

struct Fleet {
    folder: TempDir,
    server: Server,
    children: Vec<Child>,
}

impl Fleet {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let auth = folder.path().join("auth");
        let made =
            run(&["init-auth", "--dir", &auth.to_string_lossy(), "--combine", "env_step,reward"]).await;
        assert!(made.status.success(), "{}", stderr(&made));
        assert!(auth.join("keys/env_step-reward.nk").is_file());
        fs::create_dir(folder.path().join("objects")).unwrap();
        fs::write(folder.path().join("run.toml"), RUN).unwrap();
        let options = ServerOptions {
            config: Some(auth.join("nats-server.conf")),
            ..ServerOptions::in_folder(folder.path().join("nats"))
        };
        let server = Server::start(&options).await.unwrap();
        Self { folder, server, children: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn keys(&self) -> Vec<(String, String)> {
        let files = fs::read_dir(self.path("auth/keys")).unwrap().flatten();
        let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
        files.map(|file| (name(&file.path()), fs::read_to_string(file.path()).unwrap())).collect()
    }

    /// Tells a program where everything is, and who it is.
    fn place<'a>(&self, command: &'a mut Command, user: &str) -> &'a mut Command {
        command
            .env("NATS_URL", self.server.url())
            .env("MILLRACE_OBJECTS", self.path("objects"))
            .env("MILLRACE_NATS_TLS_CA", self.path("auth/tls/ca.pem"))
            .env("MILLRACE_NATS_NKEY", self.path(&format!("auth/keys/{user}.nk")))
    }

    fn spawn(&mut self, program: &mut Command, user: &str, name: &str) -> u32 {
        let log = fs::File::create(self.path(&format!("{name}.log"))).unwrap();
        // Everything is logged, the libraries' innermost words too.
        self.place(program, user)
            .arg("--log")
            .arg("trace")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap());
        let child = program.stderr(log).kill_on_drop(true).spawn().unwrap();
        let pid = child.id().unwrap();
        self.children.push(child);
        pid
    }

    fn spawn_worker(&mut self, stage: &str, user: &str) -> u32 {
        self.spawn(millrace_worker().args(["--stages", stage]), user, &format!("{stage}-as-{user}"))
    }

    /// `millrace` as `user`.
    async fn ask(&self, user: &str, args: &[&str]) -> std::process::Output {
        self.place(&mut millrace(), user).args(args).output().await.unwrap()
    }

    fn log(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(&format!("{name}.log"))).unwrap_or_default()).into_owned()
    }
}

#[tokio::test]
async fn each_role_does_its_work_with_its_own_key_and_no_seed_is_logged() {
    let mut fleet = Fleet::start().await;
    fleet.spawn(millrace().arg("coordinator"), "coordinator", "coordinator");
    for stage in STAGES {
        fleet.spawn_worker(stage, stage);
    }
    // A worker with another role's key is denied, and the run continues without it.
    fleet.spawn_worker("generate", "reward");
    until("the coordinator answers", async || {
        fleet.ask("submitter", &["list"]).await.status.success().then_some(())
    })
    .await;
    let run_file = fleet.path("run.toml").to_string_lossy().into_owned();
    let submitted = fleet.ask("submitter", &["submit", &run_file]).await;
    assert!(submitted.status.success(), "{}", stderr(&submitted));
    until("the run is finished", async || {
        let status = fleet.ask("submitter", &["status", "guarded", "--json"]).await;
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).ok()?;
        (status["state"] == "finished").then_some(())
    })
    .await;
    let told = "the server forbids to publish";
    until("the missing right is told", async || {
        let log = fleet.log("generate-as-reward");
        let line = log.lines().find(|line| line.contains(told))?.to_owned();
        assert!(line.contains("MILLRACE_TASK_GENERATE") && line.contains("reward"), "{line}");
        Some(())
    })
    .await;
    for stage in STAGES {
        let log = fleet.log(&format!("{stage}-as-{stage}"));
        assert!(!log.contains(told), "{stage}: {}", log.lines().find(|line| line.contains(told)).unwrap());
    }
    assert!(!fleet.log("coordinator").contains(told));

    // Only the coordinator reads dead letters.
    let dead = fleet.ask("submitter", &["dead", "ls"]).await;
    assert!(!dead.status.success() && stderr(&dead).contains("MILLRACE_DEAD"), "{}", stderr(&dead));
    let dead = fleet.ask("coordinator", &["dead", "ls"]).await;
    assert!(dead.status.success(), "{}", stderr(&dead));

    for child in &fleet.children {
        send(child.id().unwrap(), Signal::SIGTERM);
    }
    for child in &mut fleet.children {
        child.wait().await.unwrap();
    }
    let keys = fleet.keys();
    assert_eq!(keys.len(), 9);
    for entry in fs::read_dir(fleet.folder.path()).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        let text = String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).into_owned();
        for (user, key) in &keys {
            let seed = key.lines().last().unwrap();
            assert!(!text.contains(seed), "{} holds the seed of {user}", entry.path().display());
        }
    }
    assert!(fleet.log("coordinator").contains("TRACE"), "it is no log at trace");
}

#[tokio::test]
async fn a_password_in_the_url_is_shown_nowhere() {
    let secret = "hunter2-and-more";
    // Nothing listens there.
    let url = format!("nats://someone:{secret}@127.0.0.1:1");
    let ran = millrace().args(["list", "--nats", &url]).env("RUST_LOG", "trace").output().await.unwrap();
    assert!(!ran.status.success() && stderr(&ran).contains("127.0.0.1:1"), "{}", stderr(&ran));
    assert!(!stderr(&ran).contains(secret) && !stdout(&ran).contains(secret), "{}", stderr(&ran));
    let help = millrace_worker().arg("--help").env("NATS_URL", &url).output().await.unwrap();
    assert!(help.status.success() && !stdout(&help).contains(secret), "{}", stdout(&help));
}
