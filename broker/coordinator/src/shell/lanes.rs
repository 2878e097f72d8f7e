//! One lane a run: its commands wait here, in its order, for an executor of its own, so that a run whose store or
//! pools are stuck delays nobody else. What concerns all runs has a lane too.
//!
//! A lane is bounded. One that is full forgets its commands and is *behind*: when it gets on it does all that is
//! outstanding of its run instead, for commands follow from the state.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_schemas::RunId;
use millrace_schemas::limits::{LANE_PATIENCE_MS, MAX_COMMANDS_WAITING};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout};

use crate::fold::command::{Command, Commands};

/// Whose commands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaneId {
    /// Of no run: pools of members.
    All,
    /// Of one run.
    Run(RunId),
    /// Of nobody: shows that executing works while every other lane is stuck.
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

/// What a lane's executor is to do next.
#[derive(Debug)]
pub enum Work {
    /// These.
    Commands(Commands),
    /// All that is outstanding.
    Outstanding,
    /// Nothing: the lane is gone.
    Nothing,
}

/// A lane that has work, and the term of its executor.
#[derive(Debug, Clone)]
pub struct Begun {
    /// Which lane.
    pub id: LaneId,
    /// Which start of all lanes: an executor of an earlier one gets nothing more.
    pub generation: u64,
}

/// The lanes, as the fold and the executors share them. Clones share their content.
#[derive(Clone)]
pub struct Lanes {
    inner: Arc<Mutex<Inner>>,
    begun: mpsc::UnboundedSender<Begun>,
    room: Arc<Notify>,
}

struct Inner {
    generation: u64,
    /// Those with work. A lane that is here has an executor.
    lanes: BTreeMap<LaneId, Lane>,
    /// When any lane last got on.
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
    /// Lanes without work, and where those that get some are told.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Begun>) {
        let (begun, receiver) = mpsc::unbounded_channel();
        let inner = Inner { generation: 0, lanes: BTreeMap::new(), progress: Instant::now() };
        (Self { inner: Arc::new(Mutex::new(inner)), begun, room: Arc::new(Notify::new()) }, receiver)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code panics half-way.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues commands, each in its lane. To be called under the lock of the state that they follow from, so that a
    /// lane that catches up misses none.
    pub fn push(&self, commands: Commands) {
        let mut inner = self.lock();
        for command in commands {
            let lane = self.lane(&mut inner, LaneId::of(&command));
            if !lane.behind {
                lane.waiting.push_back(command);
            }
        }
    }

    /// The lane of this id has work.
    fn lane<'a>(&self, inner: &'a mut Inner, id: LaneId) -> &'a mut Lane {
        if inner.lanes.is_empty() {
            inner.progress = Instant::now();
        }
        if !inner.lanes.contains_key(&id) {
            // Where nobody listens, nobody leads.
            let _ = self.begun.send(Begun { id: id.clone(), generation: inner.generation });
        }
        inner.lanes.entry(id).or_default()
    }

    /// Waits for full lanes, for a moment and no longer; those that are full then forget what waits.
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
                    tracing::warn!(lane = id.name(), "a lane is full; it will do all that is outstanding");
                    (lane.waiting, lane.behind) = (VecDeque::new(), true);
                }
            }
        }
    }

    /// Forgets everything; executors under way get nothing more. Then the lanes of `ids` are behind.
    pub fn restart(&self, ids: impl IntoIterator<Item = LaneId>) {
        let mut inner = self.lock();
        // What is begun again is no progress.
        let since = (!inner.lanes.is_empty()).then_some(inner.progress);
        inner.generation += 1;
        inner.lanes.clear();
        ids.into_iter().for_each(|id| self.lane(&mut inner, id).behind = true);
        inner.progress = since.unwrap_or_else(Instant::now);
        drop(inner);
        self.room.notify_waiters();
    }

    /// A lane does all that is outstanding.
    pub fn fall_behind(&self, id: LaneId) {
        let mut inner = self.lock();
        let lane = self.lane(&mut inner, id);
        (lane.waiting, lane.behind) = (VecDeque::new(), true);
    }

    /// Asks for proof that executing works.
    pub fn probe(&self) {
        self.fall_behind(LaneId::Probe);
    }

    /// What is to be done next in a lane, at most `max` commands. A lane without any is gone.
    #[must_use]
    pub fn next(&self, begun: &Begun, max: usize) -> Work {
        let mut inner = self.lock();
        if inner.generation != begun.generation {
            return Work::Nothing;
        }
        let Some(lane) = inner.lanes.get_mut(&begun.id) else { return Work::Nothing };
        if lane.behind {
            return Work::Outstanding;
        }
        let many = lane.waiting.len().min(max);
        let commands: Commands = lane.waiting.drain(..many).collect();
        if commands.is_empty() {
            inner.lanes.remove(&begun.id);
            return Work::Nothing;
        }
        drop(inner);
        self.room.notify_waiters();
        Work::Commands(commands)
    }

    /// A lane has what is outstanding. To be called under the lock of the state that it follows from.
    pub fn caught_up(&self, begun: &Begun) {
        self.lane_of(begun, |lane| (lane.waiting, lane.behind) = (VecDeque::new(), false));
    }

    /// What waits in a lane is of no use.
    pub fn forget(&self, begun: &Begun) {
        self.lane_of(begun, |lane| lane.waiting.clear());
    }

    fn lane_of(&self, begun: &Begun, change: impl FnOnce(&mut Lane)) {
        let mut inner = self.lock();
        if inner.generation == begun.generation
            && let Some(lane) = inner.lanes.get_mut(&begun.id)
        {
            change(lane);
        }
    }

    /// Something was done.
    pub fn progress(&self, begun: &Begun) {
        let mut inner = self.lock();
        if inner.generation == begun.generation {
            inner.progress = Instant::now();
        }
    }

    /// Whether nothing waits and nothing is being done.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.lock().lanes.is_empty()
    }

    /// For how long there has been work and none was done.
    #[must_use]
    pub fn stalled(&self) -> Duration {
        let inner = self.lock();
        if inner.lanes.is_empty() { Duration::ZERO } else { inner.progress.elapsed() }
    }
}
