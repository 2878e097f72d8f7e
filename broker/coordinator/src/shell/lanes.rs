//! One lane per run: its commands wait here, in order, for an executor of their own. So a run whose
//! store or pools do not respond delays no other run. Commands for no run in particular have a lane
//! too.
//!
//! A lane is bounded. A full lane drops its commands and is *behind*: its executor then executes
//! all outstanding commands of its run instead, because commands follow from the state.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_schemas::RunId;
use millrace_schemas::limits::{LANE_PATIENCE_MS, MAX_COMMANDS_WAITING};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout};

use crate::fold::command::{Command, Commands};

/// Which commands a lane has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaneId {
    /// Commands for no run: pools of members.
    All,
    /// Commands of one run.
    Run(RunId),
    /// No commands: a probe that shows whether execution works while every other lane makes no
    /// progress.
    Probe,
}

impl LaneId {
    fn of(command: &Command) -> Self {
        command.run().map_or(Self::All, |run| Self::Run(run.clone()))
    }

    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::All => "all runs",
            Self::Run(run) => run.as_str(),
            Self::Probe => "probe",
        }
    }
}

/// What a lane's executor does next.
#[derive(Debug)]
pub enum LaneWork {
    /// Execute these commands.
    Commands(Commands),
    /// Execute all outstanding commands.
    Outstanding,
    /// Stop: the lane is empty or of an earlier generation.
    Nothing,
}

/// A lane that has work and needs an executor.
#[derive(Debug, Clone)]
pub struct StartedLane {
    /// The lane.
    pub id: LaneId,
    /// Counts restarts of all lanes. Executors of an earlier generation get no more commands.
    pub generation: u64,
}

/// The lanes, as the fold and the executors share them. Clones share their content.
#[derive(Clone)]
pub struct Lanes {
    inner: Arc<Mutex<Inner>>,
    started: mpsc::UnboundedSender<StartedLane>,
    room: Arc<Notify>,
}

struct Inner {
    generation: u64,
    /// Lanes with work. Each has an executor.
    lanes: BTreeMap<LaneId, Lane>,
    /// When any lane last made progress.
    progress: Instant,
}

#[derive(Default)]
struct Lane {
    waiting: VecDeque<Command>,
    behind: bool,
}

impl Lane {
    fn is_full(&self) -> bool {
        self.waiting.len() > MAX_COMMANDS_WAITING
    }
}

impl Lanes {
    /// Lanes without work, and a channel that receives each lane when it gets work.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<StartedLane>) {
        let (started, receiver) = mpsc::unbounded_channel();
        let inner = Inner { generation: 0, lanes: BTreeMap::new(), progress: Instant::now() };
        (Self { inner: Arc::new(Mutex::new(inner)), started, room: Arc::new(Notify::new()) }, receiver)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code panics half-way.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues commands, each in its lane. Call it under the lock of the state that they follow
    /// from, so that a lane that catches up misses none.
    pub fn push(&self, commands: Commands) {
        let mut inner = self.lock();
        for command in commands {
            let lane = self.lane(&mut inner, LaneId::of(&command));
            if !lane.behind {
                lane.waiting.push_back(command);
            }
        }
    }

    /// The lane of this id, which is started if it has no work yet.
    fn lane<'a>(&self, inner: &'a mut Inner, id: LaneId) -> &'a mut Lane {
        if inner.lanes.is_empty() {
            inner.progress = Instant::now();
        }
        if !inner.lanes.contains_key(&id) {
            // Without a receiver there is no leader, and nothing to execute.
            let _ = self.started.send(StartedLane { id: id.clone(), generation: inner.generation });
        }
        inner.lanes.entry(id).or_default()
    }

    /// Waits for full lanes, at most [`LANE_PATIENCE_MS`]. Lanes that are still full then drop
    /// their commands and are behind.
    pub async fn room(&self) {
        let full = |inner: &Inner| inner.lanes.values().any(Lane::is_full);
        let waiting = async {
            loop {
                let room = self.room.notified();
                if !full(&self.lock()) {
                    return;
                }
                room.await;
            }
        };
        if timeout(Duration::from_millis(LANE_PATIENCE_MS), waiting).await.is_err() {
            for (id, lane) in &mut self.lock().lanes {
                if lane.is_full() {
                    tracing::warn!(
                        lane = id.name(),
                        "a lane is full; it will execute all outstanding commands"
                    );
                    (lane.waiting, lane.behind) = (VecDeque::new(), true);
                }
            }
        }
    }

    /// Drops all commands; running executors get no more. The lanes of `ids` are then behind.
    pub fn restart(&self, ids: impl IntoIterator<Item = LaneId>) {
        let mut inner = self.lock();
        // A restart does not count as progress.
        let since = (!inner.lanes.is_empty()).then_some(inner.progress);
        inner.generation += 1;
        inner.lanes.clear();
        ids.into_iter().for_each(|id| self.lane(&mut inner, id).behind = true);
        inner.progress = since.unwrap_or_else(Instant::now);
        drop(inner);
        self.room.notify_waiters();
    }

    /// Makes a lane execute all outstanding commands.
    pub fn mark_behind(&self, id: LaneId) {
        let mut inner = self.lock();
        let lane = self.lane(&mut inner, id);
        (lane.waiting, lane.behind) = (VecDeque::new(), true);
    }

    /// Starts a probe of whether execution works.
    pub fn probe(&self) {
        self.mark_behind(LaneId::Probe);
    }

    /// The next work of a lane, at most `max` commands. A lane without work is removed.
    #[must_use]
    pub fn next(&self, started: &StartedLane, max: usize) -> LaneWork {
        let mut inner = self.lock();
        if inner.generation != started.generation {
            return LaneWork::Nothing;
        }
        let Some(lane) = inner.lanes.get_mut(&started.id) else { return LaneWork::Nothing };
        if lane.behind {
            return LaneWork::Outstanding;
        }
        let many = lane.waiting.len().min(max);
        let commands: Commands = lane.waiting.drain(..many).collect();
        if commands.is_empty() {
            inner.lanes.remove(&started.id);
            return LaneWork::Nothing;
        }
        drop(inner);
        self.room.notify_waiters();
        LaneWork::Commands(commands)
    }

    /// A lane's executor has all outstanding commands. Call it under the lock of the state that
    /// they follow from.
    pub fn caught_up(&self, started: &StartedLane) {
        self.lane_of(started, |lane| (lane.waiting, lane.behind) = (VecDeque::new(), false));
    }

    /// Drops the commands of a lane.
    pub fn forget(&self, started: &StartedLane) {
        self.lane_of(started, |lane| lane.waiting.clear());
    }

    fn lane_of(&self, started: &StartedLane, change: impl FnOnce(&mut Lane)) {
        let mut inner = self.lock();
        if inner.generation == started.generation
            && let Some(lane) = inner.lanes.get_mut(&started.id)
        {
            change(lane);
        }
    }

    /// Records progress: a command was executed.
    pub fn progress(&self, started: &StartedLane) {
        let mut inner = self.lock();
        if inner.generation == started.generation {
            inner.progress = Instant::now();
        }
    }

    /// Whether no command is waiting or being executed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.lock().lanes.is_empty()
    }

    /// How long there has been work without progress.
    #[must_use]
    pub fn stalled(&self) -> Duration {
        let inner = self.lock();
        if inner.lanes.is_empty() { Duration::ZERO } else { inner.progress.elapsed() }
    }
}
