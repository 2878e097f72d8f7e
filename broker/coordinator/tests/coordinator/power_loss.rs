//! A coordinator after a power failure of the queue's machine, in which the log lost its newest
//! part.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_coordinator::State;
use millrace_coordinator::shell::driver::{self, DriverConfig};
use millrace_coordinator::shell::journal;
use millrace_coordinator::shell::shared::SharedState;
use millrace_queue::clock::SystemClock;
use millrace_queue::{Broker, MemoryQueue, Notices, Objects};
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::policy::Policy;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::from_toml;
use millrace_schemas::{Event, PolicyVersion, RunId, RunSpec};
use millrace_telemetry::Health;
use tokio_util::sync::CancellationToken;

/// Long enough for anything but a fault.
const DEADLINE: Duration = Duration::from_secs(30);

fn run() -> RunId {
    "lost".parse().expect("a name")
}

fn spec() -> RunSpec {
    let text = r#"
        name = "lost"
        steps = 3
        model = { kind = "scripted" }
        environment = { name = "counter", turns = 1 }
        evaluate = { prompts = 0 }
        rollout = { groups_per_step = 2, group_size = 2 }
    "#;
    from_toml(text).expect("a valid run file")
}

struct Bench {
    queue: MemoryQueue,
    broker: Broker,
}

impl Bench {
    fn new() -> Self {
        let queue = MemoryQueue::new(Arc::new(SystemClock::new()));
        let broker = Broker::new(Arc::new(queue.clone()), Objects::memory());
        Self { queue, broker }
    }

    async fn append(&self, run: &str, event: Event) -> u64 {
        self.broker.append(run, &event).await.expect("memory answers").seq
    }

    async fn submit(&self) -> u64 {
        self.append("lost", Event::Submitted(Box::new(spec()))).await
    }

    /// A coordinator, and what ends it.
    async fn coordinate(&self) -> (SharedState, CancellationToken) {
        let shared = driver::restore(&self.broker).await.expect("memory answers");
        let (stop, config) = (CancellationToken::new(), DriverConfig::new("c"));
        let drive = driver::run(self.broker.clone(), config, shared.clone(), Health::default(), stop.clone());
        tokio::spawn(drive);
        (shared, stop)
    }

    /// Commits a version that the log does not know.
    async fn commit(&self, version: u64) -> Sha {
        let (batch, version) = (None, PolicyVersion(version));
        let (files, metrics, parent) = (Vec::new(), Default::default(), None);
        let manifest = Manifest { run: run(), version, parent, batch, config: spec().hash(), files, metrics };
        let content = Bytes::from(manifest.to_json());
        let sha = Sha::of(&content);
        self.broker.objects().create(&paths::manifest(&run(), version), content).await.expect("created");
        sha
    }
}

/// Waits until the state is as it should be.
async fn eventually(shared: &SharedState, what: &str, is: impl Fn(&State) -> bool) {
    let waiting = async {
        while !is(&shared.lock()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("{what}: {:?}", shared.lock()));
}

#[tokio::test]
async fn a_snapshot_ahead_of_the_log_is_not_used() {
    let bench = Bench::new();
    let (shared, stop) = bench.coordinate().await;
    let seq = bench.submit().await;
    eventually(&shared, "the run is known", |state| state.seq >= seq).await;
    stop.cancel();
    let state = shared.lock().clone();
    journal::save(&bench.broker, "test", state.seq, journal::encode_state(&state)).await.expect("saved");
    assert!(journal::restore(&bench.broker).await.expect("restored").runs.contains_key(&run()));

    bench.queue.lose_log_after(seq - 1);
    assert_eq!(journal::restore(&bench.broker).await.expect("restored"), State::default());
    // The snapshot remains invalid after another event takes its position.
    for unix_ms in 0..state.seq + 3 {
        bench.append("all", Event::Tick { unix_ms }).await;
    }
    assert_eq!(journal::restore(&bench.broker).await.expect("restored"), State::default());
}

#[tokio::test]
async fn a_running_coordinator_notices_reused_positions() {
    let bench = Bench::new();
    let mut notices = bench.queue.listen("mr.notice.all.log_lost").await.expect("listening");
    let (shared, stop) = bench.coordinate().await;
    let seq = bench.submit().await;
    eventually(&shared, "the run is known", |state| state.seq >= seq).await;
    bench.queue.lose_log_after(seq - 1);
    for unix_ms in 0..100 {
        bench.append("all", Event::Tick { unix_ms }).await;
    }
    eventually(&shared, "the state is what is left of the log", |state| {
        state.runs.is_empty() && state.seq > 90
    })
    .await;
    let notice = tokio::time::timeout(DEADLINE, notices.next()).await.expect("a notice").expect("a notice");
    assert!(String::from_utf8_lossy(&notice.payload).contains("log_lost"));
    // It leads again: a run that is submitted a second time continues.
    bench.submit().await;
    eventually(&shared, "the run is known", |state| state.runs.contains_key(&run())).await;
    let queued = async {
        while bench.queue.queued() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, queued).await.expect("the first task is put");
    stop.cancel();
}

#[tokio::test]
async fn a_run_that_the_log_lost_continues_at_its_committed_version() {
    let bench = Bench::new();
    let manifest = bench.commit(0).await;
    // The key knows more than the log: a later floor would make every task stale, the end all of
    // them.
    let (version, floor) = (PolicyVersion(0), PolicyVersion(0));
    let policy = Policy { version, manifest, floor, attempt: 0, partitions: 1, ended: true };
    bench.broker.set_policy(&run(), &policy).await.expect("written");
    bench.submit().await;
    let (shared, stop) = bench.coordinate().await;
    let adopted = |state: &State| {
        state.runs.get(&run()).and_then(|run| run.policy.as_ref()).is_some_and(|p| p.manifest == manifest)
    };
    eventually(&shared, "the committed version is adopted", adopted).await;
    let repaired = async {
        while bench.broker.policy(&run()).await.expect("read").is_none_or(|(policy, _)| policy.ended) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, repaired).await.expect("the key is repaired");
    stop.cancel();
}
