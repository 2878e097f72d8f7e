use async_trait::async_trait;
use millrace_queue::clock::SystemClock;
use millrace_queue::{MemoryQueue, Objects};
use millrace_schemas::Event;
use millrace_schemas::scale::PoolScale;

use super::*;
use crate::targets::TargetError;

const FILE: &str = r#"
    [[pool]]
    name = "gen"
    stages = ["generate"]
    min = 2
    max = 2
    target = { kind = "aws", group = "g" }
"#;

/// Replaces one machine in its first round.
#[derive(Default)]
struct Replacing(std::sync::Mutex<Option<Vec<WorkerId>>>);

#[async_trait]
impl Target for Replacing {
    async fn follow(&self, _desired: u32, _order: &Order) -> Result<(), TargetError> {
        self.0.lock().unwrap().get_or_insert_with(|| vec!["i-2".parse().unwrap()]);
        Ok(())
    }

    fn replaced(&self) -> Vec<WorkerId> {
        self.0.lock().unwrap().as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// A leader whose last decision stands: two workers, by the pool's minimum.
fn leader(broker: Broker) -> Autoscaler {
    let at = Autoscaler {
        broker,
        shared: SharedState::new(millrace_coordinator::fold::state::State::default()),
        term: Term::default(),
        clock: UnixClock::new(|| 1_700_000_000_000),
        file: Arc::new(ScalingFile::parse(FILE).unwrap()),
        board: Board::default(),
    };
    at.term.extend(Instant::now() + Duration::from_secs(3_600), 1);
    let limit = Some(ScaleLimit::Min);
    let last = Scaled {
        pool: "gen".into(),
        before: 2,
        desired: 2,
        leave: Vec::new(),
        unix_ms: 1,
        dry_run: false,
        reason: ScaleReason { cause: ScaleCause::NoRun, limit, wanted: 0.0, budget: None },
    };
    at.shared.lock().scaling.insert("gen".into(), PoolScale { last, earlier: Vec::new() });
    at
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_was_replaced_is_told_in_the_log_without_a_new_number() {
    let broker = Broker::new(Arc::new(MemoryQueue::new(Arc::new(SystemClock::new()))), Objects::memory());
    broker.queue().ensure_topology().await.unwrap();
    let targets = BTreeMap::from([("gen".to_owned(), Arc::new(Replacing::default()) as Arc<dyn Target>)]);
    let stop = CancellationToken::new();
    let running = tokio::spawn(run(leader(broker.clone()), targets, stop.clone()));
    let mut log = broker.read_log(1).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(600), log.next(1)).await;
    let told = told.expect("an event is in the log").unwrap();
    let Ok(Event::Scaled(scaled)) = &told[0].event else { panic!("{told:?}") };
    assert_eq!((scaled.before, scaled.desired), (2, 2));
    assert_eq!(scaled.leave, ["i-2".parse().unwrap()]);
    stop.cancel();
    running.await.unwrap();
}
