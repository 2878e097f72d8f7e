//! What a run without progress waits for, from its status and from the notices that workers publish
//! twice a second.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use millrace_schemas::Stage;
use millrace_schemas::api::Status;
use millrace_schemas::notice::{StageCounters, WorkerNotice};
use tokio::time::Instant;

use super::term::thousands;

/// Time without progress after which waits are reported.
const QUIET_MS: u64 = 5_000;
/// Silence after which a worker counts as gone: it publishes its counters twice a second.
const GONE: Duration = Duration::from_secs(5);

/// The workers' last notices. Pure: it reads no clock.
#[derive(Debug, Default)]
pub(super) struct Waits {
    workers: BTreeMap<String, (Instant, BTreeMap<Stage, StageCounters>)>,
}

/// Whether the run has made no progress for so long that the user should see why.
pub(super) const fn is_quiet(status: &Status) -> bool {
    status.quiet_ms >= QUIET_MS
}

/// A worker's notice; `None` if the message is none, because any client may publish there.
pub(super) fn read_notice(payload: &[u8]) -> Option<WorkerNotice> {
    serde_json::from_slice(payload).ok()
}

/// The tasks of a stage that no worker does.
#[derive(Debug, Clone)]
pub(super) struct Wait {
    stage: Stage,
    tasks: u64,
    why: String,
}

impl Wait {
    /// Whether it has the same stage and reason as `reported`. The number of tasks changes all the
    /// time.
    pub(super) fn matches(&self, reported: &Self) -> bool {
        (self.stage, &self.why) == (reported.stage, &reported.why)
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
    /// Records a worker's notice.
    pub(super) fn take(&mut self, now: Instant, notice: WorkerNotice) {
        self.workers.retain(|_, (heard, _)| now - *heard < GONE);
        self.workers.insert(notice.worker, (now, notice.stages));
    }

    /// Each stage whose tasks no worker does, with the reason that workers report. Empty if the run
    /// makes progress, or if its tasks are in flight at workers that report no wait.
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
            (None, 0) => "no worker of this stage is running".to_owned(),
            (None, _) if serving.iter().any(|(_, of)| of.in_hand > 0) => return None,
            (None, workers) => {
                format!("{workers} workers of this stage are idle; do they serve the right pool?")
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

    fn counters_of(worker: &str, stage: Stage, counters: StageCounters) -> WorkerNotice {
        WorkerNotice {
            worker: worker.to_owned(),
            uptime_ms: 9_000,
            stages: [(stage, counters)].into(),
            ..WorkerNotice::default()
        }
    }

    #[test]
    fn a_run_that_moves_waits_for_nothing() {
        let status = Status { quiet_ms: QUIET_MS - 1, ..quiet(Stage::Reward, 3) };
        assert!(Waits::default().all(Instant::now(), &status).is_empty());
    }

    #[test]
    fn waits_of_workers_of_a_stage_are_one_line() {
        let (mut waits, now, status) = (Waits::default(), Instant::now(), quiet(Stage::Generate, 1_200));
        assert_eq!(
            lines(&waits, now, &status),
            ["generate: 1,200 tasks wait; no worker of this stage is running"]
        );
        let away =
            || StageCounters { waits_for: Some("the server is down".into()), ..StageCounters::default() };
        waits.take(now, counters_of("a", Stage::Generate, away()));
        assert_eq!(lines(&waits, now, &status), ["generate: 1,200 tasks wait; worker a: the server is down"]);
        waits.take(now, counters_of("b", Stage::Generate, away()));
        let two = "generate: 1,200 tasks wait; worker a and 1 more of 2: the server is down";
        assert_eq!(lines(&waits, now, &status), [two]);
    }

    #[test]
    fn a_worker_that_fell_silent_is_not_counted_on() {
        let (mut waits, now, status) = (Waits::default(), Instant::now(), quiet(Stage::Reward, 1));
        let busy = StageCounters { in_hand: 1, ..StageCounters::default() };
        waits.take(now, counters_of("a", Stage::Reward, busy));
        assert!(lines(&waits, now, &status).is_empty(), "it is working");
        let gone = ["reward: 1 task waits; no worker of this stage is running"];
        assert_eq!(lines(&waits, now + GONE, &status), gone);
    }

    #[test]
    fn idle_workers_beside_tasks_serve_another_pool() {
        let (mut waits, now, status) = (Waits::default(), Instant::now(), quiet(Stage::EnvStep, 2));
        waits.take(now, counters_of("a", Stage::EnvStep, StageCounters::default()));
        let lines = lines(&waits, now, &status);
        assert!(lines.len() == 1 && lines[0].contains("the right pool"), "{lines:?}");
    }
}
