//! Instances with a worker each: they start after a while, leave when asked, and are interrupted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millrace_autoscaler::targets::{Order, Target, TargetError};
use millrace_schemas::Stage;
use millrace_workers::Departure;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::work::Pace;

/// The notice of a spot interruption comes so long before it.
const NOTICE: Duration = Duration::from_secs(120);

/// Interruptions of the instances.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preemption {
    /// Mean time between two of one instance, before the fleet's time is compressed.
    pub(super) every: Duration,
    /// They are announced.
    pub(super) announced: bool,
}

/// What all instances of a pool have in common.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) stages: &'static [Stage],
    /// Instances at most.
    pub(super) most: u32,
    /// Tasks in flight of a worker.
    pub(super) slots: u32,
}

/// Called when a worker serves.
pub(super) type Ready = Box<dyn FnOnce() + Send>;

/// What an instance runs.
#[async_trait]
pub(super) trait Host: Send + Sync + 'static {
    /// Serves as the worker `name` until it has left. Dropping this is the kill. `ready` is called when it
    /// pulls its first task.
    async fn serve(&self, shape: &Shape, name: &str, departure: &Departure, ready: Ready);
}

/// One pool of instances.
pub(super) struct Machines {
    pub(super) shape: Shape,
    host: Arc<dyn Host>,
    pace: Pace,
    preemption: Option<Preemption>,
    /// Somebody else asks the workers to leave: here none is chosen.
    is_told: bool,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    number: u64,
    desired: u32,
    instances: BTreeMap<String, Instance>,
    paid: Duration,
    served: Duration,
    interrupted: u64,
    over: bool,
}

struct Instance {
    since: Instant,
    /// Its worker serves since then.
    serves: Option<Instant>,
    departure: Departure,
    kill: CancellationToken,
    /// It leaves: another may take its place.
    leaving: bool,
    life: JoinHandle<()>,
}

impl Machines {
    pub(super) fn new(
        host: Arc<dyn Host>,
        pace: Pace,
        shape: Shape,
        preemption: Option<Preemption>,
    ) -> Arc<Self> {
        Arc::new(Self { shape, host, pace, preemption, is_told: false, state: Mutex::default() })
    }

    /// The same, where the coordinator asks the workers to leave.
    pub(super) fn told(host: Arc<dyn Host>, pace: Pace, shape: Shape) -> Arc<Self> {
        Arc::new(Self { shape, host, pace, preemption: None, is_told: true, state: Mutex::default() })
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
        if state.over {
            return;
        }
        state.desired = desired;
        for name in leave {
            if let Some(instance) = state.instances.get_mut(name) {
                instance.leave();
            }
        }
        let mut staying: Vec<_> =
            state.instances.iter_mut().filter(|(_, instance)| !instance.leaving).collect();
        staying.sort_by_key(|(_, instance)| instance.since);
        let surplus = if self.is_told { 0 } else { staying.len().saturating_sub(desired as usize) };
        staying.into_iter().rev().take(surplus).for_each(|(_, instance)| instance.leave());
        let staying = state.instances.values().filter(|instance| !instance.leaving).count() as u32;
        for _ in staying..desired {
            state.number += 1;
            let name = format!("{}-{}", self.shape.name, state.number);
            let (departure, kill) = (Departure::default(), CancellationToken::new());
            let life = self.clone().live(name.clone(), departure.clone(), kill.clone());
            let life = tokio::spawn(life);
            let since = Instant::now();
            let instance = Instance { since, serves: None, departure, kill, leaving: false, life };
            state.instances.insert(name, instance);
        }
    }

    /// Has so many instances from now on, because the market takes the others, drawn by name, or
    /// offers more.
    pub(super) fn is_left(self: &Arc<Self>, count: u32, announced: bool) {
        let taken: Vec<String> = {
            let mut state = self.state();
            state.desired = count;
            let staying = state.instances.iter().filter(|(_, instance)| !instance.leaving);
            let mut names: Vec<String> = staying.map(|(name, _)| name.clone()).collect();
            names.sort_by(|a, b| self.pace.draw(a).total_cmp(&self.pace.draw(b)));
            let taken: Vec<String> = names.into_iter().skip(count as usize).collect();
            for name in &taken {
                state.instances.get_mut(name).expect("it was found above").leaving = true;
            }
            taken
        };
        for name in taken {
            tokio::spawn(self.clone().interrupt(name, announced));
        }
        self.keep(count, &[]);
    }

