//! Two coordinators: one acts; the other takes over when the first is killed or stopped, and the
//! first does no harm when it continues.

use std::time::Duration;

use millrace_queue::{Broker, JetStream, JetStreamOptions, Objects};
use millrace_schemas::subjects::{COORDINATOR_BUCKET, LEASE_KEY};
use millrace_schemas::{Event, RunId};
use millrace_server::{Server, ServerOptions};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::process::Child;
use tokio::time::Instant;

use super::support::{all_stages, changed_run_file, millrace, run, send, stderr, stdout, until};

/// Within which another coordinator acts.
const TAKE_OVER: Duration = Duration::from_secs(3);
/// Steps that take long enough for all that is done meanwhile.
const STEPS: u64 = 120;

/// A nats-server, two coordinators and a worker, with a submitted run.
struct Two {
    broker: Broker,
    place: [String; 4],
    coordinators: [Child; 2],
    _worker: Child,
    _server: Server,
    _folder: TempDir,
}

fn pid(child: &Child) -> u32 {
    child.id().expect("it was not waited for")
}

impl Two {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&ServerOptions::in_folder(folder.path().join("nats"))).await.unwrap();
        let objects = folder.path().join("objects").to_string_lossy().into_owned();
        std::fs::create_dir(&objects).unwrap();
        let place = ["--nats".into(), server.url().into(), "--objects".into(), objects.clone()];
        let log = |name: &str| std::fs::File::create(folder.path().join(name)).unwrap();
        let coordinator = |id: &str| {
            let mut command = millrace();
            command.args(["coordinator", "--id", id]).args(&place).stderr(log(id)).spawn().unwrap()
        };
        let coordinators = [coordinator("one"), coordinator("two")];
        let worker = all_stages(&place, log("worker"));
        let queue = JetStream::connect(server.url(), "test", JetStreamOptions::default()).await.unwrap();
        let broker = Broker::new(queue, Objects::open(&objects).unwrap());
        let two = Self { broker, place, coordinators, _worker: worker, _server: server, _folder: folder };
        let steps = format!("steps = {STEPS}");
        let path = changed_run_file("counter.toml", two._folder.path(), &[("steps = 50", &steps)]);
        let path = path.to_string_lossy().into_owned();
        until("the run is submitted", async || {
            two.run(&["submit", &path]).await.status.success().then_some(())
        })
        .await;
        two
    }

    async fn run(&self, args: &[&str]) -> std::process::Output {
        let place: Vec<&str> = self.place.iter().map(String::as_str).collect();
        run(&[args, &place].concat()).await
    }

    /// Which of the two holds the lease.
    async fn acting(&self) -> Option<usize> {
        let value = self.broker.queue().get(COORDINATOR_BUCKET, LEASE_KEY).await.ok()??;
        let lease: serde_json::Value = serde_json::from_slice(&value.value).ok()?;
        ["one", "two"].iter().position(|id| lease["holder"] == *id)
    }

    async fn version(&self) -> u64 {
        let name: RunId = "counter".parse().unwrap();
        self.broker.policy(&name).await.unwrap().map_or(0, |(policy, _)| policy.version.0)
    }

    async fn reached(&self, version: u64) {
        until(&format!("version {version} is made"), async || {
            (self.version().await >= version).then_some(())
        })
        .await;
    }

    /// Waits until the other one acts, which must be soon.
    async fn taken_over_from(&self, first: usize) {
        let since = Instant::now();
        until("the other takes over", async || (self.acting().await == Some(1 - first)).then_some(())).await;
        assert!(since.elapsed() <= TAKE_OVER, "it took {:?}", since.elapsed());
        // And does not only hold the lease.
        let version = self.version().await;
        self.reached(version + 2).await;
    }

    /// The run ends, and its books agree with what was committed.
    async fn ends_well(&self) {
        until("the run is finished", async || {
            let status = self.run(&["status", "counter", "--json"]).await;
            let status: serde_json::Value = serde_json::from_slice(&status.stdout).ok()?;
            (status["state"] == "finished").then_some(())
        })
        .await;
        assert_eq!(self.version().await, STEPS);
        let ledger = self.run(&["ledger", "counter", "--audit"]).await;
        assert!(ledger.status.success(), "{}{}", stdout(&ledger), stderr(&ledger));
        assert!(stdout(&ledger).contains("agrees"), "{}", stdout(&ledger));
    }
}

