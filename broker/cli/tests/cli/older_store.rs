//! The queue's disk is restored to an older state in the middle of a run: the work of the lost part
//! of the log is redone, nothing is trained twice, no version is made twice, and a notice reports
//! it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use millrace_queue::port::Listener;
use millrace_queue::{EventLog, JetStream, JetStreamOptions, Notices, Objects};
use millrace_schemas::blob::paths;
use millrace_schemas::subjects::NOTICE_ALL;
use millrace_schemas::{PolicyVersion, RunId};
use millrace_server::{Server, ServerOptions, free_port};
use nix::sys::signal::Signal;
use tokio::process::Child;
use tokio::time::timeout;

use super::support::{PATIENCE, all_stages, changed_run_file, millrace, run, send, stderr, stdout, until};

const STEPS: u64 = 60;

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

struct Part {
    place: [String; 4],
    options: ServerOptions,
    server: Option<Server>,
    objects: Objects,
    coordinator: Child,
    _worker: Child,
}

impl Part {
    async fn start(folder: &Path) -> Self {
        let port = Some(free_port().unwrap());
        let options = ServerOptions { port, ..ServerOptions::in_folder(folder.join("nats")) };
        let server = Server::start(&options).await.unwrap();
        let objects = folder.join("objects").to_string_lossy().into_owned();
        std::fs::create_dir(&objects).unwrap();
        let place = ["--nats".into(), server.url().into(), "--objects".into(), objects.clone()];
        let log = |name: &str| std::fs::File::create(folder.join(name)).unwrap();
        let coordinator = millrace()
            .args(["coordinator", "--ack-wait", "3"])
            .args(&place)
            .stderr(log("coordinator"))
            .spawn()
            .unwrap();
        let worker = all_stages(&place, log("worker"));
        let objects = Objects::open(&objects).unwrap();
        Self { place, options, server: Some(server), objects, coordinator, _worker: worker }
    }

    fn streams(&self) -> PathBuf {
        self.options.folder.join("streams")
    }

    async fn kill(&mut self) {
        self.server.take().expect("it runs").kill().await;
    }

    async fn start_again(&mut self) {
        self.server = Some(Server::start(&self.options).await.unwrap());
    }

    async fn run(&self, args: &[&str]) -> std::process::Output {
        let place: Vec<&str> = self.place.iter().map(String::as_str).collect();
        run(&[args, &place].concat()).await
    }

    /// Every version that is committed, with the bytes of its manifest.
    async fn committed(&self) -> BTreeMap<u64, bytes::Bytes> {
        let name: RunId = "counter".parse().unwrap();
        let mut found = BTreeMap::new();
        while let Some(manifest) =
            self.objects.get(&paths::manifest(&name, PolicyVersion(found.len() as u64))).await.unwrap()
        {
            found.insert(found.len() as u64, manifest);
        }
        found
    }

    async fn reached(&self, version: u64) {
        until(&format!("version {version} is made"), async || {
            (self.committed().await.len() as u64 > version).then_some(())
        })
        .await;
    }
}

/// Waits for the notice that the log lost something.
async fn told(mut notices: Box<dyn Listener>) {
    while let Some(notice) = notices.next().await {
        if notice.subject.ends_with(".log_lost") {
            return;
        }
    }
    panic!("the connection is closed");
}

#[tokio::test]
async fn an_older_copy_of_the_queues_disk_costs_work_and_no_truth() {
    let folder = tempfile::tempdir().unwrap();
    let mut part = Part::start(folder.path()).await;
    let steps = format!("steps = {STEPS}");
    let path = changed_run_file("counter.toml", folder.path(), &[("steps = 50", &steps)]);
    let path = path.to_string_lossy().into_owned();
    until("the run is submitted", async || part.run(&["submit", &path]).await.status.success().then_some(()))
        .await;
    part.reached(5).await;
    part.kill().await;
    let older = folder.path().join("older");
    copy(&part.streams(), &older);
    part.start_again().await;
    part.reached(20).await;
    let queue = JetStream::connect(&part.place[1], "test", JetStreamOptions::default()).await.unwrap();
    let telling = tokio::spawn(told(queue.listen(NOTICE_ALL).await.unwrap()));
    // Otherwise the notice could come before this test listens.
    let coordinator = part.coordinator.id().expect("it runs");
    send(coordinator, Signal::SIGSTOP);
    part.kill().await;
    let before = part.committed().await;
    assert!(before.len() > 20, "{}", before.len());
    std::fs::remove_dir_all(part.streams()).unwrap();
    std::fs::rename(&older, part.streams()).unwrap();
    part.start_again().await;
    until("the test hears again", async || queue.log_end().await.ok()).await;
    send(coordinator, Signal::SIGCONT);
    timeout(PATIENCE, telling).await.expect("a notice says it").unwrap();
    until("the run is finished", async || {
        let status = part.run(&["status", "counter", "--json"]).await;
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).ok()?;
        (status["state"] == "finished").then_some(())
    })
    .await;
    let after = part.committed().await;
    assert_eq!(after.len() as u64, STEPS + 1);
    for (version, manifest) in before {
        assert_eq!(after[&version], manifest, "v{version} was made once");
    }
    let ledger = part.run(&["ledger", "counter", "--audit"]).await;
    assert!(ledger.status.success(), "{}{}", stdout(&ledger), stderr(&ledger));
    assert!(stdout(&ledger).contains("agrees"), "{}", stdout(&ledger));
}
