//! Training in bf16 with weights in f32 beside: against a plain PyTorch loop, and against what bf16
//! alone would lose.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use millrace_policy::{LoadedVersion, Trained};
use millrace_schemas::submit::{Algorithm, Loss, Precision};
use millrace_schemas::train_shard::Batch;
use millrace_torch::TorchTrainer;
use millrace_torch::decoder::{Config, Layout, read_tensors, write_tensors};
use millrace_torch::math::advantage::grpo::grpo;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde::Deserialize;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use crate::models::{oracle, zero};
use crate::support::{Shape, initial, sampled_batch, step, version};

const RATE: f64 = 1e-4;
const SHAPE: Shape = Shape { turns: 2, observation: 7, new: 6, below: None };

/// What `oracle/models.py train` computed: by parameter, the first update's gradient and the
/// weights at the end.
#[derive(Deserialize)]
struct Loop {
    gradient: BTreeMap<String, Vec<f32>>,
    weights: BTreeMap<String, Vec<f32>>,
}

#[derive(Deserialize)]
struct Loops {
    /// In bf16 with weights in f32.
    half: Loop,
    /// All in f32, from the same weights.
    full: Loop,
}

/// Version 0 of [`initial`] in bf16.
pub(crate) fn initial_half(seed: u64) -> LoadedVersion {
    let full = initial(seed);
    let mut config: serde_json::Value = serde_json::from_slice(&full.files["config.json"]).unwrap();
    config["torch_dtype"] = Precision::Bf16.dtype().into();
    let config = Bytes::from(config.to_string());
    let layout = layout(&config);
    let flat = read_tensors("model", &full.files["model.safetensors"], "", &layout).unwrap();
    let model = write_tensors(&layout, &[("", &flat.to_kind(Kind::BFloat16))], ("format", "pt"));
    let files = [("config.json", config), ("model.safetensors", model.into())];
    let files = files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    version(0, &Trained { files, metrics: BTreeMap::new() })
}

fn layout(config: &[u8]) -> Layout {
    Layout::of(&Config::read(config).unwrap())
}

/// The weights of a version's file, widened.
pub(crate) fn published(files: &BTreeMap<String, Bytes>) -> Tensor {
    let layout = layout(&files["config.json"]);
    read_tensors("model", &files["model.safetensors"], "", &layout).unwrap()
}

/// One tensor of the optimiser's state that a member alone wrote.
fn kept(trained: &Trained, name: &str) -> Tensor {
    let shard = SafeTensors::deserialize(&trained.files["optimizer-0-of-1.safetensors"]).unwrap();
    let tensor = shard.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
    Tensor::from_data_size(tensor.data(), &[tensor.shape()[0] as i64], Kind::Float)
}

fn flat(layout: &Layout, tensors: &BTreeMap<String, Vec<f32>>) -> Tensor {
    let parts: Vec<Tensor> =
        layout.parts.iter().map(|part| Tensor::from_slice(&tensors[&part.name])).collect();
    Tensor::cat(&parts, 0)
}

fn norm(x: &Tensor) -> f64 {
    f64::try_from(x.to_kind(Kind::Double).square().sum(Kind::Double).sqrt()).unwrap()
}

/// The plain loop on the same rollouts.
fn plain(path: &Path, batch: &Batch, updates: u32) -> Loops {
    let mut rollouts = Vec::new();
    for group in &batch.groups {
        let rewards: Vec<f64> = group.rollouts.iter().map(|rollout| rollout.reward).collect();
        for (rollout, advantage) in group.rollouts.iter().zip(grpo(&rewards)) {
            let logit_positions = rollout.turns.iter().flat_map(|turn| {
                let first = turn.at as usize - 1;
                first..first + turn.logprobs.len()
            });
            let logit_positions: Vec<usize> = logit_positions.collect();
            rollouts
                .push(json!({ "tokens": rollout.tokens, "wanted": logit_positions, "advantage": advantage }));
        }
    }
    let told = json!({ "rollouts": rollouts, "rate": RATE, "updates": updates });
    serde_json::from_str(&oracle(&["train", path.to_str().unwrap()], &told.to_string())).unwrap()
}

