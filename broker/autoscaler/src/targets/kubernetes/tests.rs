use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::patch;
use millrace_queue::clock::SystemClock;
use millrace_queue::port::Listener;
use millrace_queue::{MemoryQueue, Objects};
use millrace_schemas::drain::DrainRequest;
use millrace_schemas::subjects::DRAIN_WORKERS;
use tokio::net::TcpListener;

use super::*;

/// Short, so that a test takes as long.
const SHORT: Duration = Duration::from_millis(400);

/// The API server as far as a scale subresource goes.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<Asked>>);

#[derive(Default)]
struct Asked {
    /// The number of each request, its content type and its token, and when it came.
    requests: Vec<(u64, String, String, Instant)>,
    refuses: bool,
}

impl Api {
    fn numbers(&self) -> Vec<u64> {
        self.0.lock().unwrap().requests.iter().map(|(number, ..)| *number).collect()
    }
}

async fn scale(State(api): State<Api>, headers: HeaderMap, body: String) -> (StatusCode, String) {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let mut asked = api.0.lock().unwrap();
    if asked.refuses {
        return (StatusCode::FORBIDDEN, "deployments.apps \"rl-gen\" is forbidden".to_owned());
    }
    let number = body["spec"]["replicas"].as_u64().unwrap();
    asked.requests.push((number, header("content-type"), header("authorization"), Instant::now()));
    (StatusCode::OK, "{}".to_owned())
}

