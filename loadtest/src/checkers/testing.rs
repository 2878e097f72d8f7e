//! A sound history for the checkers' tests to break: a small run with the real fold, real executors and one
//! worker that does one task after another.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use millrace_coordinator::fold::state::State;
use millrace_coordinator::fold::{Command, status};
use millrace_queue::clock::SystemClock;
use millrace_queue::{Broker, MemoryQueue, Objects};
use millrace_schemas::generate::GenerateDone;
use millrace_schemas::submit::from_toml;
use millrace_schemas::train_shard::Batch;
use millrace_schemas::{Event, Outcome, OutcomeBody, RunId, Stage, Task, TaskBody};
use millrace_workers::env_step::EnvStep;
use millrace_workers::model::versions::VersionStore;
use millrace_workers::publish_weights::PublishWeights;
use millrace_workers::reward::Reward;
use millrace_workers::train_shard::TrainShard;
use millrace_workers::{Executor, Verdict};
use tokio_util::sync::CancellationToken;

use super::history::{History, PolicySeen};
use super::puts::TaskPut;
use super::record::record;

pub(super) fn run() -> RunId {
    "checked".parse().expect("a name")
}

/// A run that finished, with every promise held.
pub(super) async fn sound() -> History {
    play(usize::MAX).await
}

/// The same run after some hundred events.
pub(super) async fn midway() -> History {
    play(300).await
}

/// Changes the batch of a committed version.
pub(super) fn break_batch(history: &mut History, version: usize, change: impl FnOnce(&mut Batch)) {
    let stored = history.committed.get_mut(&run()).expect("versions")[version].as_mut().expect("readable");
    change(stored.batch.as_mut().expect("a batch"));
}

struct World {
    broker: Broker,
    state: State,
    tasks: VecDeque<Task>,
    policies: Vec<PolicySeen>,
    puts: Vec<TaskPut>,
    executors: BTreeMap<Stage, Arc<dyn Executor>>,
}

async fn play(events: usize) -> History {
    let spec = from_toml(
        r#"
        name = "checked"
        steps = 6
        model = { kind = "scripted" }
        environment = { name = "counter", turns = 2 }
        evaluate = { prompts = 3, every = 3 }
        [rollout]
        groups_per_step = 4
        group_size = 2
        alpha = 1.5
        filter = "equal_rewards"
        "#,
    );
    let objects = Objects::memory();
    let broker = Broker::new(Arc::new(MemoryQueue::new(Arc::new(SystemClock::new()))), objects.clone());
    let trainer = TrainShard::new(VersionStore::new(objects.clone())).reading(Some(broker.clone()));
    let executors: [(Stage, Arc<dyn Executor>); 4] = [
        (Stage::EnvStep, Arc::new(EnvStep::default())),
        (Stage::Reward, Arc::new(Reward::default())),
        (Stage::TrainShard, Arc::new(trainer)),
        (Stage::PublishWeights, Arc::new(PublishWeights::new(objects))),
    ];
    let (state, tasks) = (State::default(), VecDeque::new());
    let mut world =
        World { broker, state, tasks, policies: Vec::new(), puts: Vec::new(), executors: executors.into() };
    world.append(Event::Tick { unix_ms: 1_000 }).await;
    world.append(Event::Submitted(Box::new(spec.expect("a valid run file")))).await;
    while world.state.seq < events as u64
        && let Some(task) = world.tasks.pop_front()
    {
        let run = &world.state.runs[&run()];
        assert!(status::ledger(run).balanced());
        if run.policy.as_ref().is_some_and(|policy| policy.is_stale(task.key, task.version, task.evaluate)) {
            continue;
        }
        let body = world.answer(&task).await;
        let worker = "w".parse().expect("a name");
        world
            .append(Event::Outcome(Outcome {
                key: task.key,
                worker,
                busy_us: 7,
                request_fingerprint: None,
                body,
            }))
            .await;
    }
    let mut history = record(&world.broker).await.expect("memory answers");
    history.policies = world.policies;
    history.puts = Some(world.puts);
    history
}

impl World {
    async fn append(&mut self, event: Event) {
        let seq = self.broker.append(run().as_str(), &event).await.expect("memory answers").seq;
        for command in self.state.advance(seq, run().as_str(), event) {
            match command {
                Command::PutTask(task) => {
                    self.puts.push(TaskPut::from(&*task));
                    self.tasks.push_back(*task);
                }
                Command::PutBlob { run, content } => {
                    self.broker.objects().put_blob(&run, content).await.expect("memory answers");
                }
                Command::SetPolicy { run, policy } => {
                    self.policies.push(PolicySeen { run, policy, epoch: 0 });
                }
                _ => {}
            }
        }
    }

    async fn answer(&self, task: &Task) -> OutcomeBody {
        let TaskBody::Generate(generate) = &task.body else {
            let executor = &self.executors[&task.stage()];
            let mut task = task.clone();
            self.broker.resolve(&mut task).await.expect("memory answers");
            return match executor.execute(task, CancellationToken::new()).await {
                Verdict::Done(body, _) => body,
                other => panic!("{other:?}"),
            };
        };
        let version = self.state.runs[&task.run].version();
        OutcomeBody::Generate(GenerateDone::sampled(&[(generate.seed % 128) as u32], &[-0.5], version))
    }
}
