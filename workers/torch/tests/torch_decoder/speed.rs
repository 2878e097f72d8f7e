//! Measurements, on demand: `cargo test --release --features torch --test torch_decoder speed --
//! --ignored --nocapture`. On one thread.

use std::time::Instant;

use millrace_policy::{Engine, Trainer};
use millrace_schemas::submit::Algorithm;
use millrace_torch::TorchTrainer;

use crate::support::{Shape, engine, model, request, run, sampled_batch, step, task, tokens, turns, version};

/// Seconds that this thread has had a processor: what wall time is where nothing else runs.
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() * 1e-9
}

/// Rollouts of a game: 21 tokens first, then an action and 5 tokens each turn; and one of longer
/// observations.
#[test]
#[ignore = "a measurement"]
fn turns_per_second() {
    let weights = version(0, &TorchTrainer::new().initialise(&model(2, 512, 0.02), 1).unwrap());
    for (count, observation) in [(1_u32, 5), (16, 5), (64, 5), (256, 5), (512, 5), (256, 17)] {
        let mut engine = engine(&weights);
        // The cache grows to its size.
        turns(&mut engine, vec![task(tokens(240, 1), 1, 1)]);
        let mut contexts: Vec<Vec<u32>> = (0..count).map(|i| tokens(21, u64::from(i))).collect();
        let rounds = if count < 64 { 100 } else { 12 };
        let mut spent = 0.0;
        for turn in 0..rounds {
            for context in contexts.iter_mut().filter(|context| context.len() > 230) {
                context.truncate(21);
            }
            let start = busy();
            for (index, context) in contexts.iter().enumerate() {
                engine.admit(request(index as u32, task(context.clone(), 1, turn)));
            }
            let results = run(&mut engine, count as usize);
            spent += busy() - start;
            for (context, done) in contexts.iter_mut().zip(results.into_values().map(Result::unwrap)) {
                context.extend(&done.tokens);
                context.extend(tokens(observation, turn));
            }
        }
        let per_round = spent / rounds as f64;
        println!(
            "engine: requests={count} observation={observation} turns/s={:.0} busy={:.2} ms/step",
            f64::from(count) / per_round,
            per_round * 1e3,
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn seconds_per_step() {
    let mut trainer = TorchTrainer::new();
    let base = version(0, &trainer.initialise(&model(2, 512, 0.02), 1).unwrap());
    for (turns, observation) in [(7, 15), (7, 5)] {
        let shape = Shape { turns, observation, new: 1, below: Some(4) };
        let batch = sampled_batch(&base, 32, 8, shape, 1);
        for tokens_per_microbatch in [1024, 4096] {
            let algorithm = Algorithm { tokens_per_microbatch, ..Algorithm::default() };
            let (start, wall) = (busy(), Instant::now());
            let trained = step(&mut trainer, &base, &batch, &algorithm).unwrap();
            println!(
                "trainer: microbatch={tokens_per_microbatch} busy={:.3} s wall={:.3} s tokens={} sampled={}",
                busy() - start,
                wall.elapsed().as_secs_f64(),
                trained.metrics["tokens"],
                trained.metrics["sampled_tokens"],
            );
        }
    }
}
