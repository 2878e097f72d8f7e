//! What a run waits for where nothing comes, from its status and from what workers tell twice a second.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use millrace_schemas::Stage;
use millrace_schemas::api::Status;
use millrace_schemas::notice::{StageCounters, WorkerNotice};
use tokio::time::Instant;

use super::term::thousands;

/// A run that got nothing for as long as this is asked what it waits for.
const QUIET_MS: u64 = 5_000;
/// Silence after which a worker is not counted on: it tells its counters twice a second.
const GONE: Duration = Duration::from_secs(5);

/// The workers' last words. Pure: time is handed in.
#[derive(Debug, Default)]
pub(super) struct Waits {
    workers: BTreeMap<String, (Instant, BTreeMap<Stage, StageCounters>)>,
}

/// Whether it has been quiet for so long that a person should hear why.
pub(super) const fn is_quiet(status: &Status) -> bool {
    status.quiet_ms >= QUIET_MS
}

/// What a worker says on its subject; `None` where it is nothing of a worker's, for anyone may publish there.
pub(super) fn read_notice(payload: &[u8]) -> Option<WorkerNotice> {
    serde_json::from_slice(payload).ok()
}

/// The tasks of a stage that nobody does.
#[derive(Debug, Clone)]
pub(super) struct Wait {
    stage: Stage,
    tasks: u64,
    why: String,
}

impl Wait {
    /// Whether it says nothing that `told` did not: how many tasks there are changes all the time.
    pub(super) fn says_the_same(&self, told: &Self) -> bool {
        (self.stage, &self.why) == (told.stage, &told.why)
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, tasks, why } = self;
        let verb = if *tasks == 1 { "task waits" } else { "tasks wait" };
        write!(f, "{}: {} {verb}; {why}", stage.name(), thousands(*tasks))
    }
}

impl Waits {
    /// Takes in what a worker says.
    pub(super) fn take(&mut self, now: Instant, notice: WorkerNotice) {
        self.workers.retain(|_, (heard, _)| now - *heard < GONE);
        self.workers.insert(notice.worker, (now, notice.stages));
    }

    /// Each stage whose tasks nobody does: why, as far as workers say. Empty where the run is not quiet, or where its
    /// tasks are in the hands of workers that say nothing of a want.
    pub(super) fn all(&self, now: Instant, status: &Status) -> Vec<Wait> {
        if !is_quiet(status) {
            return Vec::new();
        }
        let waiting = |stage: &Stage| status.tasks.get(stage.name()).copied().unwrap_or(0);
        let stages = Stage::QUEUED.iter().filter(|stage| waiting(stage) > 0);
        stages.filter_map(|stage| self.of(now, *stage, waiting(stage))).collect()
    }

    fn of(&self, now: Instant, stage: Stage, tasks: u64) -> Option<Wait> {
        let heard = self.workers.iter().filter(|(_, (heard, _))| now - *heard < GONE);
        let serving: Vec<_> = heard.filter_map(|(name, (_, of))| Some((name, of.get(&stage)?))).collect();
        let wants = |(name, of): &(&String, &StageCounters)| Some((name.to_string(), of.waits_for.clone()?));
        let mut wants = serving.iter().filter_map(wants);
        let why = match (wants.next(), serving.len()) {
            (Some((name, why)), 1) => format!("worker {name}: {why}"),
            (Some((name, why)), workers) => {
                format!("worker {name} and {} more of {workers}: {why}", wants.count())
            }
            (None, 0) => "no worker of this stage is heard of".to_owned(),
            (None, _) if serving.iter().any(|(_, of)| of.in_hand > 0) => return None,
            (None, workers) => {
                format!("{workers} workers of this stage are idle; is it the pool that they serve?")
            }
        };
        Some(Wait { stage, tasks, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn quiet(stage: Stage, tasks: u64) -> Status {
        let tasks = [(stage.name().to_owned(), tasks)].into();
        Status { quiet_ms: QUIET_MS, tasks, ..sample::status(10) }
    }

    fn lines(waits: &Waits, now: Instant, status: &Status) -> Vec<String> {
        waits.all(now, status).iter().map(ToString::to_string).collect()
    }

    fn says(worker: &str, stage: Stage, counters: StageCounters) -> WorkerNotice {
        WorkerNotice { worker: worker.to_owned(), uptime_ms: 9_000, stages: [(stage, counters)].into() }
    }

    #[test]
    fn a_run_that_moves_waits_for_nothing() {
        let status = Status { quiet_ms: QUIET_MS - 1, ..quiet(Stage::Reward, 3) };
        assert!(Waits::default().all(Instant::now(), &status).is_empty());
    }

    #[test]
    fn what_workers_want_is_told_once_for_all() {
        let (mut waits, now, status) = (Waits::default(), Instant::now(), quiet(Stage::Generate, 1_200));
        assert_eq!(
            lines(&waits, now, &status),
            ["generate: 1,200 tasks wait; no worker of this stage is heard of"]
        );
        let away =
            || StageCounters { waits_for: Some("the server is away".into()), ..StageCounters::default() };
        waits.take(now, says("a", Stage::Generate, away()));
        assert_eq!(lines(&waits, now, &status), ["generate: 1,200 tasks wait; worker a: the server is away"]);
        waits.take(now, says("b", Stage::Generate, away()));
        let two = "generate: 1,200 tasks wait; worker a and 1 more of 2: the server is away";
        assert_eq!(lines(&waits, now, &status), [two]);
    }

    #[test]
    fn a_worker_that_fell_silent_is_not_counted_on() {
        let (mut waits, now, status) = (Waits::default(), Instant::now(), quiet(Stage::Reward, 1));
        let busy = StageCounters { in_hand: 1, ..StageCounters::default() };
        waits.take(now, says("a", Stage::Reward, busy));
        assert!(lines(&waits, now, &status).is_empty(), "it is at it");
        let gone = ["reward: 1 task waits; no worker of this stage is heard of"];
        assert_eq!(lines(&waits, now + GONE, &status), gone);
    }

    #[test]
    fn idle_workers_beside_tasks_serve_another_pool() {
        let (mut waits, now, status) = (Waits::default(), Instant::now(), quiet(Stage::EnvStep, 2));
        waits.take(now, says("a", Stage::EnvStep, StageCounters::default()));
        let lines = lines(&waits, now, &status);
        assert!(lines.len() == 1 && lines[0].contains("is it the pool"), "{lines:?}");
    }
}
