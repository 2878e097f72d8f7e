use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use millrace_aws::{GroupState, Instance};
use tokio::time::Instant;

use super::aws::{Step, step};
use super::*;

fn group(desired: u32, active: &[&str]) -> GroupState {
    let instances = active.iter().map(|id| Instance { id: (*id).to_owned(), is_active: true });
    GroupState { min: 0, max: 4, desired, instances: instances.collect() }
}

#[test]
fn a_group_grows_by_number_and_shrinks_by_name() {
    let chosen = ["i-2".to_owned(), "i-9".to_owned(), "i-1".to_owned()];
    assert_eq!(step(&group(2, &["i-1", "i-2"]), 3, &chosen), Step::Set(3));
    assert_eq!(step(&group(2, &["i-1", "i-2"]), 2, &chosen), Step::Nothing);
    assert_eq!(step(&group(3, &["i-1", "i-2", "i-3"]), 2, &chosen), Step::End(vec!["i-2".into()]));
    assert_eq!(
        step(&group(3, &["i-1", "i-2", "i-3"]), 0, &chosen),
        Step::End(vec!["i-2".into(), "i-1".into()])
    );
    assert_eq!(step(&group(3, &[]), 2, &chosen), Step::Set(2), "no instance serves yet");
}

#[test]
fn an_order_beyond_the_group_goes_as_far_as_its_bounds() {
    assert_eq!(step(&group(2, &[]), 99, &[]), Step::Set(4));
    assert_eq!(step(&group(4, &[]), 99, &[]), Step::Nothing);
}

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

#[tokio::test(start_paused = true)]
async fn a_target_that_fails_is_asked_again_with_the_newest_order() {
    let target = Arc::new(Failing { failures: AtomicU32::new(3), asked: Mutex::default() });
    let (orders, order) = watch::channel(Order { desired: Some(1), ..Order::default() });
    let converging = tokio::spawn(converge("a".into(), target.clone(), order));
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
    let converging = tokio::spawn(converge("a".into(), target.clone(), order));
    tokio::time::sleep(3 * ROUND).await;
    assert!(target.0.load(Ordering::SeqCst) >= 2);
    converging.abort();
}
