//! The members of a formation as threads of this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millrace_policy::gang::{MemoryRendezvous, RankAssignment, Rendezvous};
use tokio_util::sync::CancellationToken;

/// Longer than any step here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

static FORMATIONS: AtomicU64 = AtomicU64::new(1);

/// The assignments of a new formation.
pub(crate) fn assignments(world: u32, timeout: Duration) -> Vec<RankAssignment> {
    let rendezvous: Arc<dyn Rendezvous> = Arc::new(MemoryRendezvous::default());
    let gang = format!("test.{}", FORMATIONS.fetch_add(1, Ordering::Relaxed));
    let assignment = |rank| RankAssignment {
        gang: gang.clone(),
        rank,
        world,
        timeout,
        cancel: CancellationToken::new(),
        rendezvous: rendezvous.clone(),
    };
    (0..world).map(assignment).collect()
}

/// Runs `member` with each of the assignments, each on its own thread; returns the results by rank.
pub(crate) fn together<T: Send>(
    assignments: &[RankAssignment],
    member: impl Fn(&RankAssignment) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let member = &member;
        let threads: Vec<_> =
            assignments.iter().map(|assignment| scope.spawn(move || member(assignment))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
