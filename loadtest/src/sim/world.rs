//! What all simulated processes share: the queue, the object store, chance, and the weather.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_policy::random::Stream;
use millrace_queue::clock::SystemClock;
use millrace_queue::{Broker, MemoryQueue, Objects, QueueSettings};
use millrace_schemas::blob::Sha;
use millrace_schemas::{PoolName, RunId, Stage};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::executors::agents::Hosts;
use super::replicas::Replicas;
use super::scenario::{Durability, FaultKind, Scenario};
use crate::checkers::PutWatch;

/// Of 1,000 calls, how many a trouble that is about strikes.
const STRIKES_PER_MILLE: u64 = 250;
/// Between two syncs of the queue's machine, where it does not sync at once.
const SYNC_EVERY: Duration = Duration::from_secs(15);
/// When the simulated world began, in milliseconds since 1970.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// The simulated world.
pub(super) struct World {
    /// The real queue in memory, without faults.
    pub(super) queue: MemoryQueue,
    /// The real store in memory, without faults.
    pub(super) objects: Objects,
    /// Distinguishes what is cursed in one world from another.
    pub(super) seed: u64,
    /// Workers that train also generate, in turn.
    pub(super) time_division: bool,
    /// What is put into the queue, as seen there.
    pub(super) puts: PutWatch,
    /// What replicas that are behind still show.
    pub(super) replicas: Replicas,
    /// The processes that host agents.
    pub(super) hosts: Hosts,
    has_forks: bool,
    has_agents: bool,
    start: Instant,
    state: Mutex<WorldState>,
}

struct WorldState {
    chance: Stream,
    /// Troubles that are about, and until when.
    weather: BTreeMap<FaultKind, Instant>,
    counts: BTreeMap<FaultKind, u64>,
    runs: Vec<RunId>,
    /// The run that a trouble concerns, where it concerns one.
    aims: BTreeMap<FaultKind, RunId>,
    /// Runs on which a fault was planted that needs a repair.
    planted: BTreeMap<RunId, BTreeSet<FaultKind>>,
    /// Stages whose work hung.
    hung: BTreeSet<Stage>,
    /// Consumers that were made.
    consumers: BTreeSet<(Stage, PoolName)>,
    next_name: u64,
    /// What was seen on the way that must not be.
    seen: Vec<String>,
    /// Tasks that belong to no process: acks in transit, for example.
    loose: JoinSet<()>,
}

