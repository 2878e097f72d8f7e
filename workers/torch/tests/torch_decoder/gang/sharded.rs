//! A gradient of which each member keeps its part (ZeRO's second stage) makes the step that a whole
//! one makes, and so do weights of which each keeps its part (the third).

use millrace_policy::{LoadedVersion, Trained, Trainer};
use millrace_schemas::submit::{Advantage, Algorithm, Kl, KlEstimator, OldPolicy};
use millrace_torch::TorchTrainer;
use millrace_torch::decoder::{Config, Decoder, Layout, write_tensors};
use tch::{Device, Tensor};

use super::books::{Books, How, batches, many_updates, members, same, sharded, weights_sharded};
use crate::half::initial_half;
use crate::support::{initial, model, version};

#[test]
fn a_sharded_gradient_makes_the_step_that_one_makes_alone() {
    let (alone, zero) = Books::new(1);
    let batches = batches(&zero, &alone, 3, (4, 4));
    let how = many_updates(true);
    let reference = alone.steps(&mut members(1), zero, &batches, &how);
    // With one token for a forward, members have unlike numbers of them.
    for (world, tokens_per_microbatch, recompute) in
        [(2, 16_384, false), (2, 100, true), (3, 1, true), (4, 1, false), (1, 100, true)]
    {
        let algorithm = Algorithm { tokens_per_microbatch, recompute, ..how.algorithm.clone() };
        let (gang, zero) = Books::new(1);
        let how = sharded(&How { algorithm, checkpoint: true });
        let made = gang.steps(&mut members(world), zero, &batches, &how);
        let what = format!("world={world} tokens={tokens_per_microbatch} recompute={recompute}");
        same((&gang, &made), (&alone, &reference), &how, &what);
    }
}

#[test]
fn one_forward_an_update_gives_the_bytes_of_a_whole_gradient() {
    let run = |how: &How| {
        let (gang, zero) = Books::new(1);
        let batches = batches(&zero, &gang, 2, (4, 4));
        gang.steps(&mut members(3), zero, &batches, how).manifest
    };
    let mut how = many_updates(true);
    assert_eq!(run(&sharded(&how)), run(&how));
    how.algorithm.advantage = Advantage::Gae;
    assert_eq!(run(&sharded(&how)), run(&how), "with a critic");
    let plain = run(&how);
    how.algorithm.offload_optimizer = true;
    assert_eq!(run(&sharded(&how)), plain, "with the optimiser's state in the host's memory");
}

#[test]
fn members_change_between_whole_and_sharded() {
    change(&many_updates(true));
    // The reference model changes with the weights.
    let how = many_updates(true);
    let kl = Some(Kl::of_loss(0.1, KlEstimator::K3));
    change(&How { algorithm: Algorithm { kl, ..how.algorithm.clone() }, ..how });
}

/// A trainer serves runs of both kinds, one after another.
fn change(whole: &How) {
    let whole = whole.clone();
    let (split, hollow) = (sharded(&whole), weights_sharded(&whole));
    let run = |order: [&How; 3]| {
        let (gang, zero) = Books::new(1);
        let batches = batches(&zero, &gang, 3, (4, 4));
        let mut live = members(2);
        let steps = order.into_iter().zip(&batches);
        let step = |base, (how, batch)| gang.steps(&mut live, base, std::slice::from_ref(batch), how);
        steps.fold(zero, step).manifest
    };
    let plain = run([&whole; 3]);
    assert_eq!(run([&whole, &split, &whole]), plain);
    assert_eq!(run([&split, &whole, &split]), plain);
    assert_eq!(run([&whole, &hollow, &whole]), plain);
    assert_eq!(run([&hollow, &split, &hollow]), plain);
}

/// Steps of so many members on batches of so many groups of so many rollouts each.
fn last(zero: &LoadedVersion, world: usize, shape: (u64, u32), how: &How) -> LoadedVersion {
    let (gang, zero) = Books::of(zero);
    let batches = batches(&zero, &gang, 2, shape);
    let mut live = members(world);
    let made = gang.steps(&mut live, zero, &batches, how);
    let gathers = how.algorithm.shard_weights && world > 1;
    assert!(live.iter().all(|member| member.gathered().is_some() == gathers));
    made
}

/// Version 0 of a model whose output layer is its embedding.
fn initial_tied() -> LoadedVersion {
    let mut files = initial(1).files;
    let mut config: serde_json::Value = serde_json::from_slice(&files["config.json"]).unwrap();
    config["tie_word_embeddings"] = true.into();
    let read = Config::read(config.to_string().as_bytes()).unwrap();
    let weights = write_tensors(&Layout::of(&read), &[("", &Decoder::initial(&read, 5))], ("format", "pt"));
    files.insert("config.json".to_owned(), config.to_string().into());
    files.insert("model.safetensors".to_owned(), weights.into());
    version(0, &Trained { files, metrics: Default::default() })
}

