//! The workers that live, and how fast they are, as their notices tell. Notices may be lost, so
//! nothing here is more than an estimate.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millrace_schemas::limits::WORKER_REPORT_MS;
use millrace_schemas::notice::{StageCounters, WorkerNotice};
use millrace_schemas::{Stage, WorkerId};
use tokio::time::Instant;

use crate::spec::PoolSpec;

/// A worker that is silent for so long is gone.
const SILENCE: Duration = Duration::from_millis(8 * WORKER_REPORT_MS);
/// Workers that are followed, at most: names come from the network.
const MAX_FOLLOWED: usize = 65_536;
/// A start that no worker followed for so long was given up, however fast the others are, in seconds.
const GIVEN_UP_S: f64 = 3_600.0;
/// The same in start-ups of the pool, where that is more.
const GIVEN_UP_START_UPS: f64 = 10.0;
/// Half-life of a measured speed.
const HALF_LIFE: Duration = Duration::from_secs(15);
/// Tasks that are enough for a mean: where more are done within the half-life, older ones count less.
const ENOUGH: f64 = 200.0;
/// Tasks that count however long ago they were done: a train step may last longer than the half-life.
const LEAST: f64 = 2.0;

/// The speeds of workers that belong to no pool of the file are kept under this name, which no pool
/// has.
const UNSCALED: &str = "";

/// The share of a sum that is left after `passed`.
pub(crate) fn kept(passed: Duration, half_life: Duration) -> f64 {
    0.5_f64.powf(passed.as_secs_f64() / half_life.as_secs_f64())
}

/// A worker as its last notice shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveWorker {
    /// When its first notice came.
    pub first: Instant,
    /// When its last notice came.
    pub last: Instant,
    /// Its notice.
    pub notice: WorkerNotice,
}

/// Sums over the reports of workers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sums {
    /// Tasks done.
    done: f64,
    /// Seconds in which a worker executed at least one.
    busy_s: f64,
    /// Seconds of workers that had a task in flight when they reported.
    seen_s: f64,
    /// The same, times the share of its slots that were taken.
    filled_s: f64,
}

impl Sums {
    fn plus(self, other: Self) -> Self {
        Self {
            done: self.done + other.done,
            busy_s: self.busy_s + other.busy_s,
            seen_s: self.seen_s + other.seen_s,
            filled_s: self.filled_s + other.filled_s,
        }
    }

    fn times(self, factor: f64) -> Self {
        Self {
            done: self.done * factor,
            busy_s: self.busy_s * factor,
            seen_s: self.seen_s * factor,
            filled_s: self.filled_s * factor,
        }
    }
}

/// The speed of a pool's workers at one stage.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Speed {
    /// Up to the last report of a finished task. Older ones decay.
    sums: Sums,
    /// Since then. It counts with the next task that is done: until then nobody knows what the time
    /// was spent for, and a trainer in the middle of a step would look slower and slower.
    begun: Sums,
    /// When that report came.
    at: Instant,
}

impl Speed {
    fn report(&mut self, gained: Sums, now: Instant) {
        self.begun = self.begun.plus(gained);
        if self.begun.done <= 0.0 {
            return;
        }
        let before = self.sums.done.max(f64::MIN_POSITIVE);
        let kept = kept(now.duration_since(self.at), HALF_LIFE).max(LEAST.min(before) / before);
        let sums = self.sums.times(kept).plus(self.begun);
        let (sums, begun) = (sums.times((ENOUGH / sums.done).min(1.0)), Sums::default());
        *self = Self { sums, begun, at: now };
    }

    fn per_s(&self) -> Option<f64> {
        let Sums { done, busy_s, seen_s, filled_s } = self.sums;
        if done <= 0.0 || busy_s <= 0.0 {
            return None;
        }
        // Slots that were free would have done as much again. Where that is too much to expect, the
        // slots fill and show it.
        let filled = if seen_s > 0.0 { (filled_s / seen_s).clamp(0.01, 1.0) } else { 1.0 };
        Some(done / busy_s / filled)
    }
}

