//! The log is trimmed, whatever pauses, hangs or is restarted beside it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_coordinator::fold::status;
use millrace_coordinator::shell::driver::{self, DriverConfig, TrimSettings};
use millrace_coordinator::shell::shared::SharedState;
use millrace_queue::clock::SystemClock;
use millrace_queue::{Broker, EventLog, MemoryQueue, Objects, QueueSettings};
use millrace_schemas::api::RunState;
use millrace_schemas::env_step::{EnvAction, EnvStepDone};
use millrace_schemas::generate::Finish;
use millrace_schemas::reward::RewardDone;
use millrace_schemas::submit::from_toml;
use millrace_schemas::train_shard::{FileRef, TrainShardDone};
use millrace_schemas::{BlobRef, Event, Outcome, OutcomeBody, RunId, Stage, Task, TaskBody, TaskKey};
use millrace_telemetry::Health;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Long enough for anything but a fault, in a test's own time.
const DEADLINE: Duration = Duration::from_secs(12 * 3_600);
/// What the runs ask workers for.
const POOLS: [(Stage, &str); 5] = [
    (Stage::EnvStep, "counter"),
    (Stage::Generate, "policy"),
    (Stage::Reward, "env_return"),
    (Stage::TrainShard, "gang"),
    (Stage::PublishWeights, "commit"),
];
const TRIM: TrimSettings = TrimSettings { every: Duration::from_secs(1), age: Duration::ZERO, entries: 30 };

/// The run whose environments do not answer, if there is one.
type Held = Arc<Mutex<Option<RunId>>>;

struct Cluster {
    queue: MemoryQueue,
    objects: Objects,
    held: Held,
}

impl Cluster {
    fn new(settings: QueueSettings) -> Self {
        let queue = MemoryQueue::with_settings(Arc::new(SystemClock::new()), settings);
        Self { queue, objects: Objects::memory(), held: Held::default() }
    }

    /// A process's own.
    fn broker(&self) -> Broker {
        Broker::new(Arc::new(self.queue.clone()), self.objects.clone())
    }

    async fn coordinate(&self, config: DriverConfig) -> (SharedState, JoinHandle<()>) {
        let broker = self.broker();
        let shared = driver::restore(&broker).await.expect("memory answers");
        let stop = CancellationToken::new();
        let drive = driver::run(broker, config, shared.clone(), Health::default(), stop);
        (shared, tokio::spawn(async move { drive.await.expect("it follows the log") }))
    }

    /// A worker of each stage, of one process.
    fn work(&self) -> JoinSet<()> {
        let broker = self.broker();
        let serve = |(stage, pool)| serve(broker.clone(), stage, pool, self.held.clone());
        POOLS.into_iter().map(serve).collect()
    }

    async fn append(&self, run: &str, event: Event) {
        self.broker().append(run, &event).await.expect("memory answers");
    }

    async fn submit(&self, run: &str, steps: u32) {
        let text = format!(
            r#"
            name = "{run}"
            steps = {steps}
            model = {{ kind = "scripted" }}
            environment = {{ name = "counter", turns = 5 }}
            rewards = [{{ rule = "env_return" }}]
            evaluate = {{ prompts = 0 }}
            rollout = {{ groups_per_step = 2, group_size = 2 }}
        "#
        );
        self.append(run, Event::Submitted(Box::new(from_toml(&text).expect("a valid run file")))).await;
    }

    async fn first(&self) -> u64 {
        self.queue.log_range().await.expect("memory answers").first
    }

    /// Submits a run and waits until each of its rollouts waits for an environment after its first
    /// turn. Returns the position of its newest entry.
    async fn hold(&self, shared: &SharedState, run: &str) -> u64 {
        *self.held.lock().expect("no one panics") = Some(run.parse().expect("a name"));
        self.submit(run, 3).await;
        until("every rollout has a turn", async || {
            let state = shared.lock();
            let run = state.runs.values().next();
            let rollouts =
                run.into_iter().flat_map(|run| run.groups.values()).flat_map(|group| &group.rollouts);
            let entries = || rollouts.clone().map(|rollout| rollout.trajectory.get(1).map(|entry| entry.seq));
            (entries().count() > 0)
                .then(|| entries().collect::<Option<Vec<u64>>>())
                .flatten()?
                .into_iter()
                .max()
        })
        .await
    }

    async fn finished(&self, shared: &SharedState, run: &str) {
        let run: RunId = run.parse().expect("a name");
        until("the run finishes", async || {
            let state = shared.lock();
            let run = state.runs.get(&run)?;
            (run.state == RunState::Finished).then(|| assert!(status::ledger(run).balanced()))
        })
        .await;
    }
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("{what}: never"))
}

