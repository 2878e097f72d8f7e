//! Which workers and machines go when a pool shrinks. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use millrace_schemas::WorkerId;
use tokio::time::Instant;

use crate::fleet::LiveWorker;

/// A machine that is taken back within this time goes first, in milliseconds.
const SOON_MS: u64 = 10 * 60 * 1_000;

/// Of `workers`, those that cost least to lose, in the order in which they go: first the machines
/// that are soon taken back anyway, soonest first; then the idle workers; then those with the fewest
/// tasks in flight; of equals the youngest, whose prefix cache is worth least.
#[must_use]
pub fn leavers<'a>(
    workers: impl Iterator<Item = (&'a WorkerId, &'a LiveWorker)>,
    count: usize,
    unix_ms: u64,
    now: Instant,
) -> Vec<WorkerId> {
    let mut leavers: Vec<_> = workers.filter(|(_, seen)| !seen.notice.leaving).collect();
    leavers.sort_by_cached_key(|(worker, seen)| (Cost::of(seen, unix_ms, now), *worker));
    leavers.into_iter().take(count).map(|(worker, _)| worker.clone()).collect()
}

/// What it costs to lose a worker, or a machine with all of its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// When its machine is taken back, in milliseconds since 1970; the last moment if not soon.
    soon: u64,
    in_flight: u64,
    age: Duration,
}

impl Cost {
    fn of(seen: &LiveWorker, unix_ms: u64, now: Instant) -> Self {
        let ends = seen.notice.machine.as_ref().and_then(|machine| machine.ends_unix_ms);
        // Any number may be in a notice.
        let in_flight = seen.notice.stages.values().map(|counters| counters.in_hand);
        Self {
            soon: ends.filter(|ends| ends.saturating_sub(unix_ms) < SOON_MS).unwrap_or(u64::MAX),
            in_flight: in_flight.fold(0, u64::saturating_add),
            age: now.duration_since(seen.first),
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            soon: self.soon.min(other.soon),
            in_flight: self.in_flight.saturating_add(other.in_flight),
            age: self.age.max(other.age),
        }
    }
}

/// A machine on which workers of a pool live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveMachine {
    /// Its name in the cloud.
    pub name: String,
    /// Its workers that do not leave by themselves.
    pub workers: Vec<WorkerId>,
}

/// The machines of `workers`, in the order in which they go: first those whose workers all leave
/// already; then as their workers would, whose tasks in flight are added up. So a machine with a busy
/// worker goes after all that have none, unless it is soon taken back.
#[must_use]
pub fn machines<'a>(
    workers: impl Iterator<Item = (&'a WorkerId, &'a LiveWorker)>,
    unix_ms: u64,
    now: Instant,
) -> Vec<LiveMachine> {
    let mut machines: BTreeMap<&str, (Cost, Vec<WorkerId>)> = BTreeMap::new();
    for (worker, seen) in workers {
        let Some(machine) = &seen.notice.machine else { continue };
        let cost = Cost::of(seen, unix_ms, now);
        let known = machines.entry(&machine.name).and_modify(|(sum, _)| *sum = sum.and(cost));
        let (_, stay) = known.or_insert((cost, Vec::new()));
        if !seen.notice.leaving {
            stay.push(worker.clone());
        }
    }
    let mut machines: Vec<_> = machines.into_iter().collect();
    machines.sort_by_key(|(_, (cost, stay))| (Reverse(stay.is_empty()), *cost));
    let live =
        |(name, (_, workers)): (&str, (Cost, Vec<WorkerId>))| LiveMachine { name: name.to_owned(), workers };
    machines.into_iter().map(live).collect()
}

