use async_trait::async_trait;
use millrace_queue::clock::SystemClock;
use millrace_queue::{MemoryQueue, Objects};
use millrace_schemas::drain::DrainRequest;
use millrace_schemas::notice::StageCounters;
use millrace_schemas::scale::PoolScale;
use millrace_schemas::{Event, subjects};

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

async fn broker() -> Broker {
    let broker = Broker::new(Arc::new(MemoryQueue::new(Arc::new(SystemClock::new()))), Objects::memory());
    broker.queue().ensure_topology().await.unwrap();
    broker
}

fn targets(target: impl Target) -> BTreeMap<String, Arc<dyn Target>> {
    BTreeMap::from([("gen".to_owned(), Arc::new(target) as Arc<dyn Target>)])
}

/// The first decision that is appended to the log.
async fn decided(broker: &Broker) -> Scaled {
    let mut log = broker.read_log(1).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(600), log.next(1)).await;
    let told = told.expect("an event is in the log").unwrap().remove(0);
    let Ok(Event::Scaled(scaled)) = told.event else { panic!("{told:?}") };
    *scaled
}

async fn tell(broker: &Broker, worker: &str, stands_by: bool) {
    let notice = WorkerNotice {
        worker: worker.into(),
        leaving: stands_by,
        stands_by,
        stages: BTreeMap::from([(Stage::Generate, StageCounters::default())]),
        ..WorkerNotice::default()
    };
    broker.notice(subjects::worker_notice(worker), &notice).await;
}

/// A leader whose last decision stands: two workers, by the pool's minimum.
fn leader(broker: Broker, file: &str) -> Autoscaler {
    let at = Autoscaler {
        broker,
        shared: SharedState::new(millrace_coordinator::fold::state::State::default()),
        term: Term::default(),
        clock: UnixClock::new(|| 1_700_000_000_000),
        file: Arc::new(ScalingFile::parse(file).unwrap()),
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
    let broker = broker().await;
    let targets = targets(Replacing::default());
    let stop = CancellationToken::new();
    let running = tokio::spawn(run(leader(broker.clone(), FILE), targets, stop.clone()));
    let scaled = decided(&broker).await;
    assert_eq!((scaled.before, scaled.desired), (2, 2));
    assert_eq!(scaled.leave, ["i-2".parse().unwrap()]);
    stop.cancel();
    running.await.unwrap();
}

/// Kubernetes ended workers that the coordinator had not chosen, and kept one that it had asked to leave.
#[tokio::test(start_paused = true)]
async fn a_worker_that_stands_by_is_recalled_when_its_pool_has_too_few() {
    let broker = broker().await;
    let keda = FILE.replace(r#"kind = "aws", group = "g""#, r#"kind = "keda""#);
    let at = leader(broker.clone(), &keda);
    let targets = crate::targets::of(&at.file, &broker).await.unwrap();
    let mut asked = broker.queue().listen(subjects::DRAIN_WORKERS).await.unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(run(at, targets, stop.clone()));
    // Who is asked within half a minute, while so many workers of the pool's two serve.
    let mut within = async |serving: &[&str]| {
        let mut requests = Vec::new();
        for _ in 0..60 {
            for worker in serving {
                tell(&broker, worker, false).await;
            }
            for worker in ["s-0", "s-1"] {
                tell(&broker, worker, true).await;
            }
            while let Ok(Some(request)) = tokio::time::timeout(Duration::from_millis(250), asked.next()).await
            {
                let recalled = serde_json::from_slice::<DrainRequest>(&request.payload).unwrap().recalled;
                requests.push((request.subject, recalled));
            }
        }
        requests.dedup();
        requests
    };
    assert_eq!(within(&["a", "b"]).await, []);
    assert_eq!(within(&["a"]).await, [("mr.ctl.drain.s-0".to_owned(), true)], "one is missing");
    assert_eq!(within(&["a", "b", "c"]).await.last().map(|(_, recalled)| *recalled), Some(false));
    stop.cancel();
    running.await.unwrap();
}

/// Panics in the loop of the leader once; then it has replaced a machine.
#[derive(Default)]
struct Panicking(std::sync::atomic::AtomicU32);

#[async_trait]
impl Target for Panicking {
    async fn follow(&self, _desired: u32, _order: &Order) -> Result<(), TargetError> {
        Ok(())
    }

    fn replaced(&self) -> Vec<WorkerId> {
        match self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => panic!("a mistake in the autoscaler"),
            1 => vec!["i-2".parse().unwrap()],
            _ => Vec::new(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_the_scaling_for_a_while_and_not_its_caller() {
    let broker = broker().await;
    let targets = targets(Panicking::default());
    let stop = CancellationToken::new();
    let running = tokio::spawn(run(leader(broker.clone(), FILE), targets, stop.clone()));
    assert_eq!(decided(&broker).await.leave, ["i-2".parse().unwrap()]);
    stop.cancel();
    running.await.unwrap();
}

/// The decision's fold takes two seconds here, for nothing folds the log.
#[tokio::test(start_paused = true)]
async fn a_term_that_ends_while_the_log_takes_a_decision_gives_no_order() {
    let broker = broker().await;
    let more = FILE.replace("min = 2", "min = 3").replace("max = 2", "max = 3");
    let at = leader(broker.clone(), &more);
    at.term.end();
    // The second tick of the interval decides.
    at.term.extend(Instant::now() + Duration::from_secs(6), 1);
    let decisions = at.board.follow();
    let targets = targets(Replacing::default());
    let stop = CancellationToken::new();
    let running = tokio::spawn(run(at, targets, stop.clone()));
    assert_eq!(decided(&broker).await.desired, 3);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!decisions.has_changed().unwrap(), "nothing stands after the term");
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_other_worker_is_recalled_while_one_that_was_recalled_starts() {
    let broker = broker().await;
    let keda = FILE.replace(r#"kind = "aws", group = "g""#, r#"kind = "keda""#);
    let at = leader(broker.clone(), &keda);
    let targets = crate::targets::of(&at.file, &broker).await.unwrap();
    let mut asked = broker.queue().listen(subjects::DRAIN_WORKERS).await.unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(run(at, targets, stop.clone()));
    let mut recalled = BTreeSet::new();
    // One of two serves. Who is recalled is silent for longer than a worker's silence and four decisions.
    for _ in 0..100 {
        for (worker, stands_by) in [("a", false), ("s-0", true), ("s-1", true)] {
            if recalled.contains(&format!("mr.ctl.drain.{worker}")) {
                continue;
            }
            tell(&broker, worker, stands_by).await;
        }
        while let Ok(Some(request)) = tokio::time::timeout(Duration::from_millis(250), asked.next()).await {
            recalled.insert(request.subject);
        }
    }
    assert_eq!(recalled, BTreeSet::from(["mr.ctl.drain.s-0".to_owned()]));
    stop.cancel();
    running.await.unwrap();
}