/// What is known of a pool's workers.
#[derive(Debug, Clone, PartialEq)]
pub struct Supply {
    /// Workers that live and do not leave.
    pub workers: u32,
    /// Tasks that a worker with all slots taken does in a second, by stage; a stage is missing until
    /// one is measured.
    pub per_s: BTreeMap<Stage, f64>,
    /// Tasks that a worker has in flight at most, by stage; 0 or missing where it is not told.
    pub slots: BTreeMap<Stage, u64>,
    /// Seconds from a decision until a new worker serves, and their usual deviation.
    pub start_up_s: (f64, f64),
}

/// All workers, and the speeds of pools.
#[derive(Debug, Default)]
pub struct Fleet {
    seen: BTreeMap<WorkerId, LiveWorker>,
    speeds: BTreeMap<(String, Stage), Speed>,
    /// Decisions to start workers that no worker has followed yet, by pool, oldest first.
    awaited: BTreeMap<String, Vec<Instant>>,
    start_ups: BTreeMap<String, (f64, f64)>,
}

/// Whether a worker belongs to a pool: it names it, or names none and serves the same stages.
#[must_use]
pub fn is_of(notice: &WorkerNotice, pool: &PoolSpec) -> bool {
    match &notice.pool {
        Some(name) => *name == pool.name,
        None => notice.stages.keys().eq(pool.stages.iter()),
    }
}

impl Fleet {
    /// Takes in a notice.
    pub fn hear(&mut self, notice: WorkerNotice, pools: &[PoolSpec], now: Instant) {
        let Ok(worker) = notice.worker.parse::<WorkerId>() else { return };
        if !self.seen.contains_key(&worker) && self.seen.len() >= MAX_FOLLOWED {
            return;
        }
        let pool = pools.iter().find(|pool| is_of(&notice, pool));
        // Counters that went back are those of another process of the same name.
        let same = self.seen.remove(&worker).filter(|seen| seen.notice.uptime_ms <= notice.uptime_ms);
        let first = same.as_ref().map_or(now, |seen| seen.first);
        // The trainer sets the pace of the others, also where its pool is not scaled.
        let name = pool.map_or(UNSCALED, |pool| &pool.name);
        for (stage, counters) in &notice.stages {
            let was = same.as_ref().and_then(|seen| seen.notice.stages.get(stage));
            let passed_ms = notice.uptime_ms - same.as_ref().map_or(0, |seen| seen.notice.uptime_ms);
            self.measure(name, *stage, gained(was, counters, passed_ms), now);
        }
        if let Some(pool) = pool.filter(|_| same.is_none()) {
            self.arrived(pool, now);
        }
        self.seen.insert(worker, LiveWorker { first, last: now, notice });
    }

    fn measure(&mut self, pool: &str, stage: Stage, gained: Sums, now: Instant) {
        let new = Speed { sums: Sums::default(), begun: Sums::default(), at: now };
        self.speeds.entry((pool.to_owned(), stage)).or_insert(new).report(gained, now);
    }

    /// Records that a pool is to have `desired` workers instead of `before`. A fall first cancels what has
    /// not started: nobody comes for that.
    pub fn decided(&mut self, pool: &str, before: u32, desired: u32, now: Instant) {
        let awaited = self.awaited.entry(pool.to_owned()).or_default();
        awaited.truncate(awaited.len().saturating_sub(before.saturating_sub(desired) as usize));
        awaited.extend(std::iter::repeat_n(now, desired.saturating_sub(before).min(1_000) as usize));
        let surplus = awaited.len().saturating_sub(1_000);
        awaited.drain(..surplus);
    }

    /// Another process decides: what it starts or cancels is not known here.
    pub fn awaits_nobody(&mut self) {
        self.awaited.clear();
    }

