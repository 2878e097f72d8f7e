//! Watches how much memory the processes of a sandbox have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Link;
use crate::job::End;
use crate::live::wire::ToInit;
use crate::memory::{Looks, Memory};

/// Kills the processes of a sandbox that have more than `most` bytes, or too many mappings, and notes in `last`
/// how many bytes it saw. Looks often while a command runs, and seldom else: what is left in the background may
/// grow, too. Processes that take long to look at are looked at less often. Ends with the connection.
pub(super) async fn watch<F>(mut looks: Looks<F>, most: u64, link: Arc<Link>, last: Arc<AtomicU64>)
where
    F: Fn() -> Memory + Clone + Send + 'static,
{
    const BUSY: Duration = Duration::from_millis(50);
    const IDLE: Duration = Duration::from_millis(1_000);
    let mut seen = 0;
    while link.is_open() {
        let pause = looks.pause();
        tokio::time::sleep(pause).await;
        let usual = if link.is_busy() { BUSY } else { IDLE };
        tokio::select! {
            () = tokio::time::sleep(usual.saturating_sub(pause)) => {}
            () = link.busy() => {}
        }
        if !link.has_started() {
            continue;
        }
        let newest = link.newest();
        let kills = link.kills();
        // A command that was told of the kernel's kill has ended: what runs now is another.
        let is_killed = kills > seen && !link.has_told(kills);
        let memory = looks.next().await;
        last.store(memory.bytes, Ordering::Relaxed);
        if is_killed || !memory.is_within(most) {
            // What began meanwhile was not looked at.
            if link.newest() > newest {
                continue;
            }
            seen = kills;
            let _ = link.send(&ToInit::KillAll { end: End::Memory }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use tokio::net::UnixStream;

    use super::*;
    use crate::live::spec::Exec;

    const PATIENCE: Duration = Duration::from_secs(5);

    /// With one thread: whoever holds it holds up everything.
    #[tokio::test]
    async fn a_look_that_takes_long_leaves_the_runtime_to_others_and_the_next_one_later() {
        let (ours, _its) = UnixStream::pair().unwrap();
        let link = Link::over(ours, None);
        let starting = Arc::clone(&link);
        let starting = tokio::spawn(async move { starting.start(Exec::new(["true"])).await });
        let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let (end, mut ended) = tokio::sync::mpsc::unbounded_channel();
        let (go, gone) = mpsc::channel();
        let gone = Arc::new(Mutex::new(gone));
        let look = move || {
            begin.send(()).unwrap();
            // This test says so meanwhile, or never.
            end.send(gone.lock().unwrap().recv_timeout(PATIENCE)).unwrap();
            Memory { bytes: 7, mappings: 1 }
        };
        let last = Arc::new(AtomicU64::new(0));
        let watching = tokio::spawn(watch(Looks::by(look), 100, Arc::clone(&link), Arc::clone(&last)));
        begun.recv().await.unwrap();
        go.send(()).unwrap();
        assert_eq!(ended.recv().await, Some(Ok(())));
        // When it looks again the first one is told.
        go.send(()).unwrap();
        assert_eq!(ended.recv().await, Some(Ok(())));
        assert_eq!(last.load(Ordering::Relaxed), 7);
        watching.abort();
        starting.abort();
    }

    #[tokio::test]
    async fn looks_take_a_tenth_of_the_time_at_most() {
        const LONG: Duration = Duration::from_millis(20);
        let (_say, nothing) = mpsc::channel::<()>();
        let nothing = Arc::new(Mutex::new(nothing));
        let mut looks = Looks::by(move || {
            let _ = nothing.lock().unwrap().recv_timeout(LONG);
            Memory::default()
        });
        assert_eq!(looks.pause(), Duration::ZERO);
        looks.next().await;
        assert!(looks.pause() >= 10 * LONG, "{:?}", looks.pause());
    }
}
