//! A worker with a scripted executor, on a queue of either kind.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use millrace_queue::clock::SystemClock;
use millrace_queue::port::Put;
use millrace_queue::testing::TestServer;
use millrace_queue::{Broker, JetStreamOptions, MemoryQueue, Objects, Queue, QueueSettings};
use millrace_schemas::env_step::{EnvAction, EnvStepDone, EnvStepTask, EnvironmentSpec, Latency, Split};
use millrace_schemas::generate::{Finish, GenerateDone};
use millrace_schemas::{
    Event, Outcome, OutcomeBody, PolicyVersion, PoolName, RolloutId, RunId, Stage, Task, TaskBody, TaskKey,
};
use millrace_telemetry::Health;
use millrace_workers::{Cost, Executor, PoolSettings, Verdict, Worker, WorkerSettings};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longer than anything but a fault takes.
const DEADLINE: Duration = Duration::from_secs(30);

/// Leases that a test can wait for.
pub(crate) const SHORT_LEASES: Duration = Duration::from_secs(1);
/// Leases that no test waits for: what comes within [`DEADLINE`] did not need their end.
pub(crate) const LONG_LEASES: Duration = Duration::from_secs(90);

/// Defines each test twice: in memory, and on a real nats-server.
macro_rules! on_both_queues {
    ($($test:ident),+ $(,)?) => {
        $crate::run_loop::support::on_both_queues!(SHORT_LEASES: $($test),+);
    };
    ($leases:ident: $($test:ident),+ $(,)?) => {
        mod in_memory {
            use crate::run_loop::support::{$leases, Bench};
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(Bench::in_memory($leases).await).await;
            })+
        }
        mod on_nats {
            use crate::run_loop::support::{$leases, Bench};
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(Bench::on_nats($leases).await).await;
            })+
        }
    };
}
pub(crate) use on_both_queues;

/// A queue with a pool, and its surroundings.
pub(crate) struct Bench {
    pub(crate) broker: Broker,
    pub(crate) server: Option<TestServer>,
}

fn settings(leases: Duration) -> QueueSettings {
    QueueSettings { ack_wait: leases, ..QueueSettings::default() }
}

impl Bench {
    pub(crate) async fn in_memory(leases: Duration) -> Self {
        let queue = MemoryQueue::with_settings(Arc::new(SystemClock::new()), settings(leases));
        Self::on(Arc::new(queue), None).await
    }

    pub(crate) async fn on_nats(leases: Duration) -> Self {
        let server = TestServer::start().await;
        let options = JetStreamOptions { settings: settings(leases), ..Default::default() };
        let queue = server.connect(options).await;
        Self::on(queue, Some(server)).await
    }

    async fn on(queue: Arc<dyn Queue>, server: Option<TestServer>) -> Self {
        queue.ensure_pool(Stage::EnvStep, &pool()).await.unwrap();
        Self { broker: Broker::new(queue, Objects::memory()), server }
    }

    /// Starts a worker on the pool. It must find out by itself how often to send heartbeats.
    pub(crate) fn worker<F>(&self, concurrency: u32, grace: Duration, executor: F) -> Running
    where
        F: Fn(Task, CancellationToken) -> BoxFuture<'static, Verdict> + Send + Sync + 'static,
    {
        let serves = PoolSettings { stage: Stage::EnvStep, pool: pool(), concurrency };
        self.worker_of("test", serves, grace, executor)
    }

    /// Starts a worker of this name on any pool.
    pub(crate) fn worker_of<F>(
        &self,
        name: &str,
        serves: PoolSettings,
        grace: Duration,
        executor: F,
    ) -> Running
    where
        F: Fn(Task, CancellationToken) -> BoxFuture<'static, Verdict> + Send + Sync + 'static,
    {
        self.worker_with(name, serves, grace, Arc::new(ScriptedExecutor(executor)))
    }

    /// The same with this executor.
    pub(crate) fn worker_with(
        &self,
        name: &str,
        serves: PoolSettings,
        grace: Duration,
        executor: Arc<dyn Executor>,
    ) -> Running {
        self.worker_serving(name, vec![serves], grace, move |_| executor.clone())
    }

    /// The same with several pools, and an executor for each stage.
    pub(crate) fn worker_serving(
        &self,
        name: &str,
        serves: Vec<PoolSettings>,
        grace: Duration,
        executor: impl Fn(Stage) -> Arc<dyn Executor> + Send + 'static,
    ) -> Running {
        let settings = WorkerSettings {
            grace,
            report: Duration::from_millis(50),
            ..WorkerSettings::new(name.parse().unwrap())
        };
        let worker = Worker::start(self.broker.clone(), settings);
        let stop = CancellationToken::new();
        let serving = worker.serve(serves, executor, Health::default(), stop.clone());
        Running { stop, serving: tokio::spawn(serving) }
    }

