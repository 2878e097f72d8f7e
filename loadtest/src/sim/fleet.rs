//! The simulated processes: two of each role, started from nothing, killed with everything they began.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_coordinator::shell::clock::UnixClock;
use millrace_coordinator::shell::driver::{self, DriverConfig, TrimSettings};
use millrace_coordinator::shell::leader::Term;
use millrace_queue::Broker;
use millrace_queue::testing::gate::gated;
use millrace_schemas::{Stage, WorkerId};
use millrace_telemetry::{Health, Tracer};
use millrace_workers::runtime::TimeDivision;
use millrace_workers::stages::default_pools;
use millrace_workers::{PoolSettings, Worker, WorkerSettings};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::executors::executor;
use super::link::Link;
use super::queue::LinkedQueue;
use super::world::World;

/// Events between two snapshots: few, so that there are many.
const SNAPSHOT_EVENTS: u64 = 50;
/// Shorter than a turn.
const SHORT_GRACE: Duration = Duration::from_millis(10);
/// Small segments, soon, so that every history reads from them. No machine of the simulator leaves what it acknowledged
/// unsynced for as long as an entry stays.
const TRIM: TrimSettings =
    TrimSettings { every: Duration::from_secs(10), age: Duration::from_secs(60), entries: 30 };
/// Before a process that could not start tries again.
const RESTART: Duration = Duration::from_secs(1);

/// What a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Coordinator,
    Sample,
    Play,
    Train,
    /// It samples and trains, in turn.
    Flexible,
}

/// The roles of two processes each.
const ROLES: usize = 4;

impl Role {
    /// The roles of a world.
    const fn of(world: &World) -> [Self; ROLES] {
        match (world.time_division, world.seed % 2) {
            (false, _) => [Self::Coordinator, Self::Sample, Self::Play, Self::Train],
            (true, 0) => [Self::Coordinator, Self::Sample, Self::Play, Self::Flexible],
            (true, _) => [Self::Coordinator, Self::Play, Self::Flexible, Self::Flexible],
        }
    }

    /// What such a worker serves, and how many tasks of a pool at once.
    const fn stages(self) -> &'static [(Stage, u32)] {
        match self {
            Self::Coordinator => &[],
            Self::Sample => &[(Stage::Generate, 4)],
            Self::Play => &[(Stage::EnvStep, 4), (Stage::Reward, 4)],
            Self::Train => &[(Stage::TrainShard, 1), (Stage::PublishWeights, 1)],
            Self::Flexible => &[(Stage::Generate, 4), (Stage::TrainShard, 1), (Stage::PublishWeights, 1)],
        }
    }
}

/// All processes.
pub(super) struct Fleet {
    pub(super) world: Arc<World>,
    processes: Mutex<Vec<Process>>,
}

struct Process {
    role: Role,
    /// The name that a process started in this place has.
    name: String,
    link: Link,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
    /// Milliseconds that its clock is off.
    clock_off: Arc<AtomicI64>,
}

impl Fleet {
    /// Starts two processes of each role.
    pub(super) fn start(world: Arc<World>) -> Arc<Self> {
        let roles = Role::of(&world);
        let fleet = Arc::new(Self { world, processes: Mutex::default() });
        for role in roles {
            for number in 0..2 {
                fleet.add(role, format!("{role:?}-{number}").to_lowercase());
            }
        }
        fleet
    }

    fn processes(&self) -> MutexGuard<'_, Vec<Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a process. Returns its index.
    pub(super) fn add(&self, role: Role, name: String) -> usize {
        let process = Process {
            role,
            name,
            link: Link::new(self.world.clone()),
            stop: CancellationToken::new(),
            task: None,
            clock_off: Arc::default(),
        };
        let mut processes = self.processes();
        processes.push(process);
        let at = processes.len() - 1;
        begin(&self.world, &mut processes[at]);
        at
    }

    /// Some process.
    pub(super) fn any(&self) -> usize {
        self.world.below(self.processes().len() as u64) as usize
    }

    /// Some coordinator.
    pub(super) fn any_coordinator(&self) -> usize {
        self.world.below(2) as usize
    }

    /// Ends a process as a kill does: none of its tasks continues.
    pub(super) fn kill(&self, at: usize) {
        let mut processes = self.processes();
        let process = &mut processes[at];
        process.link.kill();
        if let Some(task) = process.task.take() {
            task.abort();
        }
    }