impl World {
    pub(super) fn new(seed: u64, scenario: &Scenario) -> Arc<Self> {
        let durability = match scenario.durability {
            Durability::Synced => millrace_queue::Durability::Synced,
            Durability::Interval => millrace_queue::Durability::Interval(SYNC_EVERY),
        };
        let ack_wait = Duration::from_millis(scenario.ack_wait_ms);
        let settings = QueueSettings { durability, ack_wait, ..QueueSettings::default() };
        let state = WorldState {
            chance: Stream::new(seed),
            weather: BTreeMap::new(),
            counts: BTreeMap::new(),
            runs: Vec::new(),
            aims: BTreeMap::new(),
            planted: BTreeMap::new(),
            hung: BTreeSet::new(),
            consumers: BTreeSet::new(),
            next_name: 0,
            seen: Vec::new(),
            loose: JoinSet::new(),
        };
        Arc::new(Self {
            queue: MemoryQueue::with_settings(Arc::new(SystemClock::new()), settings),
            objects: Objects::memory(),
            seed,
            time_division: scenario.time_division,
            puts: PutWatch::default(),
            replicas: Replicas::default(),
            hosts: Hosts::default(),
            has_forks: scenario.runs.forks,
            has_agents: scenario.runs.agents,
            start: Instant::now(),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queue and object store without faults, for observers.
    pub(super) fn plain(&self) -> Broker {
        Broker::new(Arc::new(self.queue.clone()), self.objects.clone())
    }

    /// Milliseconds since 1970, as a clock that is right shows them.
    pub(super) fn unix_ms(&self) -> u64 {
        EPOCH_MS + self.start.elapsed().as_millis() as u64
    }

    /// A whole number below `n`.
    pub(super) fn below(&self, n: u64) -> u64 {
        self.state().chance.below(n)
    }

    /// A whole number from `least` to `most`.
    pub(super) fn between(&self, (least, most): (u64, u64)) -> u64 {
        least + self.below(most - least + 1)
    }

    /// A time from `least` to `most` milliseconds.
    pub(super) fn time(&self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.between((least, most)))
    }

    /// A number that nobody got before.
    pub(super) fn next_name(&self) -> u64 {
        let mut state = self.state();
        state.next_name += 1;
        state.next_name
    }

    /// Brings trouble for a time.
    pub(super) fn bring(&self, trouble: FaultKind, length: Duration) {
        let until = Instant::now() + length;
        let mut state = self.state();
        let standing = state.weather.entry(trouble).or_insert(until);
        *standing = until.max(*standing);
    }

    /// Whether trouble is about.
    pub(super) fn has(&self, trouble: FaultKind) -> bool {
        self.state().weather.get(&trouble).is_some_and(|until| Instant::now() < *until)
    }

    /// Whether trouble is about and strikes here.
    pub(super) fn strikes(&self, trouble: FaultKind) -> bool {
        self.has(trouble) && self.below(1_000) < STRIKES_PER_MILLE
    }

    /// Bytes that belong to these words: the same at each attempt at the same thing.
    pub(super) fn lot(&self, words: impl Display) -> [u8; 32] {
        Sha::of(format!("{} {words}", self.seed).as_bytes()).0
    }

    /// Whether observations of this run at times follow an earlier turn than the last: two runs in three, where the
    /// scenario has forks.
    pub(super) fn has_forks(&self, run: &RunId) -> bool {
        self.has_forks && !self.lot(format_args!("{run} forks"))[0].is_multiple_of(3)
    }

    /// Whether this run is of agents with sub-agents: two runs in three, where the scenario has agents.
    pub(super) fn has_agents(&self, run: &RunId) -> bool {
        self.has_agents && !self.lot(format_args!("{run} agents"))[0].is_multiple_of(3)
    }

    /// Whether some run is.
    pub(super) const fn may_have_agents(&self) -> bool {
        self.has_agents
    }

    /// The runs that are played.
    pub(super) fn plays(&self, runs: Vec<RunId>) {
        self.state().runs = runs;
    }

    /// The runs that are played.
    pub(super) fn runs(&self) -> Vec<RunId> {
        self.state().runs.clone()
    }

    /// One of the runs.
    pub(super) fn any_run(&self) -> RunId {
        let mut state = self.state();
        let most = state.runs.len() as u64;
        let at = state.chance.below(most) as usize;
        state.runs[at].clone()
    }

    /// Brings trouble for a time to what concerns one run.
    pub(super) fn aim(&self, trouble: FaultKind, run: RunId, length: Duration) {
        let mut state = self.state();
        if trouble.needs_repair() {
            state.planted.entry(run.clone()).or_default().insert(trouble);
        }
        state.aims.insert(trouble, run);
        drop(state);
        self.bring(trouble, length);
    }

    /// Whether trouble is about that concerns the run of this name.
    pub(super) fn befalls(&self, trouble: FaultKind, run: &str) -> bool {
        self.has(trouble) && self.state().aims.get(&trouble).is_some_and(|aimed| aimed.as_str() == run)
    }

    /// Whether a consumer exists, or may be created.
    pub(super) fn may_have_consumer(&self, stage: Stage, pool: &PoolName) -> bool {
        let refused = self.has(FaultKind::ConsumersRefused);
        let mut state = self.state();
        let name = (stage, pool.clone());
        if !refused {
            state.consumers.insert(name);
            return true;
        }
        state.consumers.contains(&name)
    }

    /// A consumer makes room for another.
    pub(super) fn removes_consumer(&self, stage: Stage, pool: &PoolName) {
        self.state().consumers.remove(&(stage, pool.clone()));
    }

    /// Runs on which a fault was planted that needs a repair.
    pub(super) fn planted(&self) -> BTreeMap<RunId, BTreeSet<FaultKind>> {
        self.state().planted.clone()
    }

    /// Work of this stage hangs.
    pub(super) fn hangs(&self, stage: Stage) {
        self.state().hung.insert(stage);
    }

    /// Stages whose work hung.
    pub(super) fn hung(&self) -> BTreeSet<Stage> {
        self.state().hung.clone()
    }

    /// Ends all trouble, and repairs what needs a repair.
    pub(super) fn clear(&self) {
        self.state().weather.clear();
    }

    /// Records what must not be.
    pub(super) fn finds(&self, what: String) {
        self.state().seen.push(what);
    }

    /// What was seen on the way that must not be.
    pub(super) fn found(&self) -> Vec<String> {
        self.state().seen.clone()
    }

    /// Counts a fault.
    pub(super) fn count(&self, kind: FaultKind) {
        *self.state().counts.entry(kind).or_default() += 1;
    }

    /// Faults so far.
    pub(super) fn counts(&self) -> BTreeMap<FaultKind, u64> {
        self.state().counts.clone()
    }

    /// Starts a task that belongs to no process.
    pub(super) fn loose(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.state();
        while state.loose.try_join_next().is_some() {}
        state.loose.spawn(work);
    }
}