    /// A worker of a pool serves for the first time: it follows the oldest decision.
    fn arrived(&mut self, pool: &PoolSpec, now: Instant) {
        let longest_s = GIVEN_UP_S.max(GIVEN_UP_START_UPS * self.start_up_s(pool).0);
        let Some(awaited) = self.awaited.get_mut(&pool.name) else { return };
        awaited.retain(|since| now.duration_since(*since).as_secs_f64() <= longest_s);
        if awaited.is_empty() {
            return;
        }
        let took = now.duration_since(awaited.remove(0)).as_secs_f64();
        let known = self.start_ups.entry(pool.name.clone()).or_insert((took, 0.0));
        let (mean, deviation) = *known;
        *known = (mean + (took - mean) / 4.0, deviation + ((took - mean).abs() - deviation) / 4.0);
    }

    /// Forgets the workers that are silent.
    pub fn forget_silent(&mut self, now: Instant) {
        self.seen.retain(|_, seen| now.duration_since(seen.last) < SILENCE);
    }

    /// The workers of a pool, by name.
    pub fn of(&self, pool: &PoolSpec) -> impl Iterator<Item = (&WorkerId, &LiveWorker)> {
        self.seen.iter().filter(move |(_, seen)| is_of(&seen.notice, pool))
    }

    /// The machines on which a worker lives, of whatever pool.
    #[must_use]
    pub fn occupied(&self) -> BTreeSet<String> {
        let machines = self.seen.values().filter_map(|seen| seen.notice.machine.as_ref());
        machines.map(|machine| machine.name.clone()).collect()
    }

    /// What is known of a pool's workers.
    #[must_use]
    pub fn supply(&self, pool: &PoolSpec) -> Supply {
        let per_s = pool.stages.iter().filter_map(|stage| {
            let speed = self.speeds.get(&(pool.name.clone(), *stage))?;
            speed.per_s().map(|per_s| (*stage, per_s))
        });
        Supply {
            workers: self.of(pool).filter(|(_, seen)| !seen.notice.leaving).count() as u32,
            per_s: per_s.collect(),
            slots: self.slots(pool),
            start_up_s: self.start_up_s(pool),
        }
    }

    /// Seconds from a decision until a pool's worker serves, mean and deviation: the file's until they are measured.
    #[must_use]
    pub fn start_up_s(&self, pool: &PoolSpec) -> (f64, f64) {
        self.start_ups.get(&pool.name).copied().unwrap_or((pool.start_up_s(), 0.0))
    }

    fn slots(&self, pool: &PoolSpec) -> BTreeMap<Stage, u64> {
        let mut slots = BTreeMap::new();
        for (stage, counters) in self.of(pool).flat_map(|(_, seen)| &seen.notice.stages) {
            let most: &mut u64 = slots.entry(*stage).or_default();
            *most = counters.slots.max(*most);
        }
        slots
    }

    /// Seconds of a train step: how long a rank computes for one. `None` before the first.
    #[must_use]
    pub fn step_s(&self) -> Option<f64> {
        let speeds = self.speeds.iter().filter(|((_, stage), _)| *stage == Stage::TrainShard);
        speeds.filter_map(|(_, speed)| speed.per_s()).map(|per_s| 1.0 / per_s).max_by(f64::total_cmp)
    }
}

