//! How busy the workers of each stage are, from the counters that they publish every half second.

use std::collections::BTreeMap;

use millrace_schemas::Stage;
use millrace_schemas::notice::{StageCounters, WorkerNotice};

/// Adds up the counters of workers over their restarts. Pure: it reads no clock.
#[derive(Debug, Default)]
pub(super) struct BusyMeter {
    workers: BTreeMap<String, BTreeMap<Stage, StageMeter>>,
}

/// The counters of one worker in one stage.
#[derive(Debug, Default, Clone)]
struct StageMeter {
    /// The counters that it last published.
    last: StageCounters,
    /// Its uptime then, in milliseconds.
    uptime_ms: u64,
    /// Microseconds of work since the meter began.
    busy_us: u64,
}

impl BusyMeter {
    /// Adds a worker's notice.
    pub(super) fn take(&mut self, notice: &WorkerNotice) {
        let worker = self.workers.entry(notice.worker.clone()).or_default();
        for (stage, counters) in &notice.stages {
            let first = !worker.contains_key(stage);
            let seen = worker.entry(*stage).or_default();
            if first {
                // Work from before the first notice is not counted, unless the worker has just
                // started.
                let started = notice.uptime_ms < 2_000;
                seen.last = if started { StageCounters::default() } else { counters.clone() };
                seen.uptime_ms = if started { 0 } else { notice.uptime_ms };
            } else if notice.uptime_ms < seen.uptime_ms || counters.busy_us < seen.last.busy_us {
                // A new process of the same name counts from 0.
                seen.last = StageCounters::default();
                seen.uptime_ms = 0;
            }
            // Any number may be in a notice.
            let gained = counters.busy_us.saturating_sub(seen.last.busy_us);
            seen.busy_us = seen.busy_us.saturating_add(gained);
            seen.last = counters.clone();
            seen.uptime_ms = notice.uptime_ms;
        }
    }

    /// Resets the meter.
    pub(super) fn begin(&mut self) {
        self.workers.values_mut().flat_map(BTreeMap::values_mut).for_each(|seen| seen.busy_us = 0);
    }

    /// Microseconds of work of a stage's workers.
    pub(super) fn busy_us(&self, stage: Stage) -> u64 {
        self.of(stage).map(|seen| seen.busy_us).fold(0, u64::saturating_add)
    }

    /// Number of workers that serve a stage.
    pub(super) fn workers(&self, stage: Stage) -> usize {
        self.of(stage).count()
    }

    /// Share of `wall_us` in which a stage's workers were executing, 0 to 1, as a mean over the
    /// workers; `None` without a worker of the stage.
    pub(super) fn share(&self, stage: Stage, wall_us: u64) -> Option<f64> {
        let whole = wall_us as f64 * self.workers(stage) as f64;
        (whole > 0.0).then(|| (self.busy_us(stage) as f64 / whole).clamp(0.0, 1.0))
    }

    fn of(&self, stage: Stage) -> impl Iterator<Item = &StageMeter> {
        self.workers.values().filter_map(move |stages| stages.get(&stage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(worker: &str, uptime_ms: u64, busy_us: u64) -> WorkerNotice {
        let counters = StageCounters { busy_us, ..StageCounters::default() };
        WorkerNotice {
            worker: worker.into(),
            uptime_ms,
            stages: [(Stage::Generate, counters)].into(),
            ..WorkerNotice::default()
        }
    }

    #[test]
    fn a_restart_loses_no_counts() {
        let mut meter = BusyMeter::default();
        meter.take(&notice("generate-0", 500, 400_000));
        meter.take(&notice("generate-0", 1_000, 800_000));
        // A new process that was busy for 300 ms of its first 500.
        meter.take(&notice("generate-0", 500, 300_000));
        assert_eq!(meter.busy_us(Stage::Generate), 1_100_000);
        assert_eq!(meter.share(Stage::Generate, 2_000_000), Some(0.55));
    }

    #[test]
    fn shares_are_a_mean_over_workers() {
        let mut meter = BusyMeter::default();
        meter.take(&notice("generate-0", 1_000, 1_000_000));
        meter.take(&notice("generate-1", 1_000, 0));
        assert_eq!(meter.workers(Stage::Generate), 2);
        assert_eq!(meter.share(Stage::Generate, 1_000_000), Some(0.5));
        assert_eq!(meter.share(Stage::TrainShard, 1_000_000), None);
    }

    #[test]
    fn work_from_before_listening_does_not_count() {
        let mut meter = BusyMeter::default();
        meter.take(&notice("generate-0", 60_000, 50_000_000));
        meter.take(&notice("generate-0", 61_000, 50_500_000));
        assert_eq!(meter.busy_us(Stage::Generate), 500_000);
    }

    #[test]
    fn a_workers_numbers_do_not_overflow_the_sums() {
        let mut meter = BusyMeter::default();
        for worker in ["hostile", "other"] {
            for busy_us in [u64::MAX, 0, u64::MAX] {
                meter.take(&notice(worker, 500, busy_us));
            }
        }
        assert_eq!(meter.busy_us(Stage::Generate), u64::MAX);
        assert_eq!(meter.share(Stage::Generate, 1_000_000), Some(1.0));
    }
}
