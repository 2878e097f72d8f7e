//! The loop of the leader: hears the workers, plans each pool, writes decisions to the log, and hands
//! them to the targets. A target that hangs or refuses delays its own pool and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use millrace_coordinator::fold::demand;
use millrace_coordinator::shell::clock::UnixClock;
use millrace_coordinator::shell::leader::Term;
use millrace_coordinator::shell::shared::SharedState;
use millrace_queue::Broker;
use millrace_queue::port::Listener;
use millrace_schemas::notice::WorkerNotice;
use millrace_schemas::scale::{ScaleCause, ScaleLimit, ScaleReason, Scaled};
use millrace_schemas::subjects::{ALL_RUNS, NOTICE_WORKERS};
use millrace_schemas::{Stage, WorkerId};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::board::{Board, Standing, announced, oldest_first};
use crate::fleet::Fleet;
use crate::leave::{leavers, machines, of_whole_machines};
use crate::limits::{Lately, limited};
use crate::plan::{Need, Runs, plan};
use crate::recall::Recalled;
use crate::spec::{PoolSpec, ScalingFile, TargetSpec};
use crate::targets::{Machines, Order, Target, converge};

/// Pause before the workers' notices are heard again after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// Pause before it scales again after a panic.
const AFTER_PANIC: Duration = Duration::from_secs(10);
/// A reason that changed alone is told at most so often.
const RETELL: Duration = Duration::from_secs(60);
/// A decision in the log should be folded before the next one is made.
const FOLD: Duration = Duration::from_secs(2);

/// What the autoscaler works with.
#[derive(Clone)]
pub struct Autoscaler {
    /// The queue.
    pub broker: Broker,
    /// The state of this process's coordinator.
    pub shared: SharedState,
    /// It acts while this term holds.
    pub term: Term,
    /// The time of decisions.
    pub clock: UnixClock,
    /// The pools.
    pub file: Arc<ScalingFile>,
    /// Gets the standing decisions.
    pub board: Board,
}

/// What the leader knows beyond the log.
struct Scaler {
    at: Autoscaler,
    fleet: Fleet,
    runs: Runs,
    lately: BTreeMap<String, Lately>,
    told: BTreeMap<String, Instant>,
    recalled: BTreeMap<String, Recalled>,
    orders: BTreeMap<String, watch::Sender<Order>>,
    targets: BTreeMap<String, Arc<dyn Target>>,
    started: Instant,
    /// It led at the last decision.
    led: bool,
}

/// Scales the pools while this coordinator leads.
///
/// Consumes: workers' notices, the folded state. Produces: `scaled` events; orders to the targets.
/// Waits for: notices, and the interval. Unblocked by: `shutdown`. On failure: hears again; a
/// decision that the log does not take is made again at the next interval. A panic ends what it knows beyond
/// the log, and it scales again after a pause.
pub async fn run(at: Autoscaler, targets: BTreeMap<String, Arc<dyn Target>>, shutdown: CancellationToken) {
    while !shutdown.is_cancelled() {
        // It is polled beside the coordinator's driver, which no mistake in here may unwind. Nothing of it is
        // used after a panic.
        let scaling = AssertUnwindSafe(scale(at.clone(), targets.clone(), shutdown.clone()));
        if scaling.catch_unwind().await.is_ok() {
            return;
        }
        tracing::error!(
            pause_s = AFTER_PANIC.as_secs(),
            "the autoscaler panicked; it scales again after a pause"
        );
        at.board.clear();
        shutdown.run_until_cancelled(tokio::time::sleep(AFTER_PANIC)).await;
    }
}

