//! Measurements, on demand: `cargo test --release --features torch --test torch_decoder speed -- --ignored
//! --nocapture`, with `MILLRACE_TORCH_THREADS` as wished.

use std::time::Instant;

use millrace_schemas::submit::Algorithm;
use millrace_workers::policy::torch::TorchTrainer;
use millrace_workers::policy::{Engine, Trainer};

use crate::support::{Shape, engine, model, request, run, sampled_batch, step, task, tokens, version};

#[test]
#[ignore = "a measurement"]
fn turns_per_second() {
    let weights = version(0, &TorchTrainer::new().initialise(&model(2, 512, 0.02), 1).unwrap());
    for count in [256_u32, 512] {
        let mut engine = engine(&weights);
        let mut contexts: Vec<Vec<u32>> = (0..count).map(|i| tokens(20, u64::from(i))).collect();
        let (mut turns, mut prefill, mut cached) = (0, 0, 0);
        let start = Instant::now();
        for turn in 0..8 {
            for (index, context) in contexts.iter().enumerate() {
                engine.admit(request(index as u32, task(context.clone(), 1, turn)));
            }
            for (context, done) in contexts.iter_mut().zip(run(&mut engine, count as usize).into_values()) {
                let done = done.unwrap();
                context.extend(&done.tokens);
                context.extend(tokens(17, turn));
                prefill += done.prefill_tokens;
                cached += done.cached_tokens;
                turns += 1;
            }
        }
        let wall = start.elapsed().as_secs_f64();
        println!(
            "engine: requests={count} turns/s={:.0} prefill_tokens/s={:.0} cached_tokens={cached}",
            f64::from(turns) / wall,
            f64::from(prefill) / wall
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
