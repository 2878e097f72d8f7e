use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::time::Instant;

use super::*;

/// Fails a few times, then notes what it was told.
struct Failing {
    failures: AtomicU32,
    asked: Mutex<Vec<(u32, Instant)>>,
}

#[async_trait]
impl Target for Failing {
    async fn follow(&self, desired: u32, _order: &Order) -> Result<(), TargetError> {
        self.asked.lock().unwrap().push((desired, Instant::now()));
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
        {
            return Err(TargetError("throttled".into()));
        }
        Ok(())
    }
}

/// A term that holds for so long.
fn term(holds: Duration) -> Term {
    let term = Term::default();
    term.extend(Instant::now() + holds, 1);
    term
}

const LONG: Duration = Duration::from_secs(3_600);

#[tokio::test(start_paused = true)]
async fn a_target_that_fails_is_asked_again_with_the_newest_order() {
    let target = Arc::new(Failing { failures: AtomicU32::new(3), asked: Mutex::default() });
    let (orders, order) = watch::channel(Order { desired: Some(1), ..Order::default() });
    let converging = tokio::spawn(converge("a".into(), target.clone(), term(LONG), order));
    tokio::time::sleep(Duration::from_secs(10)).await;
    orders.send_replace(Order { desired: Some(2), ..Order::default() });
    tokio::time::sleep(Duration::from_secs(60)).await;
    let asked = target.asked.lock().unwrap().clone();
    assert_eq!(asked.last().unwrap().0, 2);
    assert!(asked[3].1 - asked[2].1 > asked[1].1 - asked[0].1, "it backs off");
    assert_eq!(target.failures.load(Ordering::SeqCst), 0);
    drop(orders);
    converging.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_target_that_hangs_is_given_up_and_asked_again() {
    struct Hanging(AtomicU32);
    #[async_trait]
    impl Target for Hanging {
        async fn follow(&self, _desired: u32, _order: &Order) -> Result<(), TargetError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::future::pending().await
        }
    }
    let target = Arc::new(Hanging(AtomicU32::new(0)));
    let (_orders, order) = watch::channel(Order { desired: Some(1), ..Order::default() });
    let converging = tokio::spawn(converge("a".into(), target.clone(), term(LONG), order));
    tokio::time::sleep(3 * ROUND).await;
    assert!(target.0.load(Ordering::SeqCst) >= 2);
    converging.abort();
}

#[tokio::test(start_paused = true)]
async fn an_order_is_followed_only_while_the_term_holds() {
    let target = Arc::new(Failing { failures: AtomicU32::new(0), asked: Mutex::default() });
    let (term, start) = (term(Duration::from_secs(10)), Instant::now());
    let (_orders, order) = watch::channel(Order { desired: Some(1), ..Order::default() });
    let converging = tokio::spawn(converge("a".into(), target.clone(), term.clone(), order));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let asked = || target.asked.lock().unwrap().clone();
    assert!(!asked().is_empty());
    assert!(asked().iter().all(|(_, at)| *at - start < Duration::from_secs(10)), "{:?}", asked());
    let before = asked().len();
    term.extend(Instant::now() + LONG, 2);
    tokio::time::sleep(2 * AGAIN).await;
    assert!(asked().len() > before, "it leads again");
    converging.abort();
}
