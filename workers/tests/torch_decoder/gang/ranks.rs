//! The members of a formation as threads of this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millrace_workers::gang::{MemoryRendezvous, Rendezvous, Seat};
use tokio_util::sync::CancellationToken;

/// Longer than any step here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

static FORMATIONS: AtomicU64 = AtomicU64::new(1);

/// The seats of a new formation.
pub(crate) fn seats(world: u32, timeout: Duration) -> Vec<Seat> {
    let rendezvous: Arc<dyn Rendezvous> = Arc::new(MemoryRendezvous::default());
    let gang = format!("test.{}", FORMATIONS.fetch_add(1, Ordering::Relaxed));
    let seat = |rank| Seat {
        gang: gang.clone(),
        rank,
        world,
        timeout,
        cancel: CancellationToken::new(),
        rendezvous: rendezvous.clone(),
    };
    (0..world).map(seat).collect()
}

/// Runs `member` as each of the seats, each on a thread of its own; what they give, by rank.
pub(crate) fn together<T: Send>(seats: &[Seat], member: impl Fn(&Seat) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let member = &member;
        let threads: Vec<_> = seats.iter().map(|seat| scope.spawn(move || member(seat))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