/// Whether a gang whose weights are sharded makes the bytes of one that shards the gradient alone.
fn weights_change_nothing(zero: &LoadedVersion, (world, shape): (usize, (u64, u32)), how: &How, what: &str) {
    let gradient = How { algorithm: Algorithm { recompute: true, ..how.algorithm.clone() }, ..how.clone() };
    let [theirs, ours] = [sharded(&gradient), weights_sharded(how)].map(|how| last(zero, world, shape, &how));
    assert_eq!(ours.manifest, theirs.manifest, "{what} world={world}");
}

#[test]
fn sharded_weights_make_the_bytes_of_a_sharded_gradient() {
    let how = many_updates(true);
    // With one token for a forward members have unlike numbers of them, and with one group of three
    // a member of four has none at all.
    for (world, tokens_per_microbatch, shape) in
        [(2, 16_384, (4, 4)), (2, 100, (4, 4)), (3, 1, (4, 4)), (4, 1, (1, 3)), (1, 100, (4, 4))]
    {
        let how =
            How { algorithm: Algorithm { tokens_per_microbatch, ..how.algorithm.clone() }, checkpoint: true };
        let what = format!("tokens={tokens_per_microbatch} shape={shape:?}");
        weights_change_nothing(&initial(1), (world, shape), &how, &what);
        weights_change_nothing(&initial_half(1), (world, shape), &how, &format!("bf16 {what}"));
        weights_change_nothing(&initial_tied(), (world, shape), &how, &format!("tied {what}"));
    }
}

#[test]
fn sharded_weights_serve_all_that_a_step_computes() {
    let plain = many_updates(true).algorithm;
    for (what, algorithm) in [
        ("with a critic", Algorithm { advantage: Advantage::Gae, tokens_per_microbatch: 1, ..plain.clone() }),
        ("with a reference", Algorithm { kl: Some(Kl::of_loss(0.1, KlEstimator::K3)), ..plain.clone() }),
        (
            "with a proximal policy",
            Algorithm { old: OldPolicy::Proximal, tokens_per_microbatch: 1, ..plain.clone() },
        ),
        ("offloaded", Algorithm { offload_optimizer: true, offload_activations: true, ..plain.clone() }),
    ] {
        let how = How { algorithm, checkpoint: true };
        // One group of three: some members of four look at nothing.
        for (world, shape) in [(2, (4, 4)), (4, (1, 3))] {
            weights_change_nothing(&initial(1), (world, shape), &how, what);
        }
    }
}

#[test]
fn a_member_has_few_layers_of_sharded_weights_at_once() {
    let how = weights_sharded(&many_updates(true));
    let deep = version(0, &TorchTrainer::new().initialise(&model(6, 256, 0.2), 1).unwrap());
    let (gang, zero) = Books::of(&deep);
    let batches = batches(&zero, &gang, 1, (4, 4));
    let mut live = members(2);
    gang.steps(&mut live, zero.clone(), &batches, &how);
    let config = Config::read(&zero.files["config.json"]).unwrap();
    let lengths = Layout::of(&config).leaf_lengths();
    let nothing = Tensor::zeros([lengths.iter().sum::<i64>()], tch::kind::FLOAT_CPU);
    let decoder = Decoder::hollow(config, &nothing, Device::Cpu);
    let layer: i64 = lengths[decoder.leaves_of(0)].iter().sum();
    for member in &live {
        let (most, stays) = member.gathered().expect("the weights were sharded");
        // A bucket may begin or end within a layer.
        let edges = 2 * 64 * 1024 / 4;
        assert!(most > 0 && most <= 2 * layer + edges, "{most} of layers of {layer}");
        assert!(stays >= lengths[0], "the embedding, {} of {stays}", lengths[0]);
    }
}

#[test]
fn what_is_not_there_is_no_number_and_has_its_shape() {
    let config = Config::read(&initial(1).files["config.json"]).unwrap();
    let lengths = Layout::of(&config).leaf_lengths();
    let flat = Decoder::initial(&config, 3);
    let decoder = Decoder::hollow(config.clone(), &flat, Device::Cpu);
    let whole = Decoder::new(config, &flat, Device::Cpu, true);
    let is_nan = |leaf: &Tensor| bool::try_from(leaf.isnan().all()).unwrap();
    assert!(decoder.leaves().into_iter().all(is_nan));
    let leaves = decoder.leaves_of(1);
    let from: i64 = lengths[..leaves.start].iter().sum();
    let len: i64 = lengths[leaves.clone()].iter().sum();
    decoder.lay(leaves.clone(), &flat.narrow(0, from, len));
    for (index, (ours, theirs)) in decoder.leaves().into_iter().zip(whole.leaves()).enumerate() {
        assert_eq!(ours.size(), theirs.size());
        assert!(ours.requires_grad());
        assert_eq!(leaves.contains(&index), ours.equal(theirs), "leaf {index}");
        assert_eq!(leaves.contains(&index), !is_nan(ours), "leaf {index}");
    }
    decoder.withdraw(leaves);
    assert!(decoder.leaves().into_iter().all(is_nan));
}