#[test]
fn a_step_in_bf16_is_that_of_a_plain_loop() {
    let folder = tempfile::tempdir().unwrap();
    oracle(&["make", folder.path().to_str().unwrap()], "");
    // Norms of heads, tied embeddings, biases, grouped key heads.
    for case in ["qwen3", "qwen2", "llama_biases"] {
        let zero = zero(&folder.path().join(case), 128, Precision::Bf16);
        let layout = layout(&zero.files["config.json"]);
        let path = folder.path().join(format!("{case}.zero"));
        std::fs::create_dir(&path).unwrap();
        for (name, content) in &zero.files {
            std::fs::write(path.join(name), content).unwrap();
        }
        let batch = sampled_batch(&zero, 4, 4, SHAPE, 1);
        let of = |epochs| {
            let algorithm = Algorithm {
                loss: Loss::PolicyGradient,
                learning_rate: RATE,
                entropy: 0.0,
                max_grad_norm: 1e9,
                epochs,
                ..Algorithm::default()
            };
            step(&mut TorchTrainer::new(), &zero, &batch, &algorithm).unwrap()
        };
        let loops = plain(&path, &batch, 4);
        // The first moment after one update is the gradient times 1 - beta1.
        let ours = kept(&of(1), "exp_avg") / (1.0 - 0.9);
        let [half, full] = [&loops.half, &loops.full].map(|of| flat(&layout, &of.gradient));
        let off = |a: &Tensor, b: &Tensor| norm(&(a - b)) / norm(b);
        let (from_full, theirs) = (off(&ours, &full), off(&half, &full));
        println!("{case}: gradient off by {from_full:.4} of its norm, the plain loop's by {theirs:.4}");
        assert!(theirs > 1e-3 && from_full < 1.5 * theirs, "{case}: off by {from_full}, theirs {theirs}");
        // Four updates: the weights in f32 move as theirs do, and what is published is those,
        // rounded.
        let trained = of(4);
        let masters = kept(&trained, "master_weights");
        assert_eq!(published(&trained.files), masters.to_kind(Kind::BFloat16).to_kind(Kind::Float), "{case}");
        let start = published(&zero.files);
        let moved = |to: &Tensor| to - &start;
        let [half, full] = [&loops.half, &loops.full].map(|of| moved(&flat(&layout, &of.weights)));
        let (from_full, theirs) = (off(&moved(&masters), &full), off(&half, &full));
        println!("{case}: after 4 updates off by {from_full:.4} of the way, the plain loop by {theirs:.4}");
        assert!(from_full < 1.5 * theirs, "{case}: off by {from_full} of the way, theirs {theirs}");
    }
}

#[test]
fn weights_in_f32_keep_what_bf16_would_lose() {
    let zero = initial_half(1);
    let batch = sampled_batch(&zero, 4, 4, SHAPE, 1);
    // An update moves a weight by a ten-thousandth of what most weights' last bit is worth.
    let algorithm = |epochs| Algorithm { learning_rate: 1e-7, epochs, ..Algorithm::default() };
    let made = |epochs| step(&mut TorchTrainer::new(), &zero, &batch, &algorithm(epochs)).unwrap();
    let start = published(&zero.files);
    let [one, eight] = [1, 8].map(|epochs| norm(&(kept(&made(epochs), "master_weights") - &start)));
    assert!(one > 0.0 && eight > 4.0 * one, "the weights in f32 moved by {one}, then by {eight}");
    let changed = published(&made(1).files).ne_tensor(&start).to_kind(Kind::Float).mean(Kind::Double);
    let changed = f64::try_from(changed).unwrap();
    assert!(changed < 0.01, "of the published weights {changed} changed");
}

/// On a CPU bit for bit. On a GPU to rounding: flash attention's backward adds up in no fixed order
/// there, and AdamW makes a whole update of a gradient that is nothing but rounding.
fn assert_same_step(ours: &Trained, theirs: &Trained, what: &str) {
    if !Device::cuda_if_available().is_cuda() {
        assert!(ours == theirs, "{what} differs");
        return;
    }
    let [a, b] = [ours, theirs].map(|trained| kept(trained, "master_weights"));
    let moment = kept(ours, "exp_avg");
    let off = norm(&(&moment - kept(theirs, "exp_avg"))) / norm(&moment);
    println!("{what}: gradients off by {off:.5} of their norm, weights by {:.2e}", norm(&(&a - &b)));
    assert!(off < 0.05, "{what}: gradients are off by {off} of their norm");
    assert!(norm(&(&a - &b)) < 1e-2 * norm(&a), "{what}: weights are off");
}

#[test]
fn a_step_in_bf16_is_the_same_after_a_restart_and_with_recomputation() {
    let algorithm = Algorithm { epochs: 2, minibatches: 3, weight_decay: 0.01, ..Algorithm::default() };
    let mut current = initial_half(1);
    let batch = sampled_batch(&current, 4, 4, SHAPE, 1);
    let mut live = TorchTrainer::new();
    for number in 0..3 {
        let batch = Batch { base: current.version, seed: number, ..batch.clone() };
        let in_memory = step(&mut live, &current, &batch, &algorithm).unwrap();
        let restarted = step(&mut TorchTrainer::new(), &current, &batch, &algorithm).unwrap();
        assert_same_step(&in_memory, &restarted, &format!("version {number} after a restart"));
        let again = Algorithm { recompute: true, ..algorithm.clone() };
        let recomputed = step(&mut TorchTrainer::new(), &current, &batch, &again).unwrap();
        assert_same_step(&in_memory, &recomputed, &format!("version {number}, layers computed again"));
        current = version(number + 1, &in_memory);
    }
}

#[test]
fn sampler_and_trainer_differ_in_bf16_by_its_rounding() {
    let zero = initial_half(1);
    let batch = sampled_batch(&zero, 4, 4, SHAPE, 1);
    let algorithm = Algorithm { epochs: 1, ..Algorithm::default() };
    let metrics = step(&mut TorchTrainer::new(), &zero, &batch, &algorithm).unwrap().metrics;
    let (mean, most) = (metrics["sampler_trainer_drift"], metrics["sampler_trainer_drift_max"]);
    println!("bf16: mean={mean:.2e} max={most:.2e}");
    // Logits of a few units, to 8 bits.
    assert!(mean > 1e-5 && mean < 2e-2 && most < 0.1, "mean={mean} max={most}");
}
