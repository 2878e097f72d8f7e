//! Partitions of the generate pool: which one a rollout's turns go to, and which worker pulls from
//! it first. Both are functions of names, so no process keeps an assignment. The turns of a
//! rollout, and the samples of its prompt, go to the worker that has their prefix in its cache, as
//! long as it has a free slot.

use crate::blob::Sha;
use crate::ids::{PoolName, RunId, WorkerId};
use crate::limits::MAX_PULL_PRIORITY;
use crate::subjects::GENERATE_POOL;

/// The partitions of the generate pool of runs with so many; none for a run with one, which uses
/// the pool itself.
///
/// # Panics
/// Never: the names are within the bounds of a pool's name.
#[must_use]
pub fn pools(partitions: u32) -> Vec<PoolName> {
    let count = if partitions > 1 { partitions } else { 0 };
    (0..u64::from(count)).map(pool).collect()
}

fn pool(index: u64) -> PoolName {
    format!("{GENERATE_POOL}-{index:02}").parse().expect("a short name is a pool's name")
}

/// The pool of all generate tasks of a group, in a run with so many partitions.
///
/// # Panics
/// Never: the names are within the bounds of a pool's name.
#[must_use]
pub fn of_group(run: &RunId, group: u64, partitions: u32) -> PoolName {
    if partitions <= 1 {
        return GENERATE_POOL.parse().expect("a built-in name is a pool's name");
    }
    pool(hash([run.as_str().as_bytes(), b"/", &group.to_le_bytes()]) % u64::from(partitions))
}

/// The pull priority of a worker at each of so many partitions, from 0 (first) to
/// [`MAX_PULL_PRIORITY`]. A worker's partitions are spread over all priorities, in an order of its
/// own. So each worker is first somewhere, and when one leaves or joins the others keep their
/// priorities.
#[must_use]
pub fn pull_priorities(worker: &WorkerId, partitions: u32) -> Vec<(PoolName, u8)> {
    let mut order = pools(partitions);
    order.sort_by_cached_key(|pool| hash([worker.as_str().as_bytes(), b"/", pool.as_str().as_bytes()]));
    let (count, levels) = (order.len().max(1), usize::from(MAX_PULL_PRIORITY) + 1);
    // With fewer partitions than priorities each has its own.
    let priority = |place: usize| (place * levels / count) as u8;
    order.into_iter().enumerate().map(|(place, pool)| (pool, priority(place))).collect()
}

/// The first 64 bits of SHA-256.
fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let Sha(bytes) = Sha::of_parts(parts);
    bytes[..8].iter().fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    const FIRST_OF_LAKE: [&str; 6] =
        ["policy-00", "policy-05", "policy-02", "policy-06", "policy-01", "policy-05"];

    fn worker(name: &str) -> WorkerId {
        name.parse().unwrap()
    }

    #[test]
    fn groups_are_dealt_evenly_and_the_same_way_for_ever() {
        let run: RunId = "lake".parse().unwrap();
        assert_eq!(of_group(&run, 7, 1).as_str(), GENERATE_POOL);
        let mut dealt = BTreeMap::<PoolName, u32>::new();
        for group in 0..8_000 {
            *dealt.entry(of_group(&run, group, 8)).or_default() += 1;
        }
        assert_eq!(dealt.keys().cloned().collect::<Vec<_>>(), pools(8));
        assert!(dealt.values().all(|count| (850..1_150).contains(count)), "{dealt:?}");
        // A coordinator of another version must use the same partitions when it takes over.
        let first: Vec<_> = (0..6).map(|group| of_group(&run, group, 8).to_string()).collect();
        assert_eq!(first, FIRST_OF_LAKE);
        let other =
            (0..100).filter(|group| of_group(&run, *group, 8) != of_group(&"x".parse().unwrap(), *group, 8));
        assert!(other.count() > 70, "another run's groups go elsewhere");
    }

    #[test]
    fn each_worker_ranks_the_partitions_in_an_order_of_its_own() {
        assert!(pull_priorities(&worker("w"), 1).is_empty(), "one partition is the pool itself");
        let of = |name: &str| pull_priorities(&worker(name), 8).into_iter().collect::<BTreeMap<_, _>>();
        let one = of("generate-0");
        assert_eq!(one.values().collect::<BTreeSet<_>>().len(), 8, "{one:?}");
        assert!(one.values().all(|priority| *priority <= MAX_PULL_PRIORITY));
        let first = |partition: &PoolName, names: &[&str]| {
            let priority = |name: &&&str| of(name)[partition];
            (*names.iter().min_by_key(priority).unwrap()).to_owned()
        };
        let names = ["a", "b", "c", "d"];
        let led: BTreeSet<String> = pools(8).iter().map(|pool| first(pool, &names)).collect();
        assert!(led.len() >= 3, "{led:?}");
        // The first worker stays first when another leaves.
        for pool in pools(8).iter().filter(|pool| first(pool, &names) != "d") {
            assert_eq!(first(pool, &names), first(pool, &names[..3]));
        }
    }
}