#[tokio::test]
async fn the_other_takes_over_when_one_is_killed() {
    let mut two = Two::start().await;
    two.reached(3).await;
    let first = two.acting().await.expect("one acts");
    send(pid(&two.coordinators[first]), Signal::SIGKILL);
    two.coordinators[first].wait().await.unwrap();
    two.taken_over_from(first).await;
    two.ends_well().await;
}

#[tokio::test]
async fn the_other_takes_over_when_one_is_stopped_which_does_no_harm_when_it_goes_on() {
    let two = Two::start().await;
    two.reached(3).await;
    let first = two.acting().await.expect("one acts");
    send(pid(&two.coordinators[first]), Signal::SIGSTOP);
    two.taken_over_from(first).await;
    let version = two.version().await;
    two.reached(version + 20).await;
    let before = two.broker.queue().log_end().await.unwrap();
    send(pid(&two.coordinators[first]), Signal::SIGCONT);
    two.ends_well().await;
    assert_eq!(two.acting().await, Some(1 - first), "the one that goes on stands by");
    // Only one clock ticks: the suspended coordinator appends no ticks when it continues.
    let (mut log, mut ticks) = (two.broker.read_log(before + 1).await.unwrap(), Vec::new());
    let end = two.broker.queue().log_end().await.unwrap();
    for seq in before + 1..=end {
        let entry = log.next(1).await.unwrap().remove(0);
        assert_eq!(entry.seq, seq);
        if let Ok(Event::Tick { unix_ms }) = entry.event {
            ticks.push(unix_ms);
        }
    }
    assert!(ticks.windows(2).all(|pair| pair[1] >= pair[0] + 900), "{ticks:?}");
}

/// A run whose folder in the object store is not a folder delays itself alone, and continues when
/// it is repaired.
#[tokio::test]
async fn a_run_whose_objects_are_out_of_reach_delays_no_other() {
    let two = Two::start().await;
    let objects = std::path::Path::new(&two.place[3]).to_owned();
    let folder = objects.join("runs/stuck");
    std::fs::create_dir_all(objects.join("runs")).unwrap();
    std::fs::write(&folder, "not a folder").unwrap();
    // (The environment has the name, too.)
    let changes = [("name = \"counter\"\nsteps = 50", "name = \"stuck\"\nsteps = 3")];
    let path = changed_run_file("counter.toml", two._folder.path(), &changes);
    let path = path.to_string_lossy().into_owned();
    let submitted = two.run(&["submit", &path]).await;
    assert!(submitted.status.success(), "{}", String::from_utf8_lossy(&submitted.stderr));
    let version = two.version().await;
    two.reached(version + 20).await;
    two.ends_well().await;
    let stuck: RunId = "stuck".parse().unwrap();
    assert!(two.broker.policy(&stuck).await.unwrap().is_none(), "it cannot have begun");
    std::fs::remove_file(&folder).unwrap();
    until("the other run is made", async || {
        let policy = two.broker.policy(&stuck).await.unwrap();
        policy.is_some_and(|(policy, _)| policy.version.0 == 3).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lone_one_that_was_stopped_goes_on() {
    let mut two = Two::start().await;
    two.reached(3).await;
    let first = two.acting().await.expect("one acts");
    let other = 1 - first;
    send(pid(&two.coordinators[other]), Signal::SIGKILL);
    two.coordinators[other].wait().await.unwrap();
    // Commands from before the stop are not executed when it continues, but as outstanding ones
    // later.
    for _ in 0..3 {
        let version = two.version().await;
        send(pid(&two.coordinators[first]), Signal::SIGSTOP);
        let since = Instant::now();
        until("its lease is over", async || (since.elapsed() > TAKE_OVER).then_some(())).await;
        send(pid(&two.coordinators[first]), Signal::SIGCONT);
        two.reached(version + 5).await;
    }
    two.ends_well().await;
}
