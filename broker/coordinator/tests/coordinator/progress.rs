//! A leader without progress offers its lease; a run without progress delays no other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::pending;
use millrace_coordinator::shell::driver::{self, DriverConfig};
use millrace_coordinator::shell::shared::SharedState;
use millrace_queue::clock::SystemClock;
use millrace_queue::testing::gate::{Action, Fate, Gate, gated};
use millrace_queue::{Broker, EventLog, KeyStore, MemoryQueue, Objects, TaskQueue};
use millrace_schemas::api::RunState;
use millrace_schemas::blob::paths::{self, ObjectKind};
use millrace_schemas::limits::{LEADER_STALL_MS, LEASE_MS, MAX_COMMANDS_WAITING, MAX_INLINE_EVENT_BYTES};
use millrace_schemas::subjects::{ALL_RUNS, COORDINATOR_BUCKET, LEASE_KEY};
use millrace_schemas::submit::from_toml;
use millrace_schemas::{Event, RunId, Stage};
use millrace_telemetry::Health;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Long enough for anything but a fault, in a test's own time.
const DEADLINE: Duration = Duration::from_secs(3_600);

/// Never responds to the requests from number `from` up to `to`.
struct Hangs {
    from: u64,
    to: u64,
    asked: AtomicU64,
}

#[async_trait]
impl Gate for Hangs {
    async fn request(&self, _action: Action, _path: &str) -> Fate {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        if (self.from..self.to).contains(&number) {
            pending::<()>().await;
        }
        Fate::Pass
    }

    async fn answer(&self) -> bool {
        true
    }
}

/// The store denies reads of payloads.
struct Refuses;

#[async_trait]
impl Gate for Refuses {
    async fn request(&self, action: Action, _path: &str) -> Fate {
        if action == Action::Read { Fate::Refuse } else { Fate::Pass }
    }

    async fn answer(&self) -> bool {
        true
    }
}

/// The store denies all requests for one run's objects.
struct Forbids {
    below: String,
    now: AtomicBool,
}

#[async_trait]
impl Gate for Forbids {
    async fn request(&self, _action: Action, path: &str) -> Fate {
        let forbidden = self.now.load(Ordering::Relaxed) && path.starts_with(&self.below);
        if forbidden { Fate::Refuse } else { Fate::Pass }
    }

    async fn answer(&self) -> bool {
        true
    }
}

/// The store has no room for snapshots. Counts how often one is written.
struct NoRoom(AtomicU64);

#[async_trait]
impl Gate for NoRoom {
    async fn request(&self, action: Action, path: &str) -> Fate {
        match (action, paths::parse(path)) {
            (Action::Write, Some(ObjectKind::Snapshot(_))) => {
                self.0.fetch_add(1, Ordering::Relaxed);
                Fate::Fail
            }
            _ => Fate::Pass,
        }
    }

    async fn answer(&self) -> bool {
        true
    }
}

struct Cluster {
    queue: MemoryQueue,
    objects: Objects,
}

impl Cluster {
    fn new() -> Self {
        Self { queue: MemoryQueue::new(Arc::new(SystemClock::new())), objects: Objects::memory() }
    }

    fn broker(&self) -> Broker {
        Broker::new(Arc::new(self.queue.clone()), self.objects.clone())
    }

    /// A coordinator whose store does not respond to the requests of these numbers.
    async fn coordinate(&self, id: &str, (from, to): (u64, u64)) -> (SharedState, Health) {
        self.coordinate_behind(id, Arc::new(Hangs { from, to, asked: AtomicU64::new(0) })).await
    }

    async fn coordinate_behind(&self, id: &str, gate: Arc<dyn Gate>) -> (SharedState, Health) {
        self.coordinate_saving(id, gate, u64::MAX).await
    }

