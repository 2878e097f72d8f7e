//! Known defects of other systems in engines and trainers: each has a test here.

use millrace_policy::{LoadedVersion, Trained};
use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::submit::Algorithm;
use millrace_schemas::train_shard::Batch;
use millrace_torch::{TorchEngine, TorchTrainer};

use crate::support::{Shape, initial, load, sampled_batch, sampled_by, step, version};

const SHAPE: Shape = Shape { turns: 3, observation: 9, new: 2, below: None };

/// The policy moves by steps large enough that another token is drawn soon.
fn algorithm() -> Algorithm {
    Algorithm { learning_rate: 1e-2, minibatches: 2, epochs: 2, ..Algorithm::default() }
}

/// Three versions, each trained on what the one before sampled.
fn trained(mut next: impl FnMut(&LoadedVersion) -> Trained) -> Vec<Trained> {
    let mut base = initial(1);
    let mut made = Vec::new();
    for number in 1..=3 {
        let trained = next(&base);
        base = version(number, &trained);
        made.push(trained);
    }
    made
}

#[test]
fn sync_equals_async_zero() {
    // Synchronous: everything is made again from the files of each version.
    let synchronous = trained(|base| {
        let batch = sampled_batch(base, 4, 4, SHAPE, base.version.0);
        step(&mut TorchTrainer::new(), base, &batch, &algorithm()).unwrap()
    });
    // Asynchronous without staleness: one engine loads each version while nothing is in flight, one
    // trainer keeps its state.
    let (mut engine, mut trainer): (Option<TorchEngine>, _) = (None, TorchTrainer::new());
    let asynchronous = trained(|base| {
        let engine = engine.get_or_insert_with(|| crate::support::engine(base));
        load(engine, base);
        let batch = sampled_by(engine, base, 4, 4, SHAPE, base.version.0);
        step(&mut trainer, base, &batch, &algorithm()).unwrap()
    });
    assert!(synchronous == asynchronous, "the weights differ");
    assert!(synchronous[1].files != synchronous[2].files, "nothing was learnt");
}

#[test]
fn tokens_in_tokens_out() {
    let base = initial(1);
    let batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    // Sampled tokens are trained on unchanged, also through the object store.
    let read: Batch = decode("batch", &encode(&batch)).unwrap();
    assert_eq!(read, batch);
    let off = |batch: &Batch| {
        let algorithm = Algorithm { epochs: 1, ..Algorithm::default() };
        step(&mut TorchTrainer::new(), &base, batch, &algorithm).unwrap().metrics["logprob_abs"]
    };
    // Their log-probabilities are those that the engine recorded, token by token.
    assert!(off(&read) < 1e-6, "off by {}", off(&read));
    // One token that was not sampled shows, whether in a turn or in what came before it.
    for sampled in [true, false] {
        let mut other = read.clone();
        let rollout = &mut other.groups[1].rollouts[2];
        let at = rollout.turns[1].at as usize - usize::from(!sampled);
        rollout.tokens[at] = (rollout.tokens[at] + 1) % 32;
        assert!(off(&other) > 1e-4, "sampled={sampled}: off by {}", off(&other));
    }
}