    /// Kills an instance at once. Returns whether it was there.
    pub(super) async fn lose(self: &Arc<Self>, name: &str) -> bool {
        self.clone().interrupt(name.to_owned(), false).await
    }

    /// Takes an instance, two minutes after the notice where there is one. Returns whether it was there.
    async fn interrupt(self: Arc<Self>, name: String, announced: bool) -> bool {
        let (departure, kill) = {
            let mut state = self.state();
            let Some(instance) = state.instances.get(&name) else { return false };
            let handles = (instance.departure.clone(), instance.kill.clone());
            state.interrupted += 1;
            handles
        };
        if announced {
            let notice = self.pace.of_fleet(NOTICE);
            departure.request("spot", Some(notice));
            sleep(notice).await;
        }
        kill.cancel();
        true
    }

    /// Seconds of instances so far, from the request of each to its end.
    pub(super) fn paid_s(&self) -> f64 {
        let state = self.state();
        let live: Duration = state.instances.values().map(|instance| instance.since.elapsed()).sum();
        (state.paid + live).as_secs_f64()
    }

    /// Seconds of workers so far, from when each was ready to its end.
    pub(super) fn served_s(&self) -> f64 {
        let state = self.state();
        let serving = state.instances.values().filter_map(|instance| instance.serves);
        let live: Duration = serving.map(|since| since.elapsed()).sum();
        (state.served + live).as_secs_f64()
    }

    pub(super) fn interrupted(&self) -> u64 {
        self.state().interrupted
    }

    /// Kills what is left. No instance starts any more.
    pub(super) async fn end(&self) {
        let lives: Vec<JoinHandle<()>> = {
            let mut state = self.state();
            state.over = true;
            std::mem::take(&mut state.instances).into_values().map(|instance| instance.life).collect()
        };
        for life in lives {
            life.abort();
            // Aborted, so that its worker is dropped.
            let _ = life.await;
        }
    }

    /// One instance, from its start to its end.
    async fn live(self: Arc<Self>, name: String, departure: Departure, kill: CancellationToken) {
        let start_up = sleep(self.pace.start_up(&name));
        let started = kill.run_until_cancelled(departure.requested().run_until_cancelled(start_up)).await;
        if let Some(Some(())) = started {
            let (this, of) = (self.clone(), name.clone());
            let ready = Box::new(move || {
                if let Some(instance) = this.state().instances.get_mut(&of) {
                    instance.serves = Some(Instant::now());
                }
            });
            let serving = self.host.serve(&self.shape, &name, &departure, ready);
            tokio::select! {
                // Dropping it is the kill.
                _ = kill.run_until_cancelled(serving) => {}
                () = self.interruption(&name) => {}
            }
        }
        self.gone(&name);
    }

    /// Interrupts the instance at its time. Never ends.
    async fn interruption(self: &Arc<Self>, name: &str) {
        if let Some(Preemption { every, announced }) = self.preemption {
            // Exponential, as interruptions without a memory are.
            let alive = every.mul_f64(-self.pace.draw(&format!("{name} ends")).max(1e-9).ln());
            sleep(self.pace.of_fleet(alive)).await;
            self.clone().interrupt(name.to_owned(), announced).await;
        }
        std::future::pending().await
    }

    /// The instance is gone; another takes its place where it was not to leave.
    fn gone(self: &Arc<Self>, name: &str) {
        let desired = {
            let mut state = self.state();
            if let Some(instance) = state.instances.remove(name) {
                state.paid += instance.since.elapsed();
                state.served += instance.serves.map_or(Duration::ZERO, |since| since.elapsed());
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