    /// A coordinator that writes a snapshot after so many events.
    async fn coordinate_saving(
        &self,
        id: &str,
        gate: Arc<dyn Gate>,
        snapshot_events: u64,
    ) -> (SharedState, Health) {
        let broker = Broker::new(Arc::new(self.queue.clone()), gated(&self.objects, gate));
        let shared = driver::restore(&broker).await.expect("memory answers");
        let health = Health::default();
        let config = DriverConfig { snapshot_events, ..DriverConfig::new(id) };
        let stop = CancellationToken::new();
        tokio::spawn(driver::run(broker, config, shared.clone(), health.clone(), stop));
        (shared, health)
    }

    /// The leader's name and epoch.
    async fn leader(&self) -> (String, u64) {
        let value = self.queue.get(COORDINATOR_BUCKET, LEASE_KEY).await.expect("memory answers");
        let Some(value) = value else { return (String::new(), 0) };
        let lease: serde_json::Value = serde_json::from_slice(&value.value).expect("a lease");
        (lease["holder"].as_str().expect("a name").to_owned(), lease["epoch"].as_u64().expect("a number"))
    }

    async fn led_by(&self, name: &str) {
        let waiting = async {
            while self.leader().await.0 != name {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("{name} never leads"));
    }

    async fn submit(&self, run: &str) {
        let text = format!(
            r#"
            name = "{run}"
            steps = 3
            model = {{ kind = "scripted" }}
            environment = {{ name = "counter", turns = 1 }}
            evaluate = {{ prompts = 0 }}
            rollout = {{ groups_per_step = 2, group_size = 2 }}
        "#
        );
        let spec = from_toml(&text).expect("a valid run file");
        self.broker().append(run, &Event::Submitted(Box::new(spec))).await.expect("memory answers");
    }

    /// Waits until the first tasks of these runs are queued.
    async fn put(&self, runs: &[&str]) {
        let pool = "gang".parse().expect("a pool");
        let mut puller = self.queue.puller(Stage::TrainShard, &pool).await.expect("memory answers");
        let mut found = BTreeSet::new();
        let waiting = async {
            while found.len() < runs.len() {
                for delivery in puller.pull(8).await.expect("memory answers") {
                    let run = delivery.message.subject.split('.').nth(4).map(str::to_owned);
                    found.extend(run.filter(|run| runs.contains(&run.as_str())));
                }
            }
        };
        timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("of {runs:?} only {found:?} got on"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_store_never_responds_loses_its_lease_to_a_standby() {
    let cluster = Cluster::new();
    cluster.coordinate("hangs", (0, u64::MAX)).await;
    cluster.led_by("hangs").await;
    cluster.coordinate("well", (0, 0)).await;
    let since = Instant::now();
    cluster.submit("run").await;
    cluster.led_by("well").await;
    let stated = Duration::from_millis(LEADER_STALL_MS + LEASE_MS);
    assert!(since.elapsed() <= stated, "{:?}", since.elapsed());
    cluster.put(&["run"]).await;
}

/// Its credentials for the object store have expired: it can read the lease, but not the log entry
/// that is a claim check. The standby's have not.
#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_read_the_log_loses_its_lease_to_a_standby() {
    let cluster = Cluster::new();
    cluster.coordinate_behind("refused", Arc::new(Refuses)).await;
    cluster.led_by("refused").await;
    cluster.coordinate("well", (0, 0)).await;
    let since = Instant::now();
    let large = Event::Cancelled { reason: "x".repeat(2 * MAX_INLINE_EVENT_BYTES) };
    cluster.broker().append("run", &large).await.expect("memory answers");
    cluster.led_by("well").await;
    let stated = Duration::from_millis(LEADER_STALL_MS + 2 * LEASE_MS);
    assert!(since.elapsed() <= stated, "{:?}", since.elapsed());
    // It does not take the lease back in turns: the standby gets on.
    sleep(Duration::from_millis(LEADER_STALL_MS) * 10).await;
    assert_eq!(cluster.leader().await, ("well".to_owned(), 2));
    cluster.submit("next").await;
    cluster.put(&["next"]).await;
}

#[tokio::test(start_paused = true)]
async fn leaders_with_the_same_problem_alternate_no_faster_than_bounded() {
    let cluster = Cluster::new();
    cluster.coordinate("one", (0, u64::MAX)).await;
    cluster.coordinate("two", (0, u64::MAX)).await;
    cluster.submit("run").await;
    sleep(Duration::from_millis(LEADER_STALL_MS) * 63).await;
    let (_, epoch) = cluster.leader().await;
    // 1 + 2 + 4 + 8 + 16 + 32 = 63 stalls.
    assert!((4..=7).contains(&epoch), "{epoch} leaders");
}

/// The request that hangs is of one run; a probe shows that others succeed.
#[tokio::test(start_paused = true)]
async fn a_run_that_hangs_affects_neither_the_lease_nor_another_run() {
    let cluster = Cluster::new();
    let (_, health) = cluster.coordinate("leader", (0, 1)).await;
    cluster.coordinate("standby", (0, 0)).await;
    cluster.led_by("leader").await;
    cluster.submit("stuck").await;
    sleep(Duration::from_millis(LEADER_STALL_MS) * 10).await;
    cluster.submit("free").await;
    cluster.put(&["free"]).await;
    assert_eq!(cluster.leader().await, ("leader".to_owned(), 1));
    assert!(health.report().leader.expect("reported"));
    // The try that hangs is given up at last, and the run goes on.
    cluster.put(&["stuck"]).await;
}

/// A snapshot is due with every event; each retry comes after twice the pause, and the run
/// continues.
#[tokio::test(start_paused = true)]
async fn failed_snapshots_are_retried_with_back_off() {
    let (cluster, gate) = (Cluster::new(), Arc::new(NoRoom(AtomicU64::new(0))));
    let (shared, _) = cluster.coordinate_saving("leader", gate.clone(), 1).await;
    cluster.led_by("leader").await;
    cluster.submit("run").await;
    cluster.put(&["run"]).await;
    let begun = shared.lock().seq;
    sleep(Duration::from_secs(600)).await;
    let (tries, events) = (gate.0.load(Ordering::Relaxed), shared.lock().seq - begun);
    // After 1, 2, 4, … 256 s, and then every 300 s; each try may ask the store a few times.
    assert!((5..=40).contains(&tries), "{tries} tries");
    assert!(events > 500, "{events} ticks");
}

/// It is paused with the reason, delays no other run, and continues once the cause is repaired.
#[tokio::test(start_paused = true)]
async fn a_run_whose_commands_are_refused_is_paused_and_resumes() {
    let (cluster, stuck) = (Cluster::new(), "stuck".parse::<RunId>().expect("a name"));
    let gate = Arc::new(Forbids { below: paths::run(&stuck), now: AtomicBool::new(true) });
    let (shared, _) = cluster.coordinate_behind("leader", gate.clone()).await;
    cluster.led_by("leader").await;
    cluster.submit("stuck").await;
    cluster.submit("free").await;
    cluster.put(&["free"]).await;
    let paused = async {
        loop {
            let reason = shared.lock().runs.get(&stuck).and_then(|run| run.reason.clone());
            if let Some(reason) = reason {
                return reason;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let reason = timeout(DEADLINE, paused).await.expect("it is paused");
    assert!(reason.contains("forbid"), "{reason}");
    assert_eq!(shared.lock().runs[&stuck].state, RunState::Paused);
    assert_eq!(cluster.leader().await, ("leader".to_owned(), 1), "it leads the others");
    gate.now.store(false, Ordering::Relaxed);
    cluster.broker().append("stuck", &Event::Resumed).await.expect("memory answers");
    cluster.put(&["stuck"]).await;
}

/// A late entry of a former leader is skipped by every fold.
#[tokio::test(start_paused = true)]
async fn a_late_append_of_a_former_leader_changes_nothing() {
    let cluster = Cluster::new();
    let broker = cluster.broker();
    let worker = "w".parse().expect("a name");
    broker.append_led(ALL_RUNS, &Event::Tick { unix_ms: 5_000 }, 2).await.expect("appended");
    let joined = Event::Joined { worker, instance: "i".to_owned() };
    broker.append_led(ALL_RUNS, &joined, 1).await.expect("appended");
    broker.append_led(ALL_RUNS, &Event::Tick { unix_ms: 1_000 }, 1).await.expect("appended");
    let last = broker.append_led(ALL_RUNS, &Event::Tick { unix_ms: 6_000 }, 2).await.expect("appended");
    let (shared, _) = cluster.coordinate("one", (0, 0)).await;
    assert!(shared.wait_for(last.seq, DEADLINE).await);
    let state = shared.lock().clone();
    assert_eq!((state.unix_ms, state.epoch, state.members.len(), state.ignored), (6_000, 2, 0, 2));
    // Its own epoch is later than any in the log, though the lease's key knew of none.
    cluster.led_by("one").await;
    assert_eq!(cluster.leader().await.1, 3);
}

/// A standby whose next entries were trimmed or purged reports that and does not lead.
#[tokio::test(start_paused = true)]
async fn a_coordinator_does_not_lead_if_the_log_lacks_entries() {
    let cluster = Cluster::new();
    for unix_ms in 0..5 {
        cluster.broker().append(ALL_RUNS, &Event::Tick { unix_ms }).await.expect("appended");
    }
    cluster.queue.trim_log(4).await.expect("memory answers");
    let (shared, health) = cluster.coordinate("one", (0, 0)).await;
    let waiting = async {
        while shared.blocked().is_none() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(DEADLINE, waiting).await.expect("it finds out");
    let why = shared.blocked().expect("just seen");
    assert!(why.contains("seq=1 to seq=3") && why.contains("restore"), "{why}");
    assert!(health.report().troubles.contains_key("log"));
    sleep(Duration::from_millis(5 * LEASE_MS)).await;
    assert_eq!(cluster.leader().await.0, "", "it does not lead");
}

/// A full lane drops its commands, so that they are bounded. Later it executes all outstanding
/// commands.
#[tokio::test(start_paused = true)]
async fn a_full_lane_delays_no_one_and_catches_up() {
    use millrace_coordinator::fold::command::Command;
    use millrace_coordinator::shell::lanes::{LaneId, LaneWork, Lanes, StartedLane};
    let (lanes, mut started) = Lanes::new();
    let run: RunId = "slow".parse().expect("a name");
    let purge = || Command::Purge { run: run.clone(), stage: Stage::Reward, filter: "x".to_owned() };
    let since = Instant::now();
    for _ in 0..4 {
        lanes.push((0..MAX_COMMANDS_WAITING / 2 + 1).map(|_| purge()).collect());
        lanes.room().await;
    }
    assert!(since.elapsed() <= Duration::from_secs(1), "{:?}", since.elapsed());
    let lane: StartedLane = started.recv().await.expect("it has work");
    assert_eq!(lane.id, LaneId::Run(run.clone()));
    assert!(matches!(lanes.next(&lane, 8), LaneWork::Outstanding), "it is behind");
    lanes.caught_up(&lane);
    lanes.push(vec![purge()]);
    assert!(matches!(lanes.next(&lane, 8), LaneWork::Commands(commands) if commands.len() == 1));
    assert!(matches!(lanes.next(&lane, 8), LaneWork::Nothing) && lanes.is_idle());
    // What an executor of an earlier term asks for, it does not get.
    lanes.restart([LaneId::Run(run)]);
    assert!(matches!(lanes.next(&lane, 8), LaneWork::Nothing));
    assert!(!lanes.is_idle());
}
