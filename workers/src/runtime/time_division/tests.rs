use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use tokio::sync::Notify;

use super::*;

/// An engine that releases the device when it is let.
#[derive(Default)]
struct Engine {
    lets_go: Notify,
    came_back: AtomicU32,
    refuses: bool,
}

#[async_trait]
impl Tenant for Arc<Engine> {
    async fn leave(&self) -> Result<(), String> {
        if self.refuses {
            return Err("no room".to_owned());
        }
        self.lets_go.notified().await;
        Ok(())
    }

    fn come_back(&self) {
        self.came_back.fetch_add(1, SeqCst);
    }
}

fn shared(engine: Engine) -> (TimeDivision, Arc<Engine>) {
    let (device, engine) = (TimeDivision::default(), Arc::new(engine));
    device.set_engine(Arc::new(engine.clone()));
    (device, engine)
}

#[tokio::test(start_paused = true)]
async fn a_step_begins_when_every_turn_has_ended_and_generating_continues_after_it() {
    let (device, engine) = shared(Engine::default());
    let turn = device.begin_turn();
    let step = tokio::spawn({
        let device = device.clone();
        async move { device.begin_step().await }
    });
    turn.hand_back().cancelled().await;
    assert_eq!(device.now(), DeviceUse::Shrinks);
    assert!(!*device.may_generate().borrow(), "no turn is pulled for a device that shrinks");
    let late = device.begin_turn();
    assert!(late.hand_back().is_cancelled(), "a turn that comes late ends at once");
    engine.lets_go.notify_one();
    drop(late);
    tokio::task::yield_now().await;
    assert!(!step.is_finished(), "a turn is still in flight");
    drop(turn);
    let step = step.await.unwrap().unwrap();
    assert_eq!((device.now(), engine.came_back.load(SeqCst)), (DeviceUse::Trains, 0));
    drop(step);
    assert_eq!((device.now(), engine.came_back.load(SeqCst)), (DeviceUse::Generates, 1));
    assert!(*device.may_generate().borrow());
    assert!(!device.begin_turn().hand_back().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn turns_that_do_not_end_are_abandoned() {
    let device = TimeDivision::default();
    let turn = device.begin_turn();
    let hung = tokio::spawn(async move {
        turn.abandon().cancelled().await;
        drop(turn);
    });
    drop(device.begin_step().await.unwrap());
    hung.await.unwrap();
    assert_eq!(device.now(), DeviceUse::Generates);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_hangs_stops_both_until_it_answers() {
    let (device, engine) = shared(Engine::default());
    assert_eq!(device.begin_step().await.unwrap_err(), NotReleased::Stuck(RELEASE));
    assert!(!device.is_well() && !*device.may_train().borrow() && !*device.may_generate().borrow());
    engine.lets_go.notify_one();
    let mut may_train = device.may_train();
    may_train.wait_for(|may| *may).await.unwrap();
    assert_eq!((device.now(), engine.came_back.load(SeqCst)), (DeviceUse::Generates, 1));
    assert!(*device.may_generate().borrow());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_and_a_step_given_up_let_generating_continue() {
    let (device, engine) = shared(Engine { refuses: true, ..Engine::default() });
    assert_eq!(device.begin_step().await.unwrap_err(), NotReleased::Refused("no room".into()));
    assert_eq!((device.now(), engine.came_back.load(SeqCst)), (DeviceUse::Generates, 1));

    let (device, engine) = shared(Engine::default());
    let turn = device.begin_turn();
    let given_up = tokio::time::timeout(Duration::from_millis(10), device.begin_step()).await;
    assert!(given_up.is_err());
    assert_eq!((device.now(), engine.came_back.load(SeqCst)), (DeviceUse::Generates, 1));
    assert!(!device.begin_turn().hand_back().is_cancelled());
    drop(turn);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_leaves_ends_all_turns() {
    let device = TimeDivision::default();
    let turn = device.begin_turn();
    device.leave();
    assert!(turn.hand_back().is_cancelled() && device.begin_turn().hand_back().is_cancelled());
    drop(turn);
    drop(device.begin_step().await.unwrap());
    assert!(device.begin_turn().hand_back().is_cancelled(), "also after a step");
}
