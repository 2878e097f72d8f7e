//! A cluster of three nats-servers, one of which hangs: it keeps its connections and answers nothing.

use std::sync::Arc;
use std::time::Duration;

use millrace_queue::testing::TestCluster;
use millrace_queue::{Broker, JetStream, JetStreamOptions, KeyStore, Objects, Queue};
use millrace_schemas::subjects::{COORDINATOR_BUCKET, LEASE_KEY, LOG_STREAM, bucket_stream};
use millrace_schemas::{RunId, limits};
use tokio::process::Child;
use tokio::time::timeout;

use super::support::{all_stages, changed_run_file, millrace, run, until};

/// Renewals of the lease that are watched: five leases long. Where a renewal asked any replica, a
/// third of the questions would go to the server that hangs.
const RENEWALS: u64 = 5 * limits::LEASE_MS / limits::LEASE_RENEW_MS;
/// Steps of which the last come after the server hangs.
const STEPS: u64 = 40;
/// Questions that any replica may answer. Where one of three hangs, hardly ever are all answered.
const QUESTIONS: usize = 16;
/// How long each is waited for.
const ANSWER: Duration = Duration::from_millis(limits::LEASE_MS / 4);

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

/// A cluster with two coordinators, a worker, and a run in progress.
struct Hung {
    cluster: TestCluster,
    queue: Arc<JetStream>,
    broker: Broker,
    /// The server that will hang: all use another one, and it leads neither lease nor log.
    follower: usize,
    _processes: Vec<Child>,
}

impl Hung {
    async fn start() -> Self {
        let cluster = TestCluster::start().await;
        let options = JetStreamOptions { replicas: 3, ..JetStreamOptions::default() };
        let queue = cluster.connect(0, options.clone()).await;
        queue.ensure_topology().await.unwrap();
        let log = cluster.leader_of(&queue, LOG_STREAM).await;
        let lease = cluster.leader_of(&queue, &bucket_stream(COORDINATOR_BUCKET)).await;
        let follower = (0..cluster.len()).find(|number| ![log, lease].contains(number)).unwrap();
        let queue = cluster.connect(log, options).await;
        let folder = cluster.folder().to_owned();
        let objects = folder.join("objects").to_string_lossy().into_owned();
        std::fs::create_dir(&objects).unwrap();
        let place = ["--nats".into(), cluster[log].url().into(), "--objects".into(), objects.clone()];
        let log = |name: &str| std::fs::File::create(folder.join(name)).unwrap();
        let coordinator = |id: &str| {
            let mut command = millrace();
            let words = ["coordinator", "--replicas", "3", "--id", id];
            command.args(words).args(&place).stderr(log(id)).spawn().unwrap()
        };
        let processes = vec![coordinator("one"), coordinator("two"), all_stages(&place, log("worker"))];
        let file = changed_run_file("counter.toml", &folder, &[("steps = 50", &format!("steps = {STEPS}"))]);
        let submit = ["submit".to_owned(), file.to_string_lossy().into_owned()];
        let words: Vec<&str> = submit.iter().chain(&place).map(String::as_str).collect();
        until("the run is submitted", async || run(&words).await.status.success().then_some(())).await;
        let broker = Broker::new(queue.clone(), Objects::open(&objects).unwrap());
        Self { cluster, queue, broker, follower, _processes: processes }
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.cluster.folder().join(name)).unwrap()
    }

    /// Suspends the follower as soon as it is one of those that are asked. A replica begins to answer
    /// some seconds after it has caught up.
    async fn suspend(&self) {
        until("a question goes to the server that hangs", async || {
            self.cluster[self.follower].suspend().unwrap();
            for _ in 0..QUESTIONS {
                let asked = self.queue.get(COORDINATOR_BUCKET, LEASE_KEY);
                if timeout(ANSWER, asked).await.is_err() {
                    return Some(());
                }
            }
            self.cluster[self.follower].resume().unwrap();
            None
        })
        .await;
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
    let hung = Hung::start().await;
    hung.reached(2).await;
    let before = until("a coordinator leads", async || leader(&hung.queue).await).await;
    hung.suspend().await;
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
    hung.cluster[hung.follower].resume().unwrap();
}
