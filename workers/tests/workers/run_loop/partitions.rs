//! Two generate workers and a run with partitions: turns stay with one worker while both have room.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use millrace_schemas::blob::Sha;
use millrace_schemas::generate::{GenerateDone, GenerateTask, Sampling};
use millrace_schemas::policy::Policy;
use millrace_schemas::subjects::GENERATE_POOL;
use millrace_schemas::{OutcomeBody, PolicyVersion, RolloutId, Stage, Task, TaskBody, TaskKey, partition};
use millrace_workers::{Cost, PoolSettings, Verdict};
use tokio::sync::Semaphore;

use crate::run_loop::support::{Bench, Running, eventually, on_both_queues, run};

on_both_queues!(
    turns_stay_with_the_worker_that_ranks_first,
    a_worker_serves_runs_with_and_without_partitions,
);

mod before_leases_end {
    use super::a_full_worker_is_passed_over_at_once;
    use crate::run_loop::support::on_both_queues;

    on_both_queues!(LONG_LEASES: a_full_worker_is_passed_over_at_once);
}

const PARTITIONS: u32 = 8;
const GRACE: Duration = Duration::from_secs(5);
/// No two of their pull priorities are the same.
const NAMES: [&str; 2] = ["generate-0", "generate-1"];

/// The worker that executes each task.
type Begun = Arc<Mutex<Vec<(&'static str, TaskKey)>>>;

pub(crate) fn turn_of(group: u64, turn: u32, partitions: u32) -> Task {
    let rollout = RolloutId { group, index: 0, attempt: 0 };
    Task {
        run: run(),
        key: TaskKey::Generate { rollout, turn },
        pool: partition::of_group(&run(), group, partitions),
        version: PolicyVersion(0),
        evaluate: false,
        body: TaskBody::Generate(GenerateTask::new(vec![1], 1, Sampling::at(1.0), 1)),
    }
}

fn sampled() -> Verdict {
    let done = GenerateDone::sampled(&[1], &[-1.0], PolicyVersion(0));
    Verdict::Done(OutcomeBody::Generate(done), Cost::default())
}

/// The worker with the highest pull priority for a group.
fn first(group: u64) -> &'static str {
    let pool = partition::of_group(&run(), group, PARTITIONS);
    let rank = |name: &str| {
        let ranks: BTreeMap<_, _> =
            partition::pull_priorities(&name.parse().unwrap(), PARTITIONS).into_iter().collect();
        ranks[&pool]
    };
    assert_ne!(rank(NAMES[0]), rank(NAMES[1]), "the names were chosen so");
    if rank(NAMES[0]) < rank(NAMES[1]) { NAMES[0] } else { NAMES[1] }
}

impl Bench {
    /// The coordinator's part: pools, partitions, and a policy that names their number.
    async fn set_partitions(&self, partitions: u32) {
        let queue = self.broker.queue();
        queue.ensure_pool(Stage::Generate, &GENERATE_POOL.parse().unwrap()).await.unwrap();
        for pool in partition::pools(partitions) {
            queue.ensure_partition(Stage::Generate, &pool).await.unwrap();
        }
        let (version, floor) = (PolicyVersion(0), PolicyVersion(0));
        let manifest = Sha::of(b"manifest");
        let policy = Policy { version, manifest, floor, attempt: 0, partitions, ended: false };
        self.broker.set_policy(&run(), &policy).await.unwrap();
    }

    /// A generate worker; each task takes a permit of `gate` while it executes.
    fn generator(
        &self,
        name: &'static str,
        concurrency: u32,
        begun: &Begun,
        gate: &Arc<Semaphore>,
    ) -> Running {
        let serves =
            PoolSettings { stage: Stage::Generate, pool: GENERATE_POOL.parse().unwrap(), concurrency };
        let (begun, gate) = (begun.clone(), gate.clone());
        self.worker_of(name, serves, GRACE, move |task, _| {
            begun.lock().unwrap().push((name, task.key));
            let gate = gate.clone();
            async move {
                let _permit = gate.acquire().await.unwrap();
                sampled()
            }
            .boxed()
        })
    }

    /// Puts a task and waits until its execution starts; returns the worker.
    async fn begun_by(&self, task: &Task, begun: &Begun) -> &'static str {
        self.put(task).await;
        eventually("the task is begun", async || {
            let begun = begun.lock().unwrap();
            begun.iter().find(|(_, key)| *key == task.key).map(|(name, _)| *name)
        })
        .await
    }

    /// Puts tasks until both workers pull from partitions.
    async fn warm_up(&self, begun: &Begun) {
        for group in 1_000.. {
            let by = self.begun_by(&turn_of(group, 1, PARTITIONS), begun).await;
            let seen = |name: &str| begun.lock().unwrap().iter().any(|(by, _)| *by == name);
            if by == first(group) && NAMES.iter().all(|name| seen(name)) {
                break;
            }
        }
    }
}

async fn turns_stay_with_the_worker_that_ranks_first(bench: Bench) {
    let (begun, gate) = (Begun::default(), Arc::new(Semaphore::new(100)));
    bench.set_partitions(PARTITIONS).await;
    let workers = NAMES.map(|name| bench.generator(name, 48, &begun, &gate));
    bench.warm_up(&begun).await;
    let (mut stayed, mut turns) = (0, 0);
    for turn in 1..=5 {
        for group in 0..16 {
            let by = bench.begun_by(&turn_of(group, turn, PARTITIONS), &begun).await;
            turns += 1;
            stayed += u32::from(by == first(group));
        }
    }
    // While a worker divides its slots among other partitions, it pulls nothing for a moment.
    assert!(stayed * 20 >= turns * 19, "{stayed} of {turns} turns stayed");
    for worker in workers {
        assert!(worker.leave().await);
    }
}

async fn a_full_worker_is_passed_over_at_once(bench: Bench) {
    let (begun, gate) = (Begun::default(), Arc::new(Semaphore::new(100)));
    bench.set_partitions(PARTITIONS).await;
    let workers = NAMES.map(|name| bench.generator(name, 1, &begun, &gate));
    bench.warm_up(&begun).await;
    let all = gate.acquire_many(100).await.unwrap();
    let group = 5;
    let holder = bench.begun_by(&turn_of(group, 1, PARTITIONS), &begun).await;
    // The same partition: this worker has no free slot, however high its pull priority. Nothing waits for
    // the end of a lease.
    let other = bench.begun_by(&turn_of(group, 2, PARTITIONS), &begun).await;
    assert_ne!(holder, other);
    drop(all);
    for worker in workers {
        assert!(worker.leave().await);
    }
}

async fn a_worker_serves_runs_with_and_without_partitions(bench: Bench) {
    let (begun, gate) = (Begun::default(), Arc::new(Semaphore::new(100)));
    bench.set_partitions(1).await;
    let worker = bench.generator(NAMES[0], 2, &begun, &gate);
    bench.begun_by(&turn_of(1, 1, 1), &begun).await;
    bench.set_partitions(PARTITIONS).await;
    for group in 2..20 {
        bench.begun_by(&turn_of(group, 1, if group % 3 == 0 { 1 } else { PARTITIONS }), &begun).await;
    }
    assert!(worker.leave().await);
    let begun = begun.lock().unwrap();
    assert_eq!(begun.len(), 19, "each once: {begun:?}");
}
