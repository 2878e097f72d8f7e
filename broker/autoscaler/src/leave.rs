//! Which workers go when a pool shrinks. Pure.

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
    let key = |seen: &LiveWorker| {
        let ends = seen.notice.machine.as_ref().and_then(|machine| machine.ends_unix_ms);
        let soon = ends.filter(|ends| ends.saturating_sub(unix_ms) < SOON_MS).unwrap_or(u64::MAX);
        let in_flight: u64 = seen.notice.stages.values().map(|counters| counters.in_hand).sum();
        (soon, in_flight, now.duration_since(seen.first))
    };
    let mut leavers: Vec<_> = workers.filter(|(_, seen)| !seen.notice.leaving).collect();
    leavers.sort_by(|(a, first), (b, second)| key(first).cmp(&key(second)).then_with(|| a.cmp(b)));
    leavers.into_iter().take(count).map(|(worker, _)| worker.clone()).collect()
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
