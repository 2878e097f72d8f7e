//! Two runs and one server, which has one set of weights.

use std::time::Duration;

use millrace_schemas::generate::Sampling;
use millrace_schemas::{RunId, Task};
use millrace_workers::Verdict;
use millrace_workers::policy::openai::Dialect::Vllm;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::openai::support::{Bench, Python, check_against_oracle, done, task, until, versions};

fn other() -> RunId {
    "pond".parse().unwrap()
}

fn of_other(index: u32) -> Task {
    Task { run: other(), ..task(index, 2, 5, Sampling::at(1.0)) }
}

/// The task returns to the queue, and is no failure: it can be queued again when its deliveries are used up.
async fn is_returned(bench: &Bench, task: Task) -> String {
    let cancel = CancellationToken::new();
    assert!(bench.generate.passes_on(&task), "another worker's server may be free");
    match bench.generate.execute(task, cancel.clone()).await {
        Verdict::RetryAfter(after, reason) => {
            assert!(after > Duration::ZERO && cancel.is_cancelled(), "{after:?} {reason}");
            reason
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_changes_to_another_run_when_the_first_one_idles() {
    let python = Python::start();
    let bench = Bench::with(&python, Vllm, |settings| settings.idle = Duration::ZERO);
    bench.begin().await;
    bench.announce_of(&other(), 2).await;
    python.set(&json!({"slow": 0.05}));
    let long = task(0, 1, 60, Sampling::at(1.0));
    let running = bench.spawn(long.clone());
    until("it is being sampled", || python.active() > 0).await;
    let reason = is_returned(&bench, of_other(0)).await;
    assert!(reason.contains("run=lake") && reason.contains("run=pond"), "{reason}");
    python.set(&json!({}));
    check_against_oracle(&python, &long, &done(running.await.unwrap()));

    assert!(!bench.generate.passes_on(&of_other(0)));
    let (turn, said) = bench.insist(of_other(0)).await;
    assert_eq!((versions(&turn), said), (vec![2], vec![]));
    check_against_oracle(&python, &of_other(0), &turn);
    // And back again, with the weights of the first.
    let (turn, _) = bench.insist(task(1, 1, 5, Sampling::at(1.0))).await;
    assert_eq!(versions(&turn), [1]);
    check_against_oracle(&python, &task(1, 1, 5, Sampling::at(1.0)), &turn);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_free_when_its_run_ends() {
    let python = Python::start();
    let bench = Bench::with(&python, Vllm, |settings| settings.idle = Duration::from_secs(3_600));
    bench.begin().await;
    bench.announce_of(&other(), 2).await;
    // The first run only pauses.
    is_returned(&bench, of_other(0)).await;
    bench.end_run().await;
    until("the run has left the server", || !bench.generate.passes_on(&of_other(0))).await;
    let (turn, _) = bench.insist(of_other(0)).await;
    assert_eq!(versions(&turn), [2]);
    check_against_oracle(&python, &of_other(0), &turn);
    // A worker serves many runs in its life, and each version is as large as the model.
    until("the run that ended has left no folder", || bench.laid_out_runs() == ["pond"]).await;
}
