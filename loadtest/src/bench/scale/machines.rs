//! Instances with a worker each: they start after a while, leave when asked, and are interrupted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millrace_autoscaler::targets::{Order, Target, TargetError};
use millrace_queue::Broker;
use millrace_schemas::Stage;
use millrace_telemetry::Health;
use millrace_workers::{Departure, Worker, WorkerSettings};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::work::{self, Pace};
use crate::virtual_run::pools;

/// The notice of a spot interruption comes so long before it.
const NOTICE: Duration = Duration::from_secs(120);

/// Interruptions of the instances.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preemption {
    /// Mean time between two of one instance.
    pub(super) every: Duration,
    /// They are announced.
    pub(super) announced: bool,
}

/// One pool of instances.
pub(super) struct Machines {
    pub(super) name: String,
    pub(super) stages: Vec<Stage>,
    pub(super) most: u32,
    slots: u32,
    broker: Broker,
    pace: Pace,
    preemption: Option<Preemption>,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    number: u64,
    desired: u32,
    instances: BTreeMap<String, Instance>,
    paid: Duration,
    interrupted: u64,
}

struct Instance {
    since: Instant,
    departure: Departure,
    /// It leaves: another may take its place.
    leaving: bool,
    life: JoinHandle<()>,
}

impl Machines {
    pub(super) fn new(
        broker: Broker,
        pace: Pace,
        name: &str,
        stages: &[Stage],
        (most, slots): (u32, u32),
        preemption: Option<Preemption>,
    ) -> Arc<Self> {
        let (name, stages) = (name.to_owned(), stages.to_vec());
        Arc::new(Self { name, stages, most, slots, broker, pace, preemption, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps so many instances from now on. Those that go are the youngest.
    pub(super) fn has(self: &Arc<Self>, desired: u32) {
        self.keep(desired, &[]);
    }

    fn keep(self: &Arc<Self>, desired: u32, leave: &[String]) {
        let mut state = self.state();
        state.desired = desired;
        for name in leave {
            if let Some(instance) = state.instances.get_mut(name) {
                instance.leave();
            }
        }
        let mut staying: Vec<_> =
            state.instances.iter_mut().filter(|(_, instance)| !instance.leaving).collect();
        staying.sort_by_key(|(_, instance)| instance.since);
        let surplus = staying.len().saturating_sub(desired as usize);
        staying.into_iter().rev().take(surplus).for_each(|(_, instance)| instance.leave());
        let staying = state.instances.values().filter(|instance| !instance.leaving).count() as u32;
        for _ in staying..desired {
            state.number += 1;
            let name = format!("{}-{}", self.name, state.number);
            let departure = Departure::default();
            let life = tokio::spawn(self.clone().live(name.clone(), departure.clone()));
            let instance = Instance { since: Instant::now(), departure, leaving: false, life };
            state.instances.insert(name, instance);
        }
    }

    /// Seconds of instances so far.
    pub(super) fn paid_s(&self) -> f64 {
        let state = self.state();
        let live: Duration = state.instances.values().map(|instance| instance.since.elapsed()).sum();
        (state.paid + live).as_secs_f64()
    }

    pub(super) fn interrupted(&self) -> u64 {
        self.state().interrupted
    }

    /// One instance, from its start to its end.
    async fn live(self: Arc<Self>, name: String, departure: Departure) {
        let started = departure.requested().run_until_cancelled(sleep(self.pace.start_up(&name))).await;
        if started.is_some() {
            self.serve(&name, &departure).await;
        }
        self.gone(&name);
    }

    /// The worker, until it leaves or is interrupted.
    async fn serve(&self, name: &str, departure: &Departure) {
        let id = name.parse().expect("a pool's name and a number are a worker's name");
        let settings = WorkerSettings { member_of: Some(self.name.clone()), ..WorkerSettings::new(id) };
        let pools = pools(self.stages.iter().map(|stage| (*stage, self.slots)));
        let executor = work::Worker::of(&self.pace);
        let worker = Worker::start(self.broker.clone(), settings);
        let serving = worker.serve(pools, move |_| executor.clone(), Health::default(), departure.clone());
        let Some(Preemption { every, announced }) = self.preemption else {
            serving.await;
            return;
        };
        let mut serving = std::pin::pin!(serving);
        // Exponential, as interruptions without a memory are.
        let alive = every.mul_f64(-self.pace.draw(&format!("{name} ends")).max(1e-9).ln());
        if timeout(alive, &mut serving).await.is_ok() {
            return;
        }
        self.state().interrupted += 1;
        if announced {
            departure.request("spot", Some(NOTICE));
            let _ = timeout(NOTICE, serving).await;
        }
        // Dropping it is the kill.
    }

    /// The instance is gone; another takes its place where it was not to leave.
    fn gone(self: &Arc<Self>, name: &str) {
        let desired = {
            let mut state = self.state();
            if let Some(instance) = state.instances.remove(name) {
                state.paid += instance.since.elapsed();
            }
            state.desired
        };
        self.keep(desired, &[]);
    }
}

impl Instance {
    fn leave(&mut self) {
        self.leaving = true;
        self.departure.request("scaled in", None);
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.state().instances.values().for_each(|instance| instance.life.abort());
    }
}

/// The handle that the autoscaler has.
#[async_trait]
impl Target for Pool {
    async fn follow(&self, desired: u32, order: &Order) -> Result<(), TargetError> {
        let leave: Vec<String> = order.leave.iter().map(ToString::to_string).collect();
        self.0.keep(desired, &leave);
        Ok(())
    }
}

/// A pool as a target.
pub(super) struct Pool(pub(super) Arc<Machines>);
