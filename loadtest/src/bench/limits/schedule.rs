//! Executors that answer at once, or by a schedule that does not wait for the system.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use millrace_schemas::env_step::EnvStepDone;
use millrace_schemas::generate::GenerateDone;
use millrace_schemas::{OutcomeBody, RolloutId, RunId, Task, TaskBody};
use millrace_workers::{Cost, Executor, Verdict};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::bench::lives::outcome;

/// Tokens that an environment shows.
const SHOWN: u32 = 16;
/// Between two looks at the schedule.
const LOOK: Duration = Duration::from_millis(1);

/// Does nothing, notes when, and may hold every outcome until its time has come.
pub(super) struct Player {
    /// Turns of a rollout.
    turns: u8,
    /// Tokens that a turn samples.
    tokens: u32,
    play: Mutex<Play>,
}

#[derive(Default)]
struct Play {
    /// Lives by run.
    done: BTreeMap<RunId, u64>,
    /// When the newest task began.
    last: Option<Instant>,
    /// The longest time without a task that began, since it was asked for.
    gap: Duration,
    /// When a rollout's task ended, or had to by the schedule.
    ended: HashMap<(RunId, RolloutId), Instant>,
    /// From the end of a task to the start of its rollout's next, in microseconds.
    late_us: Vec<u32>,
    schedule: Option<Schedule>,
}

/// Outcomes leave at these times, whether the system keeps up or not: the oldest task first, and where
/// none is there, the next that comes, late.
struct Schedule {
    began: Instant,
    per_s: f64,
    /// Outcomes that have left.
    left: u64,
    waiting: VecDeque<(RunId, RolloutId, oneshot::Sender<()>)>,
}

impl Schedule {
    /// When the next outcome has to leave.
    fn next(&self) -> Instant {
        self.began + Duration::from_secs_f64(self.left as f64 / self.per_s)
    }
}

impl Player {
    pub(super) fn new(turns: u8, tokens: u32) -> Self {
        let tokens = (tokens / u32::from(turns.max(1))).saturating_sub(SHOWN).max(1);
        Self { turns, tokens, play: Mutex::default() }
    }

    fn play(&self) -> MutexGuard<'_, Play> {
        self.play.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lives so far, by run.
    pub(super) fn done(&self) -> BTreeMap<RunId, u64> {
        self.play().done.clone()
    }

    /// Lives so far.
    pub(super) fn lives(&self) -> u64 {
        self.play().done.values().sum()
    }

    /// Forgets how late tasks were. Returns it in microseconds, in order.
    pub(super) fn take_late_us(&self) -> Vec<u32> {
        let mut late = std::mem::take(&mut self.play().late_us);
        late.sort_unstable();
        late
    }

    /// The longest time without a task that began, since the last call.
    pub(super) fn take_gap(&self) -> Duration {
        let mut play = self.play();
        let open = play.last.map_or(Duration::ZERO, |last| last.elapsed());
        play.last = Some(Instant::now());
        std::mem::take(&mut play.gap).max(open)
    }

    /// From now on outcomes leave at `per_s` a second; `None`: at once.
    pub(super) fn pace(&self, per_s: Option<f64>) {
        let mut play = self.play();
        let began = Instant::now();
        // Those that wait are let go.
        play.schedule = per_s.map(|per_s| Schedule { began, per_s, left: 0, waiting: VecDeque::new() });
        play.late_us.clear();
    }

    /// Lets outcomes go when their time has come, until it is dropped.
    pub(super) async fn keep_pace(self: Arc<Self>) {
        let mut look = tokio::time::interval(LOOK);
        loop {
            look.tick().await;
            self.release(Instant::now());
        }
    }

    fn release(&self, now: Instant) {
        let mut play = self.play();
        let Play { schedule: Some(schedule), ended, .. } = &mut *play else { return };
        while let at = schedule.next()
            && at <= now
            && let Some((run, rollout, go)) = schedule.waiting.pop_front()
        {
            schedule.left += 1;
            ended.insert((run, rollout), at);
            // Its task may have been cancelled.
            let _ = go.send(());
        }
    }

    /// Notes that a task began; a receiver where its outcome has to wait.
    fn begin(&self, run: &RunId, rollout: Option<RolloutId>) -> Option<oneshot::Receiver<()>> {
        let now = Instant::now();
        let mut play = self.play();
        let since = play.last.replace(now).map_or(Duration::ZERO, |last| now - last);
        play.gap = play.gap.max(since);
        *play.done.entry(run.clone()).or_default() += 1;
        let rollout = rollout?;
        let before = play.ended.insert((run.clone(), rollout), now);
        if let Some(before) = before {
            let late = now.saturating_duration_since(before).as_micros();
            play.late_us.push(u32::try_from(late).unwrap_or(u32::MAX));
        }
        let schedule = play.schedule.as_mut()?;
        let (go, waits) = oneshot::channel();
        schedule.waiting.push_back((run.clone(), rollout, go));
        Some(waits)
    }

    /// The least outcome, with as many tokens as a turn has here.
    fn outcome(&self, task: TaskBody) -> OutcomeBody {
        let count = self.tokens as usize;
        match outcome(task, self.turns) {
            OutcomeBody::Generate(done) => {
                let version = done.segments[0].version;
                OutcomeBody::Generate(GenerateDone::sampled(&vec![7; count], &vec![-0.5; count], version))
            }
            OutcomeBody::EnvStep(done) => {
                OutcomeBody::EnvStep(EnvStepDone { observation: vec![3; SHOWN as usize], ..done })
            }
            other => other,
        }
    }
}

#[async_trait]
impl Executor for Player {
    async fn execute(&self, task: Task, _: CancellationToken) -> Verdict {
        if let Some(go) = self.begin(&task.run, task.key.rollout()) {
            // Where the schedule ends, all go at once.
            let _ = go.await;
        }
        Verdict::Done(self.outcome(task.body), Cost::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_late_is_counted_from_its_time_in_the_schedule() {
        let player = Player::new(1, 64);
        let run: RunId = "r".parse().expect("a name");
        let id = |index| RolloutId { group: 0, index, attempt: 0 };
        let rollout = |index| Some(id(index));
        player.pace(Some(1_000.0));
        let began = player.play().schedule.as_ref().expect("one").began;
        // Nothing is there when the first is due, nor for a second after.
        player.release(began + Duration::from_secs(1));
        let mut first = player.begin(&run, rollout(0)).expect("it waits for its time");
        let mut second = player.begin(&run, rollout(1)).expect("it waits for its time");
        player.release(began);
        assert!(first.try_recv().is_ok() && second.try_recv().is_err(), "the second is due 1 ms later");
        player.release(began + Duration::from_secs(1));
        assert!(second.try_recv().is_ok());
        let play = player.play();
        let ended = |index| play.ended[&(run.clone(), id(index))];
        assert_eq!((ended(0), ended(1)), (began, began + Duration::from_millis(1)));
    }
}
