//! Which workers that stand by serve again when a pool has too few. A recalled worker is silent while it
//! starts: until then it counts as one that comes, or each decision would recall another in its place.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_schemas::WorkerId;
use tokio::time::Instant;

use crate::fleet::LiveWorker;

/// A recalled worker has this long at least to serve: its pool's start-up may not be measured yet.
const LEAST: Duration = Duration::from_secs(30);

/// The workers of one pool that were recalled and do not serve yet, with the time of the recall.
#[derive(Debug, Default)]
pub struct Recalled(BTreeMap<WorkerId, Instant>);

impl Recalled {
    /// Of `workers`, which are all of the pool, those that are to serve again where `missing` are too few. The
    /// order is that of their names: the same are chosen until they start. `start_up` is how long a worker
    /// takes until it serves.
    pub fn choose<'a>(
        &mut self,
        workers: impl Iterator<Item = (&'a WorkerId, &'a LiveWorker)>,
        missing: usize,
        start_up: Duration,
        now: Instant,
    ) -> Vec<WorkerId> {
        let patience = start_up.max(LEAST);
        self.0.retain(|_, since| now.duration_since(*since) < patience);
        let mut stand_by = Vec::new();
        for (worker, seen) in workers {
            // Who serves came, and who stands by did not hear of it.
            if seen.notice.stands_by || !seen.notice.leaving {
                self.0.remove(worker);
            }
            if seen.notice.stands_by {
                stand_by.push(worker);
            }
        }
        let count = missing.saturating_sub(self.0.len());
        let chosen: Vec<WorkerId> = stand_by.into_iter().take(count).cloned().collect();
        self.0.extend(chosen.iter().map(|worker| (worker.clone(), now)));
        chosen
    }
}

#[cfg(test)]
mod tests {
    use millrace_schemas::notice::WorkerNotice;

    use super::*;

    const START_UP: Duration = Duration::from_secs(60);

    #[test]
    fn a_recalled_worker_that_starts_is_not_missed_a_second_time() {
        let start = Instant::now();
        let seen = |leaving, stands_by| LiveWorker {
            first: start,
            last: start,
            notice: WorkerNotice { worker: "w".into(), leaving, stands_by, ..WorkerNotice::default() },
        };
        let (serves, starts, stands_by) = (seen(false, false), seen(true, false), seen(true, true));
        let mut recalled = Recalled::default();
        let mut choose = |at_s: u64, missing: usize, workers: &[(&str, &LiveWorker)]| -> Vec<String> {
            let workers: BTreeMap<WorkerId, &LiveWorker> =
                workers.iter().map(|(name, seen)| (name.parse().unwrap(), *seen)).collect();
            let workers = workers.iter().map(|(name, seen)| (name, *seen));
            let chosen = recalled.choose(workers, missing, START_UP, start + Duration::from_secs(at_s));
            chosen.iter().map(ToString::to_string).collect()
        };
        let none = Vec::<String>::new();
        assert_eq!(choose(0, 1, &[("a", &stands_by), ("b", &stands_by)]), ["a"]);
        assert_eq!(choose(1, 1, &[("a", &stands_by), ("b", &stands_by)]), ["a"], "the request was lost");
        assert_eq!(choose(5, 1, &[("a", &starts), ("b", &stands_by)]), none);
        assert_eq!(choose(10, 1, &[("b", &stands_by)]), none, "it is silent while it starts");
        assert_eq!(choose(15, 2, &[("b", &stands_by), ("c", &stands_by)]), ["b"], "another one is missing");
        assert_eq!(choose(20, 1, &[("a", &serves), ("c", &stands_by)]), none, "b still starts");
        assert_eq!(choose(75, 1, &[("a", &serves), ("c", &stands_by)]), ["c"], "b did not come");
    }
}