/// What a worker did since the counters before, `passed_ms` ago.
fn gained(before: Option<&StageCounters>, now: &StageCounters, passed_ms: u64) -> Sums {
    let (done, busy_us) = before.map_or((0, 0), |before| (before.done, before.busy_us));
    let seen_s = if now.in_hand > 0 { passed_ms as f64 / 1e3 } else { 0.0 };
    // An older worker does not tell its slots: they count as taken.
    let filled = if now.slots > 0 { (now.in_hand as f64 / now.slots as f64).min(1.0) } else { 1.0 };
    Sums {
        done: now.done.saturating_sub(done) as f64,
        busy_s: now.busy_us.saturating_sub(busy_us) as f64 / 1e6,
        seen_s,
        filled_s: seen_s * filled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ScalingFile;

    fn pools() -> Vec<PoolSpec> {
        let text = "[[pool]]\nname = \"gen\"\nstages = [\"generate\"]\nmax = 9\nstart_up_s = 7\n";
        ScalingFile::parse(text).unwrap().pools
    }

    fn notice(worker: &str, stage: Stage, uptime_ms: u64, done: u64, busy_us: u64) -> WorkerNotice {
        let counters = StageCounters { done, busy_us, ..StageCounters::default() };
        WorkerNotice {
            worker: worker.into(),
            uptime_ms,
            stages: BTreeMap::from([(stage, counters)]),
            ..WorkerNotice::default()
        }
    }

    #[test]
    fn a_speed_is_tasks_over_busy_time_and_survives_a_restart() {
        let (pools, now) = (pools(), Instant::now());
        let mut fleet = Fleet::default();
        fleet.hear(notice("g", Stage::Generate, 1_000, 10, 500_000), &pools, now);
        fleet.hear(notice("g", Stage::Generate, 2_000, 40, 2_000_000), &pools, now);
        // Another process of the same name: its counters start over.
        fleet.hear(notice("g", Stage::Generate, 100, 20, 1_000_000), &pools, now);
        let supply = fleet.supply(&pools[0]);
        assert_eq!(supply.workers, 1);
        assert!((supply.per_s[&Stage::Generate] - 20.0).abs() < 1e-9, "{supply:?}");
    }

    #[test]
    fn a_worker_with_free_slots_could_do_more() {
        let (pools, now) = (pools(), Instant::now());
        let mut fleet = Fleet::default();
        let mut quarter = notice("g", Stage::Generate, 10_000, 100, 10_000_000);
        let counters = quarter.stages.get_mut(&Stage::Generate).unwrap();
        (counters.in_hand, counters.slots) = (4, 16);
        fleet.hear(quarter, &pools, now);
        let per_s = fleet.supply(&pools[0]).per_s[&Stage::Generate];
        assert!((per_s - 40.0).abs() < 1e-9, "{per_s}: it did 10 a second with a quarter of its slots");
    }

    #[test]
    fn a_step_that_is_longer_than_the_memory_has_its_own_length_at_any_moment() {
        let (pools, start) = (pools(), Instant::now());
        let mut fleet = Fleet::default();
        let tell = |fleet: &mut Fleet, at_s: u64, done: u64, busy_s: u64| {
            let notice = notice("t", Stage::TrainShard, at_s * 1_000, done, busy_s * 1_000_000);
            fleet.hear(notice, &pools, start + Duration::from_secs(at_s));
        };
        // Steps of 100 s one after another, told every second, and a pause of ten minutes.
        for second in 1..=1_000 {
            let pause = if second > 500 { 600 } else { 0 };
            tell(&mut fleet, second + pause, second / 100, second);
            assert_eq!(fleet.step_s(), (second >= 100).then_some(100.0), "second={second}");
        }
        // Steps become shorter, which is soon known.
        for second in 1..=60 {
            tell(&mut fleet, 1_600 + second, 10 + second / 20, 1_000 + second);
        }
        let step_s = fleet.step_s().unwrap();
        assert!((20.0..60.0).contains(&step_s), "{step_s}");
    }

    #[test]
    fn the_pace_of_a_trainer_counts_that_no_pool_has() {
        let (pools, now) = (pools(), Instant::now());
        let mut fleet = Fleet::default();
        assert_eq!(fleet.step_s(), None);
        fleet.hear(notice("t", Stage::TrainShard, 1_000, 4, 2_000_000), &pools, now);
        assert_eq!(fleet.step_s(), Some(0.5));
        assert_eq!(fleet.supply(&pools[0]).workers, 0);
    }

    #[test]
    fn a_worker_that_leaves_or_is_silent_is_no_supply() {
        let (pools, now) = (pools(), Instant::now());
        let mut fleet = Fleet::default();
        let leaving = WorkerNotice { leaving: true, ..notice("a", Stage::Generate, 1, 0, 0) };
        fleet.hear(leaving, &pools, now);
        fleet.hear(notice("b", Stage::Generate, 1, 0, 0), &pools, now);
        assert_eq!(fleet.supply(&pools[0]).workers, 1);
        fleet.forget_silent(now + SILENCE);
        assert_eq!(fleet.supply(&pools[0]).workers, 0);
    }

    #[test]
    fn the_start_up_delay_is_measured_with_its_deviation() {
        let (pools, now) = (pools(), Instant::now());
        let mut fleet = Fleet::default();
        assert_eq!(fleet.supply(&pools[0]).start_up_s, (7.0, 0.0), "the file's, until it is measured");
        fleet.decided("gen", 0, 2, now);
        fleet.hear(notice("a", Stage::Generate, 1, 0, 0), &pools, now + Duration::from_secs(20));
        fleet.hear(notice("b", Stage::Generate, 1, 0, 0), &pools, now + Duration::from_secs(60));
        let (mean, deviation) = fleet.supply(&pools[0]).start_up_s;
        assert_eq!((mean, deviation), (30.0, 10.0));
    }

    #[test]
    fn a_start_that_was_cancelled_is_not_measured() {
        let (pools, start) = (pools(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let start_up_s = |fleet: &Fleet| fleet.supply(&pools[0]).start_up_s;
        let morning = 12 * 3_600;
        let mut fleet = Fleet::default();
        fleet.decided("gen", 0, 8, start);
        fleet.decided("gen", 8, 3, at(30));
        fleet.decided("gen", 3, 0, at(60));
        fleet.decided("gen", 0, 8, at(morning));
        fleet.hear(notice("a", Stage::Generate, 1, 0, 0), &pools, at(morning + 20));
        assert_eq!(start_up_s(&fleet), (20.0, 0.0));
        // Of six that start, the four that were decided last are cancelled.
        let mut fleet = Fleet::default();
        fleet.decided("gen", 0, 2, start);
        fleet.decided("gen", 2, 6, at(10));
        fleet.decided("gen", 6, 2, at(15));
        fleet.hear(notice("a", Stage::Generate, 1, 0, 0), &pools, at(20));
        fleet.hear(notice("b", Stage::Generate, 1, 0, 0), &pools, at(20));
        fleet.hear(notice("c", Stage::Generate, 1, 0, 0), &pools, at(90));
        assert_eq!(start_up_s(&fleet), (20.0, 0.0));
    }

    #[test]
    fn a_start_that_nobody_followed_is_given_up() {
        let (pools, start) = (pools(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut fleet = Fleet::default();
        fleet.decided("gen", 0, 8, start);
        fleet.decided("gen", 8, 9, at(7_200));
        fleet.hear(notice("a", Stage::Generate, 1, 0, 0), &pools, at(7_220));
        fleet.hear(notice("b", Stage::Generate, 1, 0, 0), &pools, at(7_500));
        assert_eq!(fleet.supply(&pools[0]).start_up_s, (20.0, 0.0));
        // Another process led.
        let mut fleet = Fleet::default();
        fleet.decided("gen", 0, 8, start);
        fleet.awaits_nobody();
        fleet.hear(notice("a", Stage::Generate, 1, 0, 0), &pools, at(600));
        assert_eq!(fleet.supply(&pools[0]).start_up_s, (7.0, 0.0), "the file's");
    }

    #[test]
    fn a_name_that_no_worker_can_have_is_not_followed() {
        let (pools, now) = (pools(), Instant::now());
        let mut fleet = Fleet::default();
        fleet.hear(notice("../../etc", Stage::Generate, 1, 0, 0), &pools, now);
        assert_eq!(fleet.supply(&pools[0]).workers, 0);
    }
}