/// Does the tasks of a pool, each in some milliseconds. What cannot be written or read is retried.
async fn serve(broker: Broker, stage: Stage, pool: &'static str, held: Held) {
    let pool = pool.parse().expect("a pool");
    let mut puller = broker.queue().puller(stage, &pool).await.expect("memory answers");
    loop {
        for delivery in puller.pull(1).await.expect("memory answers") {
            let mut task = broker.open_task(&delivery).await.expect("a task");
            let is_held = held.lock().expect("no one panics").as_ref() == Some(&task.run);
            if is_held && matches!(task.key, TaskKey::EnvStep { turn: 1.., .. }) {
                delivery.lease.retry_after(DEADLINE).await.expect("memory answers");
                continue;
            }
            sleep(Duration::from_millis(10)).await;
            let fingerprint = task.request_fingerprint();
            broker.resolve(&mut task).await.expect("what a task refers to is in the log or a segment");
            let (run, key) = (task.run.clone(), task.key);
            let body = answer(&broker, task).await;
            let worker = "w".parse().expect("a name");
            let outcome = Outcome { key, worker, busy_us: 1, request_fingerprint: Some(fingerprint), body };
            let event = Event::Outcome(outcome);
            while let Err(error) = broker.append_outcome(&run, key, &delivery, &event).await {
                assert!(error.is_transient(), "{error}");
                delivery.lease.heartbeat().await.expect("memory answers");
                sleep(Duration::from_secs(1)).await;
            }
            delivery.lease.done().await.expect("memory answers");
        }
    }
}

async fn answer(broker: &Broker, task: Task) -> OutcomeBody {
    match task.body {
        TaskBody::Generate(mut generate) => {
            let policy = broker.policy(&task.run).await.expect("memory answers").expect("set").0;
            let token = (generate.seed % 97) as u32;
            let mut done = generate.turn_so_far();
            done.push(token, -0.5, policy.version);
            done.finish = Finish::Stop;
            OutcomeBody::Generate(done)
        }
        TaskBody::EnvStep(step) => {
            let turn = match step.action {
                EnvAction::Reset => 0,
                EnvAction::Step { state, .. } => state[0] + 1,
            };
            let (observation, reward) = (vec![u32::from(turn); 200], f64::from(turn));
            let state = vec![turn];
            OutcomeBody::EnvStep(EnvStepDone {
                state,
                observation,
                reward,
                valid: true,
                ..EnvStepDone::default()
            })
        }
        TaskBody::Reward(reward) => {
            let score = reward.turns.iter().map(|turn| turn.reward).sum();
            OutcomeBody::Reward(RewardDone { score, ..RewardDone::default() })
        }
        TaskBody::TrainShard(_) => {
            let files = vec![FileRef::whole("model", BlobRef::of(task.key.to_string().as_bytes()))];
            OutcomeBody::TrainShard(TrainShardDone { files, metrics: BTreeMap::new() })
        }
        TaskBody::PublishWeights(publish) => OutcomeBody::PublishWeights(publish.committed(1)),
    }
}

/// The trimmed part of its trajectories is read from segments when it is resumed.
#[tokio::test(start_paused = true)]
async fn a_paused_run_does_not_hold_back_the_trimming() {
    let cluster = Cluster::new(QueueSettings::default());
    let config = DriverConfig { snapshot_events: 100, trim: TRIM, ..DriverConfig::new("c") };
    let (shared, _driver) = cluster.coordinate(config).await;
    let workers = cluster.work();
    let newest = cluster.hold(&shared, "paused").await;
    let paused = Event::Paused { reason: "it is Friday".into(), remedy: String::new() };
    cluster.append("paused", paused).await;
    cluster.submit("beside", 40).await;
    cluster.finished(&shared, "beside").await;
    until("its entries are trimmed", async || (cluster.first().await > newest).then_some(())).await;
    // Other workers have none of it.
    drop(workers);
    let _workers = cluster.work();
    *cluster.held.lock().expect("no one panics") = None;
    cluster.append("paused", Event::Resumed).await;
    cluster.finished(&shared, "paused").await;
    let state = shared.lock();
    assert_eq!(state.runs.values().map(|run| status::ledger(run).trained).collect::<Vec<_>>(), [160, 12]);
}

/// Each coordinator writes one snapshot at most.
#[tokio::test(start_paused = true)]
async fn coordinators_that_are_replaced_often_trim_the_log() {
    let cluster = Cluster::new(QueueSettings::default());
    let _workers = cluster.work();
    cluster.submit("run", 1_000).await;
    for _ in 0..12 {
        let config = DriverConfig { snapshot_events: 100, trim: TRIM, ..DriverConfig::new("c") };
        let end = cluster.queue.log_end().await.expect("memory answers");
        let (shared, driver) = cluster.coordinate(config).await;
        assert!(shared.wait_for(end + 60, DEADLINE).await);
        driver.abort();
        assert!(driver.await.is_err(), "it was killed");
    }
    assert!(cluster.first().await > 1, "nothing was trimmed");
}

/// A rollout that hangs refers to the oldest entries, no snapshot is due by the number of events,
/// and a full log gets no entry by which time could be read.
#[tokio::test(start_paused = true)]
async fn a_full_log_is_trimmed_and_work_goes_on() {
    let settings = QueueSettings { max_log_bytes: 200_000, ..QueueSettings::default() };
    let cluster = Cluster::new(settings);
    let trim = TrimSettings { entries: 30, ..TrimSettings::default() };
    let (shared, _driver) = cluster.coordinate(DriverConfig { trim, ..DriverConfig::new("c") }).await;
    let _workers = cluster.work();
    let newest = cluster.hold(&shared, "hangs").await;
    cluster.submit("beside", 40).await;
    cluster.finished(&shared, "beside").await;
    assert!(cluster.first().await > newest, "room was made");
    *cluster.held.lock().expect("no one panics") = None;
    cluster.append("hangs", Event::Paused { reason: "to requeue".into(), remedy: String::new() }).await;
    cluster.append("hangs", Event::Resumed).await;
    cluster.finished(&shared, "hangs").await;
}