/// The workers of the first `machines` that have no more than `count` together.
#[must_use]
pub fn of_whole_machines(machines: &[LiveMachine], count: usize) -> Vec<WorkerId> {
    let mut leavers = Vec::new();
    for machine in machines {
        if leavers.len() + machine.workers.len() > count {
            break;
        }
        leavers.extend(machine.workers.iter().cloned());
    }
    leavers
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use millrace_schemas::Stage;
    use millrace_schemas::notice::{Machine, StageCounters, WorkerNotice};

    use super::*;

    fn seen(
        now: Instant,
        age_s: u64,
        in_flight: u64,
        ends_unix_ms: Option<u64>,
        leaving: bool,
    ) -> LiveWorker {
        let counters = StageCounters { in_hand: in_flight, ..StageCounters::default() };
        let notice = WorkerNotice {
            worker: "w".into(),
            leaving,
            machine: Some(Machine { name: "i-1".into(), ends_unix_ms }),
            stages: BTreeMap::from([(Stage::Generate, counters)]),
            ..WorkerNotice::default()
        };
        LiveWorker { first: now - Duration::from_secs(age_s), last: now, notice }
    }

    fn on(machine: &str, seen: LiveWorker) -> LiveWorker {
        let machine = Some(Machine { name: machine.into(), ends_unix_ms: None });
        LiveWorker { notice: WorkerNotice { machine, ..seen.notice }, ..seen }
    }

    #[test]
    fn a_machine_goes_after_those_whose_workers_are_all_idle() {
        let now = Instant::now() + Duration::from_secs(1_000);
        let workers: BTreeMap<WorkerId, LiveWorker> = [
            ("a-0", on("i-half", seen(now, 10, 0, None, false))),
            ("a-1", on("i-half", seen(now, 10, 1, None, false))),
            ("b-0", on("i-idle", seen(now, 900, 0, None, false))),
            ("b-1", on("i-idle", seen(now, 900, 0, None, false))),
            ("c-0", on("i-busy", seen(now, 10, 8, None, false))),
            ("c-1", on("i-busy", seen(now, 10, 8, None, false))),
            ("d-0", on("i-leaves", seen(now, 10, 9, None, true))),
        ]
        .map(|(name, seen)| (name.parse().unwrap(), seen))
        .into();
        let machines = machines(workers.iter(), 1_000_000, now);
        let names: Vec<&str> = machines.iter().map(|machine| machine.name.as_str()).collect();
        assert_eq!(names, ["i-leaves", "i-idle", "i-half", "i-busy"]);
        let leave = |count| -> Vec<String> {
            of_whole_machines(&machines, count).iter().map(ToString::to_string).collect()
        };
        assert_eq!(leave(1), Vec::<String>::new(), "no machine of two has one too many");
        assert_eq!(leave(3), ["b-0", "b-1"]);
    }

    #[test]
    fn a_workers_numbers_do_not_overflow_the_cost() {
        let now = Instant::now() + Duration::from_secs(1_000);
        let mut hostile = seen(now, 10, u64::MAX, None, false);
        let counters = hostile.notice.stages[&Stage::Generate].clone();
        hostile.notice.stages.insert(Stage::EnvStep, counters);
        let workers: BTreeMap<WorkerId, LiveWorker> =
            [("hostile", hostile), ("idle", seen(now, 10, 0, None, false))]
                .map(|(name, seen)| (name.parse().unwrap(), seen))
                .into();
        let chosen = leavers(workers.iter(), 1, 1_000_000, now);
        assert_eq!(chosen, ["idle".parse().unwrap()]);
        assert_eq!(machines(workers.iter(), 1_000_000, now).len(), 1);
    }

    #[test]
    fn the_worker_goes_that_costs_least_to_lose() {
        let now = Instant::now() + Duration::from_secs(1_000);
        let workers: BTreeMap<WorkerId, LiveWorker> = [
            ("busy-old", seen(now, 900, 8, None, false)),
            ("busy-young", seen(now, 10, 8, None, false)),
            ("idle-old", seen(now, 900, 0, None, false)),
            ("idle-young", seen(now, 10, 0, None, false)),
            ("ends-soon", seen(now, 900, 8, Some(1_000_000 + 60_000), false)),
            ("ends-late", seen(now, 900, 9, Some(1_000_000 + SOON_MS), false)),
            ("leaves", seen(now, 1, 0, None, true)),
        ]
        .map(|(name, seen)| (name.parse().unwrap(), seen))
        .into();
        let chosen = leavers(workers.iter(), 9, 1_000_000, now);
        let chosen: Vec<&str> = chosen.iter().map(WorkerId::as_str).collect();
        let expected = ["ends-soon", "idle-young", "idle-old", "busy-young", "busy-old", "ends-late"];
        assert_eq!(chosen, expected);
    }
}
