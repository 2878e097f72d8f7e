//! Sampled tokens are trained on unchanged, and replies that could not be trained on are refused.

use millrace_schemas::generate::{Finish, Sampling};
use millrace_workers::Verdict;
use millrace_workers::policy::openai::Dialect::{self, LlamaCpp, Sglang, Vllm};
use serde_json::{Map, Value, json};

use crate::openai::support::{
    Bench, Python, announce_with, asked, check_against_oracle, done, task, versions,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_in_tokens_out() {
    let python = Python::start();
    for dialect in [Vllm, Sglang, LlamaCpp] {
        let bench = Bench::new(&python, dialect);
        bench.announce(1, true).await;
        let temperatures = [1.0, 0.7, 0.0, 1.3].into_iter().zip(0..);
        let mut tasks: Vec<_> = temperatures.map(|(t, index)| task(index, 1, 12, Sampling::at(t))).collect();
        let stop_tokens = (0..32).collect();
        tasks.push(task(4, 1, 100, Sampling { stop_tokens, ..Sampling::at(1.0) }));
        if dialect == Vllm {
            tasks.push(task(5, 1, 12, Sampling { sample_below: Some(8), ..Sampling::at(1.0) }));
            let cut = Sampling { top_p: 0.8, top_k: 20, min_p: 0.02, ..Sampling::at(1.0) };
            tasks.push(task(6, 1, 12, cut));
        }
        let running: Vec<_> = tasks.iter().map(|task| bench.spawn(task.clone())).collect();
        for (task, running) in tasks.iter().zip(running) {
            let done = done(running.await.unwrap());
            assert_eq!(versions(&done), [1]);
            check_against_oracle(&python, task, &done);
            // Token by token what the server drew, after the very context that it was sent.
            assert!(drawn(&python, &asked(task).context, &done.tokens), "{dialect:?}: {:?}", done.tokens);
            let stops = &asked(task).sampling.stop_tokens;
            match done.finish {
                Finish::Stop => assert!(stops.contains(done.tokens.last().unwrap())),
                Finish::Length => assert_eq!(done.tokens.len(), asked(task).max_new_tokens as usize),
                Finish::Partial => panic!("nobody asked the worker to leave: {done:?}"),
            }
            assert!(!done.tokens[..done.tokens.len() - 1].iter().any(|token| stops.contains(token)));
            assert!(done.tokens.iter().all(|token| *token < asked(task).sampling.sample_below.unwrap_or(64)));
            let context = asked(task).context.len() as u32;
            assert_eq!((done.cached_tokens, done.prefill_tokens), (3, context - 3));
        }
    }
}

/// Whether the server's journal has these tokens, in one piece or several.
fn drawn(python: &Python, context: &[u32], tokens: &[u32]) -> bool {
    let journal = python.journal();
    let entries = journal["journal"].as_array().unwrap();
    let after = |before: &[u32]| -> Vec<Vec<u32>> {
        let here = entries.iter().filter(|entry| entry["prompt"] == json!(before));
        here.map(|entry| serde_json::from_value(entry["tokens"].clone()).unwrap()).collect()
    };
    let mut whole = context.to_vec();
    let end = [context, tokens].concat();
    while whole.len() < end.len() {
        let Some(piece) = after(&whole)
            .into_iter()
            .find(|piece| !piece.is_empty() && end[whole.len()..].starts_with(piece))
        else {
            return false;
        };
        whole.extend(piece);
    }
    true
}

/// A token's text: two letters.
fn text(token: u32) -> String {
    let letter = |first: u8, at: u32| char::from(first + at as u8);
    [letter(b'a', token / 8), letter(b'A', token % 8)].into_iter().collect()
}

/// Words with blanks between them.
fn tokenizer() -> Value {
    let vocabulary: Map<String, Value> = (0..64).map(|token| (text(token), json!(token))).collect();
    json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": text(0) },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_models_own_end_tokens_and_stop_strings_end_a_turn() {
    let python = Python::start();
    for dialect in [Vllm, Sglang, LlamaCpp] {
        let bench = Bench::new(&python, dialect);
        bench.announce(1, true).await;
        let whole = done(bench.execute(task(3, 1, 40, Sampling::at(1.0))).await);
        assert_eq!((whole.tokens.len(), whole.finish), (40, Finish::Length));
        // In the middle of the turn, and nowhere before.
        let at = (10..40).find(|at| !whole.tokens[..*at].contains(&whole.tokens[*at])).unwrap();

        let end = [("generation_config.json", json!({"eos_token_id": [whole.tokens[at], 63_000]}))];
        let words = [("tokenizer.json", tokenizer())];
        // Begins within a token and ends with another.
        let across = format!("{} {}", &text(whole.tokens[at - 1])[1..], text(whole.tokens[at]));
        let stops = Sampling { stop_strings: vec!["never".to_owned(), across], ..Sampling::at(1.0) };
        for (files, sampling) in [(&end, Sampling::at(1.0)), (&words, stops)] {
            let bench = Bench::new(&python, dialect);
            announce_with(&bench.broker, 1, true, files).await;
            let task = task(3, 1, 40, sampling);
            let turn = done(bench.execute(task.clone()).await);
            assert_eq!(turn.finish, Finish::Stop, "{dialect:?}");
            assert_eq!(turn.tokens, whole.tokens[..=at], "{dialect:?}");
            assert_eq!(turn.logprobs.len(), at + 1);
            check_against_oracle(&python, &task, &turn);
        }
    }
}

async fn refused(python: &Python, dialect: Dialect, wicked: &Value, why: &str) {
    python.set(&json!({}));
    let bench = Bench::new(python, dialect);
    bench.announce(1, true).await;
    let ask = || task(0, 1, 6, Sampling::at(0.7));
    if !why.contains("prompt") && !why.contains("processed") && !why.contains("ORIGINAL") {
        // The weights are there; it is the reply alone that is wrong.
        done(bench.execute(ask()).await);
    }
    python.set(wicked);
    match bench.execute(ask()).await {
        Verdict::RetryAfter(_, reason) => assert!(reason.contains(why), "{dialect:?} {wicked}: {reason}"),
        other => panic!("{dialect:?} {wicked}: {other:?}"),
    }
}

/// On a server of its own: an engine of another dialect that is about to end may still give the
/// server weights.
async fn all_refused(dialect: Dialect, cases: &[(Value, &str)]) {
    let python = Python::start();
    for (wicked, why) in cases {
        refused(&python, dialect, wicked, why).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_vllm_that_cannot_be_trained_on_are_refused_by_name() {
    let cases = [
        (json!({"omit": "ids"}), "return_token_ids"),
        (json!({"omit": "logprobs"}), "logprobs"),
        (json!({"omit": "one"}), "must agree"),
        (json!({"logprob": "null"}), "logprobs"),
        (json!({"logprob": "nan"}), "not JSON"),
        (json!({"logprob": "clamped"}), "logprob=-9999"),
        (json!({"outside": true}), "is not below 64"),
        (json!({"truncate": true}), "another context"),
        (json!({"raw": true}), "--logprobs-mode processed_logprobs"),
        (json!({"no_prompt_logprobs": true}), "prompt_logprobs"),
    ];
    all_refused(Vllm, &cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_sglang_that_cannot_be_trained_on_are_refused_by_name() {
    let cases = [
        (json!({"omit": "logprobs"}), "return_logprob"),
        (json!({"omit": "one"}), "must agree"),
        (json!({"logprob": "null"}), "[logprob, token]"),
        (json!({"outside": true}), "is not below 64"),
        (json!({"truncate": true}), "were sent"),
        (json!({"raw": true}), "SGLANG_RETURN_ORIGINAL_LOGPROB"),
    ];
    all_refused(Sglang, &cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_llama_cpp_that_cannot_be_trained_on_are_refused_by_name() {
    let cases = [
        (json!({"omit": "ids"}), "return_tokens"),
        (json!({"outside": true}), "is not below 64"),
        (json!({"truncate": true}), "were sent"),
    ];
    all_refused(LlamaCpp, &cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsupported_request_is_refused_with_the_remedy() {
    let python = Python::start();
    python.set(&json!({"no_dev": true}));
    let bench = Bench::new(&python, Vllm);
    bench.announce(1, true).await;
    match bench.execute(task(0, 1, 6, Sampling::at(1.0))).await {
        Verdict::RetryAfter(_, reason) => assert!(reason.contains("VLLM_SERVER_DEV_MODE=1"), "{reason}"),
        other => panic!("{other:?}"),
    }
    python.set(&json!({}));
    let bench = Bench::new(&python, Vllm);
    bench.announce(1, true).await;
    // Training compares log-probabilities at the same temperature, without the cut: vLLM tells
    // neither together.
    match bench.execute(task(0, 1, 6, Sampling { top_k: 8, ..Sampling::at(0.7) })).await {
        Verdict::RetryAfter(_, reason) => assert!(reason.contains("temperature=0.7"), "{reason}"),
        other => panic!("{other:?}"),
    }
    for dialect in [Sglang, LlamaCpp] {
        let bench = Bench::new(&python, dialect);
        bench.announce(1, true).await;
        let bounded = Sampling { sample_below: Some(8), ..Sampling::at(1.0) };
        let cut = Sampling { top_k: 8, ..Sampling::at(1.0) };
        for (sampling, why) in [(bounded, "sample_below"), (cut, "top_k")] {
            match bench.execute(task(0, 1, 6, sampling)).await {
                Verdict::RetryAfter(_, reason) => assert!(reason.contains(why), "{dialect:?}: {reason}"),
                other => panic!("{dialect:?}: {other:?}"),
            }
        }
    }
}
