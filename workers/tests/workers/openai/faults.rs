//! A server that is killed, hangs or has no room.

use std::time::{Duration, Instant};

use millrace_schemas::generate::Sampling;
use millrace_workers::Verdict;
use millrace_workers::policy::openai::Dialect::{Sglang, Vllm};
use millrace_workers::policy::openai::Seeds;
use serde_json::json;

use crate::openai::support::{Bench, Python, check_against_oracle, done, task, until, versions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_costs_its_turns_in_flight() {
    for dialect in [Vllm, Sglang] {
        let python = Python::start();
        let bench = Bench::new(&python, dialect);
        bench.begin().await;
        python.set(&json!({"slow": 0.05}));
        let tasks: Vec<_> = (0..4).map(|index| task(index, 1, 100, Sampling::at(1.0))).collect();
        let running: Vec<_> = tasks.iter().map(|task| bench.spawn(task.clone())).collect();
        until("all are being sampled", || python.active() >= 4).await;
        // New requests wait for it, and are served when it is back: with the base model, so that it
        // must load again.
        let python = python.replace();
        let mut given_back = 0;
        for (task, running) in tasks.iter().zip(running) {
            let turn = match running.await.unwrap() {
                Verdict::RetryAfter(_, reason) => {
                    assert!(reason.contains("away"), "{reason}");
                    given_back += 1;
                    bench.insist(task.clone()).await.0
                }
                verdict => done(verdict),
            };
            assert_eq!(versions(&turn), [1]);
            check_against_oracle(&python, task, &turn);
        }
        assert!(given_back > 0, "nobody noticed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_server_times_out() {
    for dialect in [Vllm, Sglang] {
        let python = Python::start();
        let bench = Bench::with(&python, dialect, |settings| settings.silence = Duration::from_secs(4));
        bench.begin().await;
        python.set(&json!({"slow": 0.02}));
        let running = bench.spawn(task(0, 1, 100, Sampling::at(1.0)));
        until("it is being sampled", || python.active() > 0).await;
        python.signal("STOP");
        match running.await.unwrap() {
            Verdict::RetryAfter(_, reason) => assert!(reason.contains("away"), "{reason}"),
            other => panic!("{other:?}"),
        }
        let waits_for = bench.generate.waits_for().expect("everything waits for the server");
        assert!(waits_for.contains("server"), "{waits_for}");
        python.signal("CONT");
        python.set(&json!({}));
        let (turn, _) = bench.insist(task(0, 1, 20, Sampling::at(1.0))).await;
        check_against_oracle(&python, &task(0, 1, 20, Sampling::at(1.0)), &turn);
        assert_eq!(bench.generate.waits_for(), None, "it is back");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_is_retried_when_its_reply_allows() {
    let python = Python::start();
    let bench = Bench::new(&python, Vllm);
    bench.begin().await;
    for status in [429, 503] {
        python.set(&json!({"busy": [status, 2]}));
        let started = Instant::now();
        let (turn, _) = bench.insist(task(0, 1, 5, Sampling::at(1.0))).await;
        assert!(started.elapsed() >= Duration::from_secs(1), "it was not waited for");
        check_against_oracle(&python, &task(0, 1, 5, Sampling::at(1.0)), &turn);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_of_seeds_is_sent_none() {
    let python = Python::start();
    python.set(&json!({"version": "0.32.0+cpu"}));
    let bench = Bench::new(&python, Vllm);
    bench.begin().await;
    let turn = done(bench.execute(task(0, 1, 20, Sampling::at(1.0))).await);
    check_against_oracle(&python, &task(0, 1, 20, Sampling::at(1.0)), &turn);
    // With seeds forced on, it dies as before.
    let bench = Bench::with(&python, Vllm, |settings| settings.seeds = Seeds::On);
    bench.announce(1, true).await;
    match bench.execute(task(1, 1, 20, Sampling::at(1.0))).await {
        Verdict::RetryAfter(_, reason) => assert!(reason.contains("away"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

/// A proxy that says so, and a server whose engine has died behind it. A refused request of a server that is well stays one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_only_errors_is_waited_for_and_loads_its_weights_again() {
    for (dialect, status) in [(Vllm, 502), (Sglang, 500)] {
        let python = Python::start();
        let bench = Bench::new(&python, dialect);
        bench.begin().await;
        let loads = python.journal()["loads"].as_u64();
        python.set(&json!({"dead": status}));
        match bench.execute(task(0, 1, 5, Sampling::at(1.0))).await {
            Verdict::RetryAfter(_, reason) => assert!(reason.contains("away"), "{reason}"),
            other => panic!("{other:?}"),
        }
        let waits_for = bench.generate.waits_for().expect("everything waits for the server");
        assert!(waits_for.contains("lost"), "{waits_for}");
        python.set(&json!({}));
        let (turn, _) = bench.insist(task(0, 1, 5, Sampling::at(1.0))).await;
        check_against_oracle(&python, &task(0, 1, 5, Sampling::at(1.0)), &turn);
        assert!(python.journal()["loads"].as_u64() > loads, "its weights are loaded again");
    }
}

/// Long turns would be refused one by one, and the run would train on the short ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_context_is_shorter_than_the_runs_is_refused_before_the_first_turn() {
    for (dialect, flag) in [(Vllm, "--max-model-len"), (Sglang, "--context-length")] {
        let python = Python::start();
        python.set(&json!({"longest": 8}));
        let bench = Bench::new(&python, dialect);
        bench.announce(1, true).await;
        match bench.execute(task(0, 1, 1, Sampling::at(1.0))).await {
            Verdict::RetryAfter(_, reason) => assert!(reason.contains(flag), "{reason}"),
            other => panic!("{other:?}"),
        }
        python.set(&json!({}));
        bench.insist(task(0, 1, 1, Sampling::at(1.0))).await;
    }
}
