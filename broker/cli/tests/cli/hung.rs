//! A cluster of three nats-servers, one of which hangs: it keeps its connections and answers nothing. And a server that never
//! said a word.

use std::sync::Arc;

use millrace_queue::testing::TestCluster;
use millrace_queue::{Broker, JetStream, JetStreamOptions, KeyStore, Objects, Queue};
use millrace_schemas::subjects::{COORDINATOR_BUCKET, LEASE_KEY, LOG_STREAM, bucket_stream};
use millrace_schemas::{RunId, limits};
use millrace_server::Server;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

use super::support::{all_stages, changed_run_file, millrace, run, stderr, until};

/// Renewals of the lease that are watched: five leases long. Where a renewal asked any replica, a
/// third of the questions would go to the server that hangs.
const RENEWALS: u64 = 5 * limits::LEASE_MS / limits::LEASE_RENEW_MS;
/// Steps, all of them while the server hangs.
const STEPS: u64 = 40;

/// Who leads, since which epoch, and the lease's revision.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Leader {
    holder: String,
    epoch: u64,
    revision: u64,
}

async fn leader(queue: &JetStream) -> Option<Leader> {
    let value = queue.get_latest(COORDINATOR_BUCKET, LEASE_KEY).await.ok()??;
    let lease: serde_json::Value = serde_json::from_slice(&value.value).ok()?;
    let holder = lease["holder"].as_str().filter(|holder| !holder.is_empty())?.to_owned();
    Some(Leader { holder, epoch: lease["epoch"].as_u64()?, revision: value.revision })
}

/// A cluster with two coordinators and a worker.
struct Hung {
    cluster: TestCluster,
    queue: Arc<JetStream>,
    broker: Broker,
    /// The server that the processes use.
    used: usize,
    /// The server that will hang.
    hangs: usize,
    /// The server and the object store, as options of a command.
    place: [String; 4],
    _processes: Vec<Child>,
}

impl Hung {
    /// The server that will hang is the `leader` of the log, and the processes know all servers; else it leads
    /// neither lease nor log, and they use another one alone.
    async fn start(leader: bool) -> Self {
        let cluster = TestCluster::start().await;
        let options = JetStreamOptions { replicas: 3, ..JetStreamOptions::default() };
        let queue = cluster.connect(0, options.clone()).await;
        queue.ensure_topology().await.unwrap();
        let used = cluster.leader_of(&queue, LOG_STREAM).await;
        let lease = cluster.leader_of(&queue, &bucket_stream(COORDINATOR_BUCKET)).await;
        let follower = (0..cluster.len()).find(|number| ![used, lease].contains(number)).unwrap();
        let hangs = if leader { used } else { follower };
        let queue = cluster.connect((hangs + 1) % cluster.len(), options).await;
        let folder = cluster.folder().to_owned();
        let objects = folder.join("objects").to_string_lossy().into_owned();
        std::fs::create_dir(&objects).unwrap();
        let all: Vec<&str> = cluster.iter().map(Server::url).collect();
        let known = if leader { all.join(",") } else { cluster[used].url().to_owned() };
        let place = ["--nats".into(), known, "--objects".into(), objects.clone()];
        let log = |name: &str| std::fs::File::create(folder.join(name)).unwrap();
        let coordinator = |id: &str| {
            let mut command = millrace();
            let words = ["coordinator", "--replicas", "3", "--id", id];
            command.args(words).args(&place).stderr(log(id)).spawn().unwrap()
        };
        let processes = vec![coordinator("one"), coordinator("two"), all_stages(&place, log("worker"))];
        let broker = Broker::new(queue.clone(), Objects::open(&objects).unwrap());
        Self { cluster, queue, broker, used, hangs, place, _processes: processes }
    }

    async fn submit(&self) {
        let steps = format!("steps = {STEPS}");
        let file = changed_run_file("counter.toml", self.cluster.folder(), &[("steps = 50", &steps)]);
        let submit = ["submit".to_owned(), file.to_string_lossy().into_owned()];
        let words: Vec<&str> = submit.iter().chain(&self.place).map(String::as_str).collect();
        until("the run is submitted", async || {
            let told = run(&words).await;
            // The answer may be late, where the server that hangs led a stream and another is elected first:
            // then the run exists.
            (told.status.success() || stderr(&told).contains("exists")).then_some(())
        })
        .await;
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.cluster.folder().join(name)).unwrap()
    }

    async fn reached(&self, version: u64) {
        let run: RunId = "counter".parse().unwrap();
        until(&format!("version {version} is made"), async || {
            let policy = self.broker.policy(&run).await.ok()??;
            (policy.0.version.0 >= version).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_hangs_costs_no_lease_and_the_run_goes_on() {
    let hung = Hung::start(false).await;
    let before = until("a coordinator leads", async || leader(&hung.queue).await).await;
    hung.cluster.suspend_replica(hung.used, hung.hangs, &bucket_stream(COORDINATOR_BUCKET)).await;
    hung.submit().await;
    until("the lease was renewed many times", async || {
        let now = leader(&hung.queue).await?;
        assert_eq!((&now.holder, now.epoch), (&before.holder, before.epoch), "the lease was lost");
        (now.revision >= before.revision + RENEWALS).then_some(())
    })
    .await;
    hung.reached(STEPS).await;
    let after = until("a coordinator leads", async || leader(&hung.queue).await).await;
    assert_eq!((after.holder, after.epoch), (before.holder, before.epoch));
    for name in ["one", "two"] {
        let log = hung.log(name);
        assert!(!log.contains("failed to renew the lease"), "{name}: {log}");
    }
    hung.cluster[hung.hangs].resume().unwrap();
}

/// Connections to it stay open, and nothing comes: its clients notice, and go to another server of those they know.
#[tokio::test]
async fn a_leader_that_hangs_is_left_by_its_followers_and_its_clients() {
    let hung = Hung::start(true).await;
    until("a coordinator leads", async || leader(&hung.queue).await).await;
    hung.submit().await;
    hung.reached(2).await;
    hung.cluster[hung.hangs].suspend().unwrap();
    hung.reached(STEPS).await;
    hung.cluster[hung.hangs].resume().unwrap();
}

/// A server that takes connections and says nothing, as behind a broken load balancer.
#[tokio::test]
async fn a_coordinator_that_waits_for_its_server_heeds_a_signal() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}", silent.local_addr().unwrap());
    let mut coordinator =
        millrace().args(["coordinator", "--nats", &url, "--objects", "memory:"]).spawn().unwrap();
    let held = silent.accept().await.unwrap();
    let pid = i32::try_from(coordinator.id().unwrap()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    assert!(coordinator.wait().await.unwrap().success());
    drop(held);
}