struct Cluster {
    api: Api,
    target: Kubernetes,
    drains: Box<dyn Listener>,
    account: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Self {
        millrace_objects::choose_ring();
        let broker = Broker::new(Arc::new(MemoryQueue::new(Arc::new(SystemClock::new()))), Objects::memory());
        let drains = broker.queue().listen(DRAIN_WORKERS).await.unwrap();
        let account = tempfile::tempdir().unwrap();
        let authority = rcgen::generate_simple_self_signed(vec!["kubernetes".to_owned()]).unwrap();
        std::fs::write(account.path().join("ca.crt"), authority.cert.pem()).unwrap();
        std::fs::write(account.path().join("token"), "first\n").unwrap();
        let (api, listener) = (Api::default(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let server = format!("http://{}", listener.local_addr().unwrap());
        let path = "/apis/apps/v1/namespaces/rl/deployments/rl-gen/scale";
        let router = axum::Router::new().route(path, patch(scale)).with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let workload = "namespaces/rl/deployments/rl-gen";
        let target = Kubernetes::at(broker, &server, account.path(), workload, SHORT).unwrap();
        Self { api, target, drains, account }
    }

    async fn follow(&self, desired: u32, leave: &[&str]) -> Result<(), TargetError> {
        let leave = leave.iter().map(|worker| worker.parse().unwrap()).collect();
        let order = Order { desired: Some(desired), leave, ..Order::default() };
        self.target.follow(desired, &order).await
    }

    /// Rounds with the same order until the number is set. Returns how long that took.
    async fn until_set(&self, desired: u32, leave: &[&str]) -> Duration {
        let (since, before) = (Instant::now(), self.api.numbers().len());
        while self.api.numbers().len() == before {
            self.follow(desired, leave).await.unwrap();
            tokio::task::yield_now().await;
        }
        since.elapsed()
    }
}

#[tokio::test]
async fn a_pool_grows_at_once_with_the_token_of_the_moment() {
    let cluster = Cluster::start().await;
    cluster.follow(3, &[]).await.unwrap();
    std::fs::write(cluster.account.path().join("token"), "second").unwrap();
    cluster.follow(5, &[]).await.unwrap();
    let asked = cluster.api.0.lock().unwrap();
    let seen: Vec<_> =
        asked.requests.iter().map(|(number, kind, token, _)| (*number, &**kind, &**token)).collect();
    let kind = "application/merge-patch+json";
    assert_eq!(seen, [(3, kind, "Bearer first"), (5, kind, "Bearer second")]);
}

#[tokio::test]
async fn the_chosen_workers_are_asked_before_the_number_falls() {
    let mut cluster = Cluster::start().await;
    cluster.follow(4, &[]).await.unwrap();
    cluster.follow(2, &["gen-b", "gen-d"]).await.unwrap();
    assert_eq!(cluster.api.numbers(), [4], "their pods are still ready");
    for worker in ["gen-b", "gen-d"] {
        let heard = cluster.drains.next().await.unwrap();
        assert_eq!(heard.subject, format!("mr.ctl.drain.{worker}"));
    }
    // They report that they leave, so nobody is left to be asked; probes have not seen it yet.
    cluster.follow(2, &[]).await.unwrap();
    assert_eq!(cluster.api.numbers(), [4]);
    cluster.until_set(2, &[]).await;
    assert_eq!(cluster.api.numbers(), [4, 2]);
    let times: Vec<Instant> = cluster.api.0.lock().unwrap().requests.iter().map(|asked| asked.3).collect();
    assert!(times[1] - times[0] >= SHORT, "{times:?}");
}

#[tokio::test]
async fn a_worker_that_does_not_leave_holds_the_pool_up_once() {
    let cluster = Cluster::start().await;
    cluster.follow(4, &[]).await.unwrap();
    assert!(cluster.until_set(3, &["hung"]).await >= SHORT);
    assert_eq!(cluster.api.numbers(), [4, 3]);
    // Work comes: the pool grows at once, also while workers are asked to leave.
    cluster.follow(1, &["hung", "other"]).await.unwrap();
    cluster.follow(6, &[]).await.unwrap();
    assert_eq!(cluster.api.numbers(), [4, 3, 6]);
}

#[tokio::test]
async fn a_pool_of_which_all_go_waits_for_nobody() {
    let mut cluster = Cluster::start().await;
    cluster.follow(2, &[]).await.unwrap();
    cluster.follow(0, &["gen-a", "gen-b"]).await.unwrap();
    assert_eq!(cluster.api.numbers(), [2, 0]);
    assert_eq!(cluster.drains.next().await.unwrap().subject, "mr.ctl.drain.gen-a");
}

#[tokio::test(start_paused = true)]
async fn the_number_waits_for_the_worker_that_was_asked_last() {
    let target = Cluster::start().await.target;
    target.scaled.lock().unwrap().replicas = Some(5);
    let may_set = |desired: u32, leave: &[&str]| {
        let leave = leave.iter().map(|worker| worker.parse().unwrap()).collect();
        target.may_set(desired, &Order { desired: Some(desired), leave, ..Order::default() })
    };
    assert!(!may_set(4, &["gen-a"]));
    tokio::time::advance(SHORT / 2).await;
    assert!(!may_set(3, &["gen-b"]), "gen-a leaves, and gen-b is asked");
    tokio::time::advance(SHORT * 3 / 4).await;
    assert!(!may_set(3, &["gen-b"]), "the pod of gen-b is still ready");
    tokio::time::advance(SHORT / 4).await;
    assert!(may_set(3, &["gen-b"]));
    // Another leader changed the number meanwhile.
    target.forget();
    assert!(!may_set(3, &["gen-b"]));
}

#[tokio::test]
async fn who_stands_by_is_recalled_by_name() {
    let mut cluster = Cluster::start().await;
    let order = Order { desired: Some(2), recall: vec!["gen-c".parse().unwrap()], ..Order::default() };
    cluster.target.follow(2, &order).await.unwrap();
    let heard = cluster.drains.next().await.unwrap();
    assert_eq!(heard.subject, "mr.ctl.drain.gen-c");
    let request: DrainRequest = serde_json::from_slice(&heard.payload).unwrap();
    assert!(request.recalled);
}

#[tokio::test]
async fn a_refusal_is_told_with_the_servers_words_and_asked_again() {
    let cluster = Cluster::start().await;
    cluster.api.0.lock().unwrap().refuses = true;
    let error = cluster.follow(3, &[]).await.unwrap_err().to_string();
    assert!(error.contains("403") && error.contains("is forbidden"), "{error}");
    cluster.api.0.lock().unwrap().refuses = false;
    cluster.follow(3, &[]).await.unwrap();
    assert_eq!(cluster.api.numbers(), [3]);
}