    /// Starts what was killed or has left.
    pub(super) fn revive(&self, at: usize) {
        let mut processes = self.processes();
        let process = &mut processes[at];
        if process.task.as_ref().is_none_or(JoinHandle::is_finished) {
            begin(&self.world, process);
        }
    }

    /// Tells a process to leave.
    pub(super) fn stop(&self, at: usize) {
        self.processes()[at].stop.cancel();
    }

    pub(super) fn pause(&self, at: usize, length: Duration) {
        self.processes()[at].link.pause(length);
    }

    pub(super) fn cut(&self, at: usize, length: Duration) {
        self.processes()[at].link.cut(length);
    }

    /// Turns a process's clock.
    pub(super) fn turn_clock(&self, at: usize, by_ms: i64) {
        self.processes()[at].clock_off.fetch_add(by_ms, Relaxed);
    }

    /// Ends pauses and partitions, and starts what is gone. Processes that came in addition are killed.
    pub(super) fn mend(&self) {
        let count = self.processes().len();
        for at in 0..count {
            if at >= 2 * ROLES {
                self.kill(at);
            } else {
                self.processes()[at].link.mend();
                self.revive(at);
            }
        }
    }

    /// Kills all.
    pub(super) fn end(&self) {
        let count = self.processes().len();
        (0..count).for_each(|at| self.kill(at));
    }
}

/// Starts the process of a place, from nothing.
fn begin(world: &Arc<World>, process: &mut Process) {
    process.link = Link::new(world.clone());
    process.stop = CancellationToken::new();
    let queue = Arc::new(LinkedQueue::new(process.link.clone()));
    let broker = Broker::new(queue, gated(&world.objects, Arc::new(process.link.clone())));
    let (stop, link) = (process.stop.clone(), process.link.clone());
    process.task = Some(match process.role {
        Role::Coordinator => {
            let (clock, off) = (world.clone(), process.clock_off.clone());
            let clock = UnixClock::new(move || clock.unix_ms().saturating_add_signed(off.load(Relaxed)));
            let config = DriverConfig {
                id: process.name.clone(),
                instance: format!("{}/{}", process.name, world.next_name()),
                snapshot_events: SNAPSHOT_EVENTS,
                trim: TRIM,
                term: Term::on(clock.boot()),
                clock,
                tracer: Tracer::default(),
            };
            tokio::spawn(coordinate(broker, config, stop))
        }
        Role::Sample | Role::Play | Role::Train | Role::Flexible => {
            let id = format!("{}-{}", process.name, world.next_name());
            let id = id.parse().expect("a role and numbers are a worker's name");
            tokio::spawn(work(broker, id, process.role, link, stop))
        }
    });
}

/// A coordinator that is restarted whenever it fails.
async fn coordinate(broker: Broker, config: DriverConfig, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match driver::restore(&broker).await {
            Ok(shared) => {
                let health = Health::default();
                let driven = driver::run(broker.clone(), config.clone(), shared, health, stop.clone()).await;
                if driven.is_ok() {
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "coordinator cannot start yet"),
        }
        sleep(RESTART).await;
    }
}

async fn work(broker: Broker, id: WorkerId, role: Role, link: Link, stop: CancellationToken) {
    let own = broker.clone();
    let report = Duration::from_secs(60);
    let device = (role == Role::Flexible).then(TimeDivision::default);
    let settings = WorkerSettings {
        report,
        instance: id.to_string(),
        time_division: device.clone(),
        ..WorkerSettings::new(id)
    };
    let grace = match link.world.seed % 3 {
        0 => settings.grace,
        // Workers that leave hand their turns back in the middle, or before the first token.
        short => SHORT_GRACE * short as u32,
    };
    let worker = Worker::start(broker, WorkerSettings { grace, ..settings });
    let policies = worker.policies().clone();
    // The runs are of one environment; pools that nobody puts tasks into only cost time.
    let used = ["policy", "counter", "env_return", "format", "gang", "commit"];
    let pools = role.stages().iter().flat_map(|(stage, concurrency)| {
        let pools = default_pools(*stage).into_iter().filter(|pool| used.contains(&pool.as_str()));
        pools.map(|pool| PoolSettings { stage: *stage, pool, concurrency: *concurrency })
    });
    let executor = |stage| executor(stage, &link, &own, &policies, device.as_ref());
    worker.serve(pools.collect(), executor, Health::default(), stop).await;
}
