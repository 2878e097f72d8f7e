//! The binary where what ends is restarted: one that was asked to leave stands by until it is ended or
//! needed again.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use millrace_queue::port::Listener;
use millrace_queue::testing::TestServer;
use millrace_queue::{Broker, JetStreamOptions, Objects};
use millrace_schemas::drain::DrainRequest;
use millrace_schemas::notice::WorkerNotice;
use millrace_schemas::{Event, subjects};

use super::process::{Process, get, log, pools, reset};

/// A server, and what its workers tell.
struct Place {
    server: TestServer,
    broker: Broker,
    notices: Box<dyn Listener>,
}

impl Place {
    async fn start() -> Self {
        let server = TestServer::start().await;
        let broker = Broker::new(server.connect(JetStreamOptions::default()).await, Objects::memory());
        pools(&broker).await;
        let notices = broker.queue().listen(subjects::NOTICE_WORKERS).await.unwrap();
        Self { server, broker, notices }
    }

    fn worker(&self, id: &str, linger_s: &str) -> Process {
        Process::start(&self.server, &["--stages", "env_step", "--id", id, "--linger", linger_s])
    }

    /// Sends `request` to the worker `one` with each of its notices, until one is as wanted.
    async fn until(
        &mut self,
        request: Option<DrainRequest>,
        wanted: impl Fn(&WorkerNotice) -> bool,
    ) -> WorkerNotice {
        let heard = async {
            loop {
                let message = self.notices.next().await.unwrap();
                let notice: WorkerNotice = serde_json::from_slice(&message.payload).unwrap();
                if notice.worker != "one" {
                    continue;
                }
                if wanted(&notice) {
                    return notice;
                }
                if let Some(request) = request {
                    self.broker.notice(subjects::drain(&"one".parse().unwrap()), &request).await;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), heard).await.unwrap()
    }

    async fn who_did(&self, count: usize) -> String {
        match log(&self.broker, count).await.pop() {
            Some(Event::Outcome(outcome)) => outcome.worker.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

const LEAVE: Option<DrainRequest> = Some(DrainRequest { within_ms: None, recalled: false });
const RECALL: Option<DrainRequest> = Some(DrainRequest { within_ms: None, recalled: true });

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_asked_to_leave_may_stay_without_work_until_it_is_ended() {
    let mut place = Place::start().await;
    let mut worker = place.worker("one", "3600");
    let http = worker.http();
    place.until(None, |notice| !notice.leaving).await;
    assert!(get(&http, "/healthz").starts_with("HTTP/1.1 200"));
    place.until(LEAVE, |notice| notice.stands_by && notice.leaving).await;
    let health = get(&http, "/healthz");
    assert!(health.starts_with("HTTP/1.1 503") && health.contains(r#""connected":true"#), "{health}");
    // What comes now is another one's.
    place.broker.put_tasks(&[reset(1)]).await.pop().unwrap().unwrap();
    let mut second = place.worker("two", "3600");
    second.http();
    assert_eq!(place.who_did(1).await, "two");
    assert_eq!(worker.0.try_wait().unwrap(), None);
    assert_eq!((worker.terminate(), second.terminate()), (Some(0), Some(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stands_by_serves_again_when_it_is_recalled_or_has_waited() {
    let mut place = Place::start().await;
    for (round, linger_s, recall) in [(1, "3600", RECALL), (2, "0.6", None)] {
        let mut worker = place.worker("one", linger_s);
        worker.http();
        // Who serves heeds no recall.
        let before = place.until(RECALL, |notice| !notice.leaving && notice.uptime_ms > 1_000).await;
        let stood = place.until(LEAVE, |notice| notice.stands_by).await;
        assert!(stood.uptime_ms > before.uptime_ms, "the same process tells it");
        place.until(recall, |notice| !notice.leaving).await;
        place.broker.put_tasks(&[reset(round)]).await.pop().unwrap().unwrap();
        assert_eq!(place.who_did(round as usize).await, "one");
        // Whoever watches the process sees that it never ended.
        assert_eq!(worker.0.try_wait().unwrap(), None);
        assert_eq!(worker.terminate(), Some(0));
    }
}

/// A thread, and each program that it starts, holds back what its maker held back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_thread_of_a_worker_that_serves_again_holds_a_signal_back() {
    let mut place = Place::start().await;
    let mut worker = place.worker("one", "3600");
    worker.http();
    place.until(None, |notice| !notice.leaving).await;
    place.until(LEAVE, |notice| notice.stands_by).await;
    place.until(RECALL, |notice| !notice.leaving).await;
    let threads = std::fs::read_dir(format!("/proc/{}/task", worker.0.id())).unwrap();
    let mut looked_at = 0;
    for thread in threads {
        // A thread may end meanwhile.
        let Ok(status) = std::fs::read_to_string(thread.unwrap().path().join("status")) else { continue };
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        // A bit for each from signal 1: SIGINT is 2, SIGTERM is 15.
        let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
        assert_eq!(blocked & (1 << 1 | 1 << 14), 0, "{status}");
        looked_at += 1;
    }
    assert!(looked_at > 1, "a runtime has threads");
    assert_eq!(worker.terminate(), Some(0));
}

/// Kubernetes may end a pod at the moment at which the coordinator recalls its worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_that_comes_while_a_worker_starts_again_is_heeded() {
    let mut place = Place::start().await;
    for _ in 0..4 {
        let mut worker = place.worker("one", "3600");
        worker.http();
        place.until(None, |notice| !notice.leaving).await;
        place.until(LEAVE, |notice| notice.stands_by).await;
        // It tells that it no longer stands by, and starts again.
        place.until(RECALL, |notice| !notice.stands_by).await;
        assert_eq!(worker.terminate(), Some(0));
    }
}