    pub(crate) async fn put(&self, task: &Task) -> Put {
        self.broker.put_tasks(std::slice::from_ref(task)).await.remove(0).unwrap()
    }

    /// All events in the log so far.
    pub(crate) async fn events(&self) -> Vec<Event> {
        let end = self.broker.queue().log_end().await.unwrap();
        let mut log = self.broker.read_log(1).await.unwrap();
        let mut events = Vec::new();
        while (events.len() as u64) < end {
            events.extend(log.next(1000).await.unwrap().into_iter().map(|logged| logged.event.unwrap()));
        }
        events
    }

    /// The outcomes in the log so far.
    pub(crate) async fn outcomes(&self) -> Vec<Outcome> {
        let outcome = |event| match event {
            Event::Outcome(outcome) => Some(outcome),
            _ => None,
        };
        self.events().await.into_iter().filter_map(outcome).collect()
    }

    /// Waits until `task` is acked, because the queue takes another on the same subject only then.
    /// Leaves none there.
    pub(crate) async fn forgotten(&self, task: &Task) {
        eventually("the queue forgets the task", async || {
            let put = self.put(task).await;
            if put == Put::Queued {
                let all = millrace_schemas::subjects::tasks_of_run(task.stage(), &task.run);
                self.broker.queue().purge(task.stage(), &all).await.unwrap();
            }
            (put == Put::Queued).then_some(())
        })
        .await;
    }
}

/// A worker that serves.
pub(crate) struct Running {
    stop: CancellationToken,
    serving: JoinHandle<bool>,
}

impl Running {
    /// Stops it, and waits for its end. Returns whether all tasks were settled.
    pub(crate) async fn leave(self) -> bool {
        self.stop.cancel();
        tokio::time::timeout(DEADLINE, self.serving).await.expect("the worker leaves").unwrap()
    }
}

/// An executor that is a closure.
struct ScriptedExecutor<F>(F);

#[async_trait]
impl<F> Executor for ScriptedExecutor<F>
where
    F: Fn(Task, CancellationToken) -> BoxFuture<'static, Verdict> + Send + Sync + 'static,
{
    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict {
        (self.0)(task, cancel).await
    }
}

/// Polls until `look` finds something.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let search = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, search).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// Waits for what must come.
pub(crate) async fn soon(what: &str, notify: &tokio::sync::Notify) {
    let found = tokio::time::timeout(DEADLINE, notify.notified()).await;
    found.unwrap_or_else(|_| panic!("waited in vain: {what}"));
}

pub(crate) fn run() -> RunId {
    "lake".parse().unwrap()
}

pub(crate) fn pool() -> PoolName {
    "counter".parse().unwrap()
}

/// The task that resets rollout `group`, queued at `version`.
pub(crate) fn task(group: u64, version: u64) -> Task {
    let rollout = RolloutId { group, index: 0, attempt: 0 };
    Task {
        run: run(),
        key: TaskKey::EnvStep { rollout, turn: 0 },
        pool: pool(),
        version: PolicyVersion(version),
        evaluate: false,
        body: TaskBody::EnvStep(EnvStepTask {
            environment: EnvironmentSpec::Counter { turns: 3, latency: Latency::default() },
            split: Split::Train,
            seed: group,
            row: None,
            action: EnvAction::Reset,
            answers: None,
            prefix: Vec::new(),
        }),
    }
}

/// The group of a task.
pub(crate) fn group(task: &Task) -> u64 {
    task.key.rollout().unwrap().group
}

/// An empty outcome.
pub(crate) fn done() -> Verdict {
    let done = EnvStepDone {
        state: vec![1],
        observation: vec![1],
        reward: 0.0,
        done: false,
        success: false,
        valid: true,
        ..EnvStepDone::default()
    };
    Verdict::Done(OutcomeBody::EnvStep(done), Cost::default())
}

/// A turn that was handed back after two tokens, 5 and 6.
pub(crate) fn begun_turn() -> Verdict {
    let mut done = GenerateDone::begun(1);
    done.push(5, -0.5, PolicyVersion(0));
    done.push(6, -0.5, PolicyVersion(0));
    done.finish = Finish::Partial;
    Verdict::Done(OutcomeBody::Generate(done), Cost { busy: None, tokens: 2 })
}
