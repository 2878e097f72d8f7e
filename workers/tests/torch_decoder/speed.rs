//! Measurements, on demand: `cargo test --release --features torch --test torch_decoder speed -- --ignored
//! --nocapture`, with `MILLRACE_TORCH_THREADS` as wished.

use std::time::Instant;

use millrace_schemas::submit::Algorithm;
use millrace_workers::policy::torch::TorchTrainer;
use millrace_workers::policy::{Engine, Trainer};

use crate::support::{Shape, engine, model, request, run, sampled_batch, step, task, tokens, version};

/// Rollouts of a game: 21 tokens first, then an action and 5 tokens each turn. The best of the rounds counts,
/// since the machine has other work too.
#[test]
#[ignore = "a measurement"]
fn turns_per_second() {
    let weights = version(0, &TorchTrainer::new().initialise(&model(2, 512, 0.02), 1).unwrap());
    for (count, observation) in [(1_u32, 5), (16, 5), (64, 5), (256, 5), (512, 5), (256, 17)] {
        let mut engine = engine(&weights);
        let mut contexts: Vec<Vec<u32>> = (0..count).map(|i| tokens(21, u64::from(i))).collect();
        let (mut best, mut first, mut prefill, mut cached) = (f64::MAX, 0.0, 0, 0);
        for turn in 0..12 {
            let start = Instant::now();
            for (index, context) in contexts.iter().enumerate() {
                engine.admit(request(index as u32, task(context.clone(), 1, turn)));
            }
            let results = run(&mut engine, count as usize);
            let wall = start.elapsed().as_secs_f64();
            if turn == 0 {
                first = wall
            } else {
                best = best.min(wall)
            }
            for (context, done) in contexts.iter_mut().zip(results.into_values().map(Result::unwrap)) {
                context.extend(&done.tokens);
                context.extend(tokens(observation, turn));
                prefill += done.prefill_tokens;
                cached += done.cached_tokens;
            }
        }
        println!(
            "engine: requests={count} observation={observation} turns/s={:.0} ms/step={:.2} first_ms={:.1} prefill={prefill} cached={cached}",
            f64::from(count) / best,
            best * 1e3,
            first * 1e3,
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn seconds_per_step() {
    let mut trainer = TorchTrainer::new();
    let base = version(0, &trainer.initialise(&model(2, 512, 0.02), 1).unwrap());
    let shape = Shape { turns: 7, observation: 15, new: 1, below: None };
    let batch = sampled_batch(&base, 32, 8, shape, 1);
    let mut base = base;
    for number in 1..=4 {
        let start = Instant::now();
        let batch = millrace_schemas::train_shard::Batch { base: base.version, ..batch.clone() };
        let trained = step(&mut trainer, &base, &batch, &Algorithm::default()).unwrap();
        println!(
            "trainer: step={:.3} s tokens={} sampled={} loss={:.4}",
            start.elapsed().as_secs_f64(),
            trained.metrics["tokens"],
            trained.metrics["sampled_tokens"],
            trained.metrics["loss"]
        );
        base = version(number, &trained);
    }
}