/// The same without a panic.
async fn scale(at: Autoscaler, targets: BTreeMap<String, Arc<dyn Target>>, shutdown: CancellationToken) {
    // Dropping this future ends them.
    let mut converging = JoinSet::new();
    let mut orders = BTreeMap::new();
    for (pool, target) in &targets {
        let (sender, order) = watch::channel(Order::default());
        converging.spawn(converge(pool.clone(), target.clone(), at.term.clone(), order));
        orders.insert(pool.clone(), sender);
    }
    let mut scaler = Scaler {
        at,
        fleet: Fleet::default(),
        runs: Runs::default(),
        lately: BTreeMap::new(),
        told: BTreeMap::new(),
        recalled: BTreeMap::new(),
        orders,
        targets,
        started: Instant::now(),
        led: false,
    };
    let forever = async {
        loop {
            match scaler.at.broker.queue().listen(NOTICE_WORKERS).await {
                Ok(notices) => scaler.follow(notices).await,
                Err(error) => tracing::warn!(%error, "cannot hear the workers; trying again"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    shutdown.run_until_cancelled(forever).await;
}

impl Scaler {
    /// Hears notices and decides, until the connection is closed.
    async fn follow(&mut self, mut notices: Box<dyn Listener>) {
        let file = self.at.file.clone();
        let mut decide = tokio::time::interval(file.interval());
        decide.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                notice = notices.next() => {
                    let Some(notice) = notice else { return };
                    if let Ok(notice) = serde_json::from_slice::<WorkerNotice>(&notice.payload) {
                        self.fleet.hear(notice, &file.pools, Instant::now());
                    }
                }
                _ = decide.tick() => self.decide(&file).await,
            }
        }
    }

    /// One decision for each pool.
    async fn decide(&mut self, file: &ScalingFile) {
        let now = Instant::now();
        self.fleet.forget_silent(now);
        self.publish();
        let leads = self.at.term.holds() && self.at.shared.blocked().is_none();
        if !leads {
            self.led = false;
            self.at.board.clear();
            self.fleet.awaits_nobody();
            self.recalled.clear();
            self.orders.values().for_each(|order| {
                order.send_replace(Order::default());
            });
            return;
        }
        if !std::mem::replace(&mut self.led, true) {
            // A new leader has heard the workers for one interval at least before it decides.
            return;
        }
        let demands = {
            let state = self.at.shared.lock();
            demand::of(&state)
        };
        let paces = self.runs.paces(&demands, self.fleet.step_s(), now);
        let demands: Vec<_> = demands.into_iter().zip(paces).collect();
        // Shares of the demand that cheaper pools of the same stages leave.
        let mut left: BTreeMap<BTreeSet<Stage>, f64> = BTreeMap::new();
        let mut pools: Vec<&PoolSpec> = file.pools.iter().collect();
        pools.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        for pool in pools {
            let supply = self.fleet.supply(pool);
            let before = self.before(pool, supply.workers, file.dry_run);
            let mut need = plan(pool, &demands, &supply, before);
            tracing::debug!(pool = pool.name, ?supply, ?demands, ?need, "planned");
            take_share(pool, &mut need, left.entry(pool.stages.clone()).or_insert(1.0));
            let lately = self.lately.entry(pool.name.clone()).or_default();
            let desired = limited(pool, &mut need, lately, before, now.duration_since(self.started));
            self.conclude(pool, file.dry_run, (before, desired, supply.workers), need.reason, now).await;
        }
    }

    /// Publishes the standing decisions, which a standby knows too: KEDA asks any coordinator.
    fn publish(&self) {
        let unix_ms = self.at.clock.unix_ms();
        let is_keda = |name: &str| {
            self.at.file.pools.iter().any(|pool| pool.name == name && pool.target == TargetSpec::Keda)
        };
        for (pool, known) in &self.at.shared.lock().scaling {
            let desired = match &known.last {
                last if last.dry_run => last.before,
                last if is_keda(pool) => announced(oldest_first(known), unix_ms).unwrap_or(last.desired),
                last => last.desired,
            };
            metrics::gauge!("millrace_scale_desired_workers", "pool" => pool.clone()).set(f64::from(desired));
        }
    }

    /// The workers that a pool is to have by the last decision, or has.
    fn before(&self, pool: &PoolSpec, live: u32, dry_run: bool) -> u32 {
        let state = self.at.shared.lock();
        let last = state.scaling.get(&pool.name).map(|known| &known.last);
        last.filter(|last| !last.dry_run && !dry_run).map_or(live, |last| last.desired)
    }

    /// Writes a decision to the log if it is a new one, and hands the standing one to the target.
    async fn conclude(
        &mut self,
        pool: &PoolSpec,
        dry_run: bool,
        (before, desired, live): (u32, u32, u32),
        reason: ScaleReason,
        now: Instant,
    ) {
        metrics::gauge!("millrace_scale_live_workers", "pool" => pool.name.clone()).set(f64::from(live));
        let known = self.at.shared.lock().scaling.get(&pool.name).cloned();
        let unix_ms = self.at.clock.unix_ms();
        let (order, replaced) = self.order(pool, desired, live, now);
        let recent = self.told.get(&pool.name).is_some_and(|told| now.duration_since(*told) < RETELL);
        let is_new = known.as_ref().map(|known| &known.last).is_none_or(|last| {
            let other = (last.reason.cause, last.reason.limit) != (reason.cause, reason.limit);
            last.desired != desired || last.dry_run != dry_run || other && !recent || !replaced.is_empty()
        });
        let scaled = is_new.then(|| Scaled {
            pool: pool.name.clone(),
            before,
            desired,
            leave: order.leave.iter().cloned().chain(replaced).collect(),
            unix_ms,
            dry_run,
            reason,
        });
        let decisions = known.iter().flat_map(oldest_first).chain(&scaled);
        let number = announced(decisions, unix_ms).unwrap_or(desired);
        if let Some(scaled) = scaled {
            if desired != before {
                tracing::info!(pool = pool.name, before, desired, dry_run, reason = %scaled.reason, "scaled");
            }
            let event = millrace_schemas::Event::Scaled(Box::new(scaled));
            match self.at.broker.append_led(ALL_RUNS, &event, self.at.term.epoch()).await {
                Ok(appended) => {
                    self.told.insert(pool.name.clone(), now);
                    self.at.shared.wait_for(appended.seq, FOLD).await;
                }
                Err(error) => {
                    return tracing::warn!(%error, pool = pool.name, "a decision is not in the log; deciding again");
                }
            }
            if !dry_run {
                self.fleet.decided(&pool.name, before, desired, now);
            }
        }
        // The log may have taken its time.
        if !self.at.term.holds() {
            return;
        }
        self.at.board.set(&pool.name, Standing { desired: number, decided: Instant::now(), dry_run });
        if !dry_run && let Some(orders) = self.orders.get(&pool.name) {
            orders.send_replace(order);
        }
    }

    /// What the pool's target is to do, and the machines that it replaced since the last call.
    fn order(&mut self, pool: &PoolSpec, desired: u32, live: u32, now: Instant) -> (Order, Vec<WorkerId>) {
        let (unix_ms, surplus) = (self.at.clock.unix_ms(), live.saturating_sub(desired) as usize);
        let machines = match pool.target {
            TargetSpec::Aws { .. } => self.machines(pool, unix_ms, now),
            TargetSpec::Local | TargetSpec::Kubernetes { .. } | TargetSpec::Keda => Machines::default(),
        };
        let leave = match pool.workers_per_machine {
            1 => leavers(self.fleet.of(pool), surplus, unix_ms, now),
            _ => of_whole_machines(&machines.live, surplus),
        };
        let (missing, start_up) = (desired.saturating_sub(live) as usize, self.start_up(pool));
        let recalled = self.recalled.entry(pool.name.clone()).or_default();
        let recall = recalled.choose(self.fleet.of(pool), missing, start_up, now);
        let replaced = self.targets.get(&pool.name).map(|target| target.replaced()).unwrap_or_default();
        (Order { desired: Some(desired), leave, recall, machines }, replaced)
    }

    fn machines(&self, pool: &PoolSpec, unix_ms: u64, now: Instant) -> Machines {
        Machines {
            live: machines(self.fleet.of(pool), unix_ms, now),
            occupied: self.fleet.occupied(),
            all_known: self.fleet.of(pool).all(|(_, seen)| seen.notice.machine.is_some()),
            start_up: self.start_up(pool),
        }
    }

    /// Time from a decision until a new worker serves, its spread included.
    fn start_up(&self, pool: &PoolSpec) -> Duration {
        let (mean_s, deviation_s) = self.fleet.start_up_s(pool);
        Duration::from_secs_f64((mean_s + 2.0 * deviation_s).max(0.0))
    }
}

/// Leaves to dearer pools of the same stages what this one cannot take. Gangs are not divided.
fn take_share(pool: &PoolSpec, need: &mut Need, left: &mut f64) {
    if !matches!(need.reason.cause, ScaleCause::Budget | ScaleCause::Unmeasured) {
        if *left < 1.0 {
            need.workers = 0;
            need.reason.limit = Some(ScaleLimit::Tasks);
        }
        *left = 0.0;
        return;
    }
    let wanted = f64::from(need.workers) * *left;
    need.workers = wanted.ceil() as u32;
    let taken = f64::from(need.workers.min(pool.max));
    *left = if wanted > 0.0 { *left * (1.0 - taken / wanted).max(0.0) } else { *left };
}

#[cfg(test)]
mod tests;
