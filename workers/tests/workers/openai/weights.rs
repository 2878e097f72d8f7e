//! The weights that sampled are proved, and change only while nothing is in flight.

use millrace_schemas::TaskBody;
use millrace_schemas::generate::{Finish, Sampling};
use millrace_workers::Verdict;
use millrace_workers::policy::openai::Dialect::{LlamaCpp, Sglang, Vllm};
use serde_json::json;

use crate::openai::support::{Bench, Python, check_against_oracle, done, task, versions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_proves_its_weights() {
    for (dialect, recorded) in [(Vllm, true), (Vllm, false), (Sglang, true), (Sglang, false)] {
        let mut python = Python::start();
        let bench = Bench::new(&python, dialect);
        for version in 1..=2 {
            // It claims to have loaded the weights, and did not. The trainer's record reveals it.
            // Without a record, a reload that did nothing is found where another version was there
            // before.
            let ask = || task(0, version, 5, Sampling::at(1.0));
            python.set(&json!({"lie": recorded || version > 1}));
            let before = python.journal()["journal"].as_array().unwrap().len();
            bench.announce(version, recorded).await;
            if recorded || version > 1 {
                match bench.execute(ask()).await {
                    Verdict::RetryAfter(_, reason) => assert!(reason.contains("weights"), "{reason}"),
                    other => panic!("{dialect:?} sampled with weights that nobody trained: {other:?}"),
                }
                let after = python.journal()["journal"].as_array().unwrap().len();
                assert_eq!(before, after, "it was asked for tokens");
            }
            // Once it loads them it serves, without a restart of the worker. An older SGLang reports its
            // weights by another path.
            python.set(&json!({"older": version > 1}));
            let (turn, _) = bench.insist(ask()).await;
            assert_eq!(versions(&turn), [version]);
            check_against_oracle(&python, &ask(), &turn);
            assert_eq!(bench.laid_out(), [format!("v{version:06}")]);
        }
        // It is replaced by one that serves the base model, between two turns.
        python = python.replace();
        let ask = || task(2, 2, 5, Sampling::at(1.0));
        let (turn, said) = bench.insist(ask()).await;
        assert!(!said.is_empty(), "nothing was found out");
        assert_eq!(versions(&turn), [2]);
        check_against_oracle(&python, &ask(), &turn);
    }
}

/// All rewards of a step may be equal. The next step needs tokens of its version all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_with_the_weights_of_the_last_one_is_served() {
    for dialect in [Vllm, Sglang, LlamaCpp] {
        let python = Python::start();
        let bench = Bench::new(&python, dialect);
        bench.begin().await;
        bench.announce_unmoved().await;
        let (turn, _) = bench.insist(task(0, 2, 5, Sampling::at(1.0))).await;
        assert_eq!(versions(&turn), [2], "{dialect:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_carry_their_version() {
    for dialect in [Vllm, Sglang] {
        let python = Python::start();
        let bench = Bench::new(&python, dialect);
        bench.begin().await;
        // The weights come while the requests are half done, or else once more with others.
        python.set(&json!({"slow": 0.02}));
        let tasks: Vec<_> = (0..4).map(|index| task(index, 1, 200, Sampling::at(1.0))).collect();
        let running: Vec<_> = tasks.iter().map(|task| bench.spawn(task.clone())).collect();
        crate::openai::support::until("all are being sampled", || {
            let journal = python.journal();
            let begun = journal["journal"].as_array().unwrap().iter();
            begun.filter(|entry| entry["tokens"].as_array().unwrap().len() > 4).count() >= 4
        })
        .await;
        bench.announce(2, true).await;
        for (task, running) in tasks.iter().zip(running) {
            let turn = done(running.await.unwrap());
            assert_eq!(versions(&turn), [1, 2], "{dialect:?}");
            assert!(turn.segments[0].tokens > 4, "{dialect:?} lost what was sampled: {:?}", turn.segments);
            check_against_oracle(&python, task, &turn);
        }
        assert_eq!(python.journal()["violations"], 0);
    }
}

/// A worker that leaves keeps what its server sampled and proved. Another worker continues it, with
/// newer weights and with other draws.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begun_turn_is_handed_back_and_continued() {
    for dialect in [Vllm, Sglang] {
        let python = Python::start();
        let bench = Bench::new(&python, dialect);
        bench.begin().await;
        python.set(&json!({"slow": 0.02}));
        let whole = task(0, 1, 200, Sampling::at(1.0));
        let running = bench.spawn(whole.clone());
        crate::openai::support::until("it is being sampled", || {
            let journal = python.journal();
            let mut begun = journal["journal"].as_array().unwrap().iter();
            begun.any(|entry| entry["tokens"].as_array().unwrap().len() > 4)
        })
        .await;
        assert!(bench.generate.hand_back());
        let part = done(running.await.unwrap());
        let tokens = part.tokens.len();
        assert!(part.finish == Finish::Partial && (5..200).contains(&tokens), "{dialect:?}: {part:?}");
        check_against_oracle(&python, &whole, &part);

        python.set(&json!({}));
        let other = Bench::new(&python, dialect);
        other.announce(2, true).await;
        let mut rest = task(0, 2, tokens as u32 + 20, Sampling::at(1.0));
        let TaskBody::Generate(body) = &mut rest.body else { unreachable!() };
        body.sampled = Some(Box::new(part.clone()));
        let (turn, _) = other.insist(rest).await;
        assert_eq!((turn.tokens.len(), versions(&turn)), (tokens + 20, vec![1, 2]));
        assert_eq!(
            (&turn.tokens[..tokens], &turn.logprobs[..tokens]),
            (&part.tokens[..], &part.logprobs[..])
        );
        check_against_oracle(&python, &whole, &turn);
    }
}

/// New weights, again and again, under requests that never stop coming: none is in flight
/// while the server loads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_sleeps_safely() {
    for dialect in [Vllm, Sglang, LlamaCpp] {
        let python = Python::start();
        let bench = Bench::new(&python, dialect);
        bench.announce(1, true).await;
        done(bench.execute(task(0, 1, 1, Sampling::at(1.0))).await);
        python.set(&json!({"slow": 0.005}));
        let mut running = Vec::new();
        for version in 2..=3 {
            let tasks: Vec<_> =
                (0..6).map(|index| task(index + version * 10, 1, 60, Sampling::at(1.0))).collect();
            running.extend(tasks.into_iter().map(|task| (bench.spawn(task.clone()), task)));
            crate::openai::support::until("some are being sampled", || python.active() > 3).await;
            bench.announce(u64::from(version), true).await;
        }
        for (running, task) in running {
            let turn = done(running.await.unwrap());
            assert!(versions(&turn).is_sorted(), "{:?}", turn.segments);
            check_against_oracle(&python, &task, &turn);
        }
        let journal = python.journal();
        assert_eq!(journal["violations"], 0, "{dialect:?}: weights changed under a request");
    }
}
