//! The simulated processes: one of each role on each of two machines, started from nothing, killed with
//! everything they began.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_coordinator::shell::driver::{self, DriverConfig, TrimSettings};
use millrace_coordinator::shell::leader::Term;
use millrace_queue::Broker;
use millrace_queue::testing::gate::gated;
use millrace_schemas::env_step::AGENT;
use millrace_schemas::{Stage, WorkerId};
use millrace_telemetry::Health;
use millrace_workers::runtime::TimeDivision;
use millrace_workers::stages::default_pools;
use millrace_workers::{PoolSettings, Worker, WorkerSettings};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::executors::executor;
use super::link::Link;
use super::machine::Machine;
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
/// Steps of agents that a process has at once: each agent has one that waits.
const AGENT_STEPS: u32 = 96;
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

/// Machines, each with a process of each role.
const MACHINES: usize = 2;

/// The roles of a machine's processes.
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
    machines: [Machine; MACHINES],
    processes: Mutex<Vec<Process>>,
}

struct Process {
    role: Role,
    machine: Machine,
    /// The term of a coordinator.
    term: Option<Term>,
    /// The name that a process started in this place has.
    name: String,
    link: Link,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Starts a process of each role on each machine.
    pub(super) fn start(world: Arc<World>) -> Arc<Self> {
        let machines = [(); MACHINES].map(|()| Machine::new(world.clone()));
        let roles = Role::of(&world);
        let fleet = Arc::new(Self { world, machines, processes: Mutex::default() });
        for (at, role) in roles.into_iter().enumerate() {
            let namesakes = roles[..at].iter().filter(|other| **other == role).count();
            for machine in 0..MACHINES {
                fleet.add_named(role, machine, namesakes * MACHINES + machine);
            }
        }
        fleet
    }

    fn processes(&self) -> MutexGuard<'_, Vec<Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a process on the machine of this number, under the name of the first of its role there. Returns
    /// its index.
    pub(super) fn add(&self, role: Role, machine: usize) -> usize {
        self.add_named(role, machine, machine)
    }

    fn add_named(&self, role: Role, machine: usize, number: usize) -> usize {
        let process = Process {
            role,
            machine: self.machines[machine].clone(),
            term: None,
            name: format!("{role:?}-{number}").to_lowercase(),
            link: Link::new(self.world.clone()),
            stop: CancellationToken::new(),
            task: None,
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

    /// Some coordinator; it has the index of its machine.
    pub(super) fn any_coordinator(&self) -> usize {
        self.world.below(MACHINES as u64) as usize
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

    /// Starts what was killed or has left. Whether it runs now: one that was told to leave may still be at it.
    pub(super) fn revive(&self, at: usize) -> bool {
        let mut processes = self.processes();
        let process = &mut processes[at];
        if process.task.as_ref().is_none_or(JoinHandle::is_finished) {
            begin(&self.world, process);
        }
        !process.stop.is_cancelled()
    }

    /// Tells a process to leave.
    pub(super) fn stop(&self, at: usize) {
        self.processes()[at].stop.cancel();
    }

    pub(super) fn pause(&self, at: usize, length: Duration) {
        let process = &self.processes()[at];
        process.link.pause(length);
        process.link.pause_until(process.machine.asleep_until());
    }

    pub(super) fn cut(&self, at: usize, length: Duration) {
        self.processes()[at].link.cut(length);
    }

    /// Suspends a machine with all its processes.
    pub(super) fn suspend(&self, machine: usize, length: Duration) {
        let machine = &self.machines[machine];
        machine.suspend(length);
        let processes = self.processes();
        let here = processes.iter().filter(|process| process.machine.is(machine));
        here.for_each(|process| process.link.pause_until(machine.asleep_until()));
    }

    /// Names of the coordinators of a machine that hold the lease for theirs.
    pub(super) fn leaders_on(&self, machine: usize) -> Vec<String> {
        let machine = &self.machines[machine];
        let processes = self.processes();
        let here = processes.iter().filter(|process| process.machine.is(machine) && !process.link.is_dead());
        let leads = here.filter(|process| process.term.as_ref().is_some_and(Term::holds));
        leads.map(|process| process.name.clone()).collect()
    }

    /// When the last suspension of a machine ends, or ended.
    pub(super) fn asleep_until(&self, machine: usize) -> Instant {
        self.machines[machine].asleep_until()
    }

    /// Turns a machine's clock of the day.
    pub(super) fn turn_clock(&self, machine: usize, by_ms: i64) {
        self.machines[machine].turn_clock(by_ms);
    }

    /// Ends suspensions, pauses and partitions, and starts what is gone. Processes that came in addition are
    /// killed.
    pub(super) fn mend(&self) {
        self.machines.iter().for_each(Machine::wake);
        let count = self.processes().len();
        for at in 0..count {
            if at >= MACHINES * ROLES {
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
    process.link.pause_until(process.machine.asleep_until());
    process.stop = CancellationToken::new();
    let queue = Arc::new(LinkedQueue::new(process.link.clone()));
    let broker = Broker::new(queue, gated(&world.objects, Arc::new(process.link.clone())));
    let (stop, link) = (process.stop.clone(), process.link.clone());
    process.task = Some(match process.role {
        Role::Coordinator => {
            let config = DriverConfig {
                instance: format!("{}/{}", process.name, world.next_name()),
                snapshot_events: SNAPSHOT_EVENTS,
                trim: TRIM,
                ..DriverConfig::on(&process.name, process.machine.clock())
            };
            process.term = Some(config.term.clone());
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
    let agents = (role == Role::Play && link.world.may_have_agents()).then(|| PoolSettings {
        stage: Stage::EnvStep,
        pool: AGENT.parse().expect("a built-in name is a pool's name"),
        concurrency: AGENT_STEPS,
    });
    let executor = |stage| executor(stage, &link, &own, &policies, device.as_ref());
    worker.serve(pools.chain(agents).collect(), executor, Health::default(), stop).await;
}
