//! Optimiser steps: against the oracle, and against themselves.

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_policy::{PolicyError, Trained};
use millrace_schemas::submit::{Advantage, Algorithm, Kl, KlEstimator, Loss};
use millrace_schemas::train_shard::{Batch, BatchGroup, BatchRollout, BatchTurn};
use millrace_schemas::{PolicyVersion, RolloutId};
use millrace_torch::TorchTrainer;
use millrace_torch::decoder::{Config, Decoder, Layout, read_tensors, write_tensors};
use safetensors::SafeTensors;
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use crate::forward::difference;
use crate::half::initial_half;
use crate::support::{Shape, initial, sampled_batch, step, step_near, version};

/// What `oracle/oracle.py` computed.
#[derive(Deserialize)]
pub(crate) struct Oracle {
    temperature: f64,
    algorithm: BTreeMap<String, f64>,
    initial: BTreeMap<String, Vec<f64>>,
    groups: Vec<Vec<OracleRollout>>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logits: Vec<f64>,
    one_epoch: OracleStep,
    two_epochs: OracleStep,
}

#[derive(Deserialize)]
struct OracleRollout {
    tokens: Vec<u32>,
    turns: Vec<OracleTurn>,
    reward: f64,
}

#[derive(Deserialize)]
struct OracleTurn {
    at: u32,
    logprobs: Vec<f32>,
}

#[derive(Deserialize)]
struct OracleStep {
    loss: f64,
    grad_norm: f64,
    gradient: BTreeMap<String, Vec<f64>>,
    weights: BTreeMap<String, Vec<f64>>,
}

impl Oracle {
    pub(crate) fn read() -> Self {
        serde_json::from_str(include_str!("../oracle/step.json")).unwrap()
    }

    fn config() -> Config {
        let text = r#"{"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":7,"hidden_size":8,
            "intermediate_size":12,"num_hidden_layers":2,"num_attention_heads":2,
            "max_position_embeddings":32,"rms_norm_eps":1e-5}"#;
        Config::read(text.as_bytes()).unwrap()
    }

    fn flat(tensors: &BTreeMap<String, Vec<f64>>) -> Tensor {
        let parts = Layout::of(&Self::config()).parts;
        let parts: Vec<Tensor> = parts.iter().map(|part| Tensor::from_slice(&tensors[&part.name])).collect();
        Tensor::cat(&parts, 0)
    }

    pub(crate) fn decoder(&self) -> Decoder {
        Decoder::new(Self::config(), &Self::flat(&self.initial).to_kind(Kind::Float), Device::Cpu, false)
    }

    pub(crate) fn base(&self) -> Trained {
        self.base_times(1.0)
    }

    /// The base with all its weights times `factor`.
    pub(crate) fn base_times(&self, factor: f64) -> Trained {
        let weights = (Self::flat(&self.initial) * factor).to_kind(Kind::Float);
        let layout = Layout::of(&Self::config());
        let model = write_tensors(&layout, &[("", &weights)], ("format", "pt"));
        let files = [("config.json", Self::config().to_json()), ("model.safetensors", model)];
        let files = files.into_iter().map(|(name, bytes)| (name.to_owned(), Bytes::from(bytes))).collect();
        Trained { files, metrics: BTreeMap::new() }
    }

    pub(crate) fn batch(&self) -> Batch {
        let rollout = |group: u64, index: usize, rollout: &OracleRollout| BatchRollout {
            id: RolloutId { group, index: index as u32, attempt: 0 },
            start_version: PolicyVersion(0),
            reward: rollout.reward,
            success: false,
            truncated: false,
            tokens: rollout.tokens.clone(),
            turns: rollout
                .turns
                .iter()
                .map(|turn| BatchTurn {
                    at: turn.at,
                    logprobs: turn.logprobs.clone(),
                    segments: Vec::new(),
                    reward: 0.0,
                })
                .collect(),
            forks: Vec::new(),
            stored: None,
        };
        let groups = self.groups.iter().enumerate().map(|(group, rollouts)| BatchGroup {
            domain: 0,
            group: group as u64,
            rollouts: rollouts.iter().enumerate().map(|(i, r)| rollout(group as u64, i, r)).collect(),
        });
        let base = version(0, &self.base());
        Batch {
            run: "test".parse().unwrap(),
            base: base.version,
            manifest: base.sha,
            config: base.sha,
            seed: 1,
            temperature: self.temperature,
            sample_below: None,
            groups: groups.collect(),
        }
    }

    fn algorithm(&self, epochs: u32) -> Algorithm {
        let of = |name: &str| self.algorithm[name];
        Algorithm {
            epochs,
            learning_rate: of("learning_rate"),
            adam_beta1: of("adam_beta1"),
            adam_beta2: of("adam_beta2"),
            weight_decay: of("weight_decay"),
            max_grad_norm: of("max_grad_norm"),
            entropy: of("entropy"),
            ..Algorithm::default()
        }
    }
}

fn read(trained: &Trained, file: &str, prefix: &str) -> Tensor {
    let config = Config::read(&trained.files["config.json"]).unwrap();
    read_tensors(file, &trained.files[file], prefix, &Layout::of(&config)).unwrap().to_kind(Kind::Double)
}

/// AdamW's first moment after a step that one member made alone.
pub(crate) fn first_moment(trained: &Trained) -> Tensor {
    let shard = SafeTensors::deserialize(&trained.files["optimizer-0-of-1.safetensors"]).unwrap();
    let moment = shard.tensor("exp_avg").unwrap();
    let len = moment.shape()[0] as i64;
    Tensor::from_data_size(moment.data(), &[len], Kind::Float).to_kind(Kind::Double)
}

#[test]
fn a_whole_step_is_the_oracles() {
    let oracle = Oracle::read();
    let base = version(0, &oracle.base());
    for (epochs, theirs) in [(1, &oracle.one_epoch), (2, &oracle.two_epochs)] {
        let trained =
            step(&mut TorchTrainer::new(), &base, &oracle.batch(), &oracle.algorithm(epochs)).unwrap();
        let off = (trained.metrics["grad_norm"] - theirs.grad_norm).abs();
        assert!(off < 1e-5 * theirs.grad_norm, "epochs={epochs}: grad_norm off by {off}");
        if epochs == 1 {
            // The first moment after one update is the gradient times 1 - beta1.
            let ours = first_moment(&trained) / (1.0 - 0.9);
            let gradient = Oracle::flat(&theirs.gradient);
            let scale = f64::try_from(gradient.abs().max()).unwrap();
            let off = difference(&ours, &gradient) / scale;
            assert!(off < 1e-5, "gradient off by {off} of its largest");
            assert!((trained.metrics["loss"] - theirs.loss).abs() < 1e-6);
            assert!((trained.metrics["groups_without_signal"] - 1.0 / 3.0).abs() < 1e-12);
        }
        // An update moves a weight by about the learning rate, whatever its gradient.
        let rate = trained.metrics["learning_rate"];
        let off = difference(&read(&trained, "model.safetensors", ""), &Oracle::flat(&theirs.weights)) / rate;
        assert!(off < 2e-3, "epochs={epochs}: weights off by {off} of the learning rate");
    }
}

pub(crate) const SHAPE: Shape = Shape { turns: 3, observation: 9, new: 2, below: None };

fn many_updates() -> Algorithm {
    Algorithm { epochs: 2, minibatches: 3, weight_decay: 0.01, warmup_steps: 2, ..Algorithm::default() }
}

#[test]
fn the_same_step_gives_the_same_bytes_also_after_a_restart() {
    let algorithm = many_updates();
    let base = initial(1);
    let batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    let mut kept = TorchTrainer::new();
    let mut current = base;
    for number in 0..3 {
        let batch = Batch { base: PolicyVersion(number), seed: number, ..batch.clone() };
        let in_memory = step(&mut kept, &current, &batch, &algorithm).unwrap();
        let restarted = step(&mut TorchTrainer::new(), &current, &batch, &algorithm).unwrap();
        assert!(in_memory == restarted, "version {number} differs after a restart");
        // The state in memory is now ahead of this version: a retry of the same step reads the
        // files.
        let retried = step(&mut kept, &current, &batch, &algorithm).unwrap();
        assert!(in_memory == retried, "version {number} differs when done again");
        current = version(number + 1, &in_memory);
    }
}

#[test]
fn the_seed_of_the_batch_decides_its_minibatches() {
    let base = initial(1);
    let batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    let other = Batch { seed: 99, ..batch.clone() };
    let [a, b] =
        [&batch, &other].map(|batch| step(&mut TorchTrainer::new(), &base, batch, &many_updates()).unwrap());
    assert!(a.files["model.safetensors"] != b.files["model.safetensors"]);
}

#[test]
fn the_trainers_log_probabilities_are_the_engines() {
    let base = initial(1);
    for temperature in [1.0, 0.0] {
        let batch = Batch { temperature, ..sampled_batch(&base, 4, 4, SHAPE, 1) };
        let algorithm = Algorithm { epochs: 1, ..Algorithm::default() };
        let metrics = step(&mut TorchTrainer::new(), &base, &batch, &algorithm).unwrap().metrics;
        assert!(metrics["logprob_abs"] < 1e-6, "off by {}", metrics["logprob_abs"]);
        assert!((metrics["ess"] - 1.0).abs() < 1e-6 && metrics["clip_share"] == 0.0);
    }
    // At another temperature they are not, which the metrics show.
    let batch = Batch { temperature: 0.5, ..sampled_batch(&base, 4, 4, SHAPE, 1) };
    let metrics = step(&mut TorchTrainer::new(), &base, &batch, &Algorithm::default()).unwrap().metrics;
    assert!(metrics["logprob_abs"] > 0.1, "off by {}", metrics["logprob_abs"]);
}

#[test]
fn what_engine_and_trainer_compute_differently_is_a_metric() {
    let base = initial(1);
    let mut batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    let of = |batch: &Batch| step(&mut TorchTrainer::new(), &base, batch, &many_updates()).unwrap().metrics;
    // Before the first update only: later the trainer's weights are others.
    let metrics = of(&batch);
    let (mean, most) = (metrics["sampler_trainer_drift"], metrics["sampler_trainer_drift_max"]);
    assert!(mean < 1e-6 && most < 1e-5 && most >= mean && mean > 0.0, "mean={mean} max={most}");
    assert!(metrics["logprob_abs"] > 10.0 * mean);
    // One token's log-probability, off by one: in the maximum, and in the mean by its share.
    let algorithm = once();
    batch.groups[1].rollouts[2].turns[0].logprobs[0] += 1.0;
    let metrics = step(&mut TorchTrainer::new(), &base, &batch, &algorithm).unwrap().metrics;
    let share = 1.0 / metrics["sampled_tokens"];
    assert!((metrics["sampler_trainer_drift_max"] - 1.0).abs() < 1e-5);
    assert!((metrics["sampler_trainer_drift"] - share).abs() < 1e-6);
    // It was sampled by another version: staleness, and no drift.
    batch.groups[1].rollouts[2].turns[0].segments[0].version = PolicyVersion(7);
    let metrics = step(&mut TorchTrainer::new(), &base, &batch, &algorithm).unwrap().metrics;
    assert!(metrics["sampler_trainer_drift_max"] < 1e-5);
}

#[test]
fn recomputed_layers_give_the_same_bytes() {
    let base = initial(1);
    let batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    let of = |recompute, offload_activations| {
        let plain = Algorithm { tokens_per_microbatch: 200, ..many_updates() };
        let algorithm = Algorithm { recompute, offload_activations, ..plain };
        step(&mut TorchTrainer::new(), &base, &batch, &algorithm).unwrap()
    };
    assert!(of(true, false) == of(false, false));
    assert!(of(true, true) == of(false, false), "offloaded");
}

#[test]
fn an_offloaded_optimizer_gives_the_same_bytes() {
    let base = initial_half(1);
    let batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    let whole = many_updates();
    let offloaded = Algorithm { offload_optimizer: true, ..many_updates() };
    let of = |algorithm| step(&mut TorchTrainer::new(), &base, &batch, algorithm).unwrap();
    assert!(of(&offloaded) == of(&whole));
}

#[test]
fn the_kl_penalty_keeps_the_policy_near_its_reference() {
    let (base, other) = (initial(1), initial(2));
    let batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    let of = |reference, estimator, coefficient| {
        let kl = Some(Kl::of_loss(coefficient, estimator));
        let algorithm = Algorithm { kl, entropy: 0.0, max_grad_norm: 1e9, ..once() };
        step_near(reference, &base, &batch, &algorithm).unwrap()
    };
    let free = Algorithm { entropy: 0.0, max_grad_norm: 1e9, ..once() };
    let free = step(&mut TorchTrainer::new(), &base, &batch, &free).unwrap();
    assert!(!free.metrics.contains_key("kl"));
    for estimator in [KlEstimator::K2, KlEstimator::K3] {
        // At the reference itself the KL divergence is 0, and so is its gradient.
        let near = of(Some(&base), estimator, 0.5);
        assert!(near.metrics["kl"].abs() < 1e-9, "kl={}", near.metrics["kl"]);
        assert!(difference(&first_moment(&near), &first_moment(&free)) < 1e-9);
        // Elsewhere it is in the loss and in the gradient, in proportion.
        let far = [0.5, 1.0].map(|coefficient| of(Some(&other), estimator, coefficient));
        assert!(far[0].metrics["kl"] > 1e-3);
        for (far, coefficient) in far.iter().zip([0.5, 1.0]) {
            let term = coefficient * far.metrics["kl"];
            let off = far.metrics["loss"] - free.metrics["loss"] - term;
            assert!(off.abs() < 1e-5 * term.max(1.0), "off by {off}");
        }
        let pulls = far.each_ref().map(|far| first_moment(far) - first_moment(&free));
        let scale = f64::try_from(pulls[1].abs().max()).unwrap();
        assert!(scale > 1e-6 && difference(&(&pulls[0] * 2.0), &pulls[1]) < 1e-3 * scale);
    }
    let algorithm = Algorithm { kl: Some(Kl::of_loss(1.0, KlEstimator::K3)), ..once() };
    let error = step_near(None, &base, &batch, &algorithm).unwrap_err().to_string();
    assert!(error.contains("reference"), "{error}");
}

#[test]
fn groups_of_weights_are_decayed_as_configured() {
    let base = initial(1);
    let batch = without_signal(&sampled_batch(&base, 2, 2, SHAPE, 1));
    let weights = |files: &BTreeMap<String, Bytes>, name: &str| {
        let file = SafeTensors::deserialize(&files["model.safetensors"]).unwrap();
        let tensor = file.tensor(name).unwrap();
        let len = tensor.shape().iter().product::<usize>() as i64;
        Tensor::from_data_size(tensor.data(), &[len], Kind::Float)
    };
    for (embeddings, norms) in [(true, false), (false, true)] {
        let algorithm = Algorithm {
            weight_decay: 0.5,
            learning_rate: 0.1,
            entropy: 0.0,
            decay_embeddings: embeddings,
            decay_norms: norms,
            ..once()
        };
        // Without a gradient the decay alone moves anything.
        let made = step(&mut TorchTrainer::new(), &base, &batch, &algorithm).unwrap();
        for (name, decayed) in [
            ("model.embed_tokens.weight", embeddings),
            ("lm_head.weight", embeddings),
            ("model.norm.weight", norms),
            ("model.layers.1.input_layernorm.weight", norms),
            ("model.layers.1.self_attn.k_proj.weight", true),
        ] {
            let before = weights(&base.files, name);
            let expected = before * if decayed { 0.95 } else { 1.0 };
            let off = difference(&weights(&made.files, name), &expected);
            assert!(off < 1e-6, "{name} with embeddings={embeddings} norms={norms}: off by {off}");
        }
    }
}

/// The same, all rewards alike.
fn without_signal(batch: &Batch) -> Batch {
    let mut batch = batch.clone();
    batch.groups.iter_mut().flat_map(|group| &mut group.rollouts).for_each(|rollout| rollout.reward = 0.25);
    batch
}

#[test]
fn probabilities_are_over_the_tokens_that_were_drawn() {
    let base = initial(1);
    let batch = sampled_batch(&base, 4, 4, Shape { below: Some(4), ..SHAPE }, 1);
    let metrics = step(&mut TorchTrainer::new(), &base, &batch, &once()).unwrap().metrics;
    assert!(metrics["logprob_abs"] < 1e-6, "off by {}", metrics["logprob_abs"]);
    assert!(metrics["entropy"] < 4.0_f64.ln());
    // Over the whole vocabulary they are others; and a token that could not have been drawn is
    // refused.
    let whole = Batch { sample_below: None, ..batch };
    let metrics = step(&mut TorchTrainer::new(), &base, &whole, &once()).unwrap().metrics;
    assert!(metrics["logprob_abs"] > 0.1, "off by {}", metrics["logprob_abs"]);
    let batch = Batch { sample_below: Some(4), ..sampled_batch(&base, 2, 2, SHAPE, 1) };
    let error = step(&mut TorchTrainer::new(), &base, &batch, &once()).unwrap_err().to_string();
    assert!(error.contains("below 4"), "{error}");
}

pub(crate) fn once() -> Algorithm {
    Algorithm { epochs: 1, ..Algorithm::default() }
}

#[test]
fn without_advantage_and_entropy_nothing_moves() {
    let base = initial(1);
    let mut batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    for rollout in batch.groups.iter_mut().flat_map(|group| &mut group.rollouts) {
        rollout.reward = 0.25;
    }
    // Kimi's loss and DPPO's pull back to the old policy, and rounding is a distance from it.
    for loss in Loss::ALL.into_iter().filter(|loss| !matches!(loss, Loss::Kimi | Loss::DppoTv)) {
        // Those that do not compare find a signal in every reward.
        let compares = |of: &Advantage| of.compares_group() || *of == Advantage::ReinforcePlusPlus;
        for advantage in Advantage::ALL.into_iter().filter(compares) {
            let algorithm = Algorithm { loss, advantage, entropy: 0.0, ..Algorithm::default() };
            let trained = step(&mut TorchTrainer::new(), &base, &batch, &algorithm).unwrap();
            assert_eq!(trained.metrics["grad_norm"], 0.0);
            assert_eq!(trained.metrics["groups_without_signal"], 1.0);
            assert!(trained.files["model.safetensors"] == base.files["model.safetensors"]);
        }
    }
}

#[test]
fn a_step_without_a_finite_result_is_an_error_and_leaves_no_trace() {
    let base = initial(1);
    let batch = sampled_batch(&base, 2, 4, SHAPE, 1);
    let mut trainer = TorchTrainer::new();
    let good = step(&mut trainer, &base, &batch, &Algorithm::default()).unwrap();
    // Finite weights whose product is not.
    let huge = crate::files::spoilt(&base, "lm_head.weight", 3e38);
    let huge = crate::files::spoilt(&huge, "model.norm.weight", 3e38);
    // The state in memory is identified by the hash in the manifest.
    let huge = version(0, &Trained { files: huge.files, metrics: BTreeMap::new() });
    let error = step(&mut trainer, &huge, &batch, &Algorithm::default()).unwrap_err();
    assert!(matches!(&error, PolicyError::Impossible(why) if why.contains("norm=")), "{error:?}");
    assert!(step(&mut trainer, &base, &batch, &Algorithm::default()).unwrap() == good);
}

#[test]
fn a_batch_that_cannot_be_trained_on_says_why() {
    let base = initial(1);
    let good = sampled_batch(&base, 2, 2, SHAPE, 1);
    let refused = |change: &dyn Fn(&mut BatchRollout), why: &str| {
        let mut batch = good.clone();
        change(&mut batch.groups[1].rollouts[0]);
        let error = step(&mut TorchTrainer::new(), &base, &batch, &Algorithm::default()).unwrap_err();
        assert!(matches!(&error, PolicyError::Impossible(said) if said.contains(why)), "{error:?}");
    };
    refused(&|r| r.tokens[3] = 32, "token=32");
    refused(&|r| r.tokens = vec![1; 300], "tokens=300");
    refused(&|r| r.reward = f64::NAN, "reward=NaN");
    refused(&|r| r.turns[0].logprobs[1] = f32::NEG_INFINITY, "-inf");
    refused(&|r| r.turns[0].at = 0, "turn");
    refused(&|r| r.turns[1].at = r.turns[0].at + 1, "turn");
    refused(&|r| r.turns[2].logprobs.extend([-1.0; 9]), "turn");
    let wrong = Batch { base: PolicyVersion(1), ..good.clone() };
    assert!(step(&mut TorchTrainer::new(), &base, &wrong, &Algorithm::default()).is_err());
    let mut empty = good.clone();
    empty.groups.clear();
    assert!(step(&mut TorchTrainer::new(), &base, &empty, &Algorithm::default()).is_err());
}

/// The mean reward of each of so many steps, where the reward is the share of token 3 among the
/// sampled ones.
pub(crate) fn rewards_of(algorithm: &Algorithm, steps: u64) -> Vec<f64> {
    let mut trainer = TorchTrainer::new();
    let mut current = initial(1);
    let mut shares = Vec::new();
    for number in 0..steps {
        let mut batch = sampled_batch(&current, 4, 8, SHAPE, number);
        let mut mean = 0.0;
        for rollout in batch.groups.iter_mut().flat_map(|group| &mut group.rollouts) {
            for turn in &mut rollout.turns {
                let sampled = turn.at..turn.at + turn.logprobs.len() as u32;
                let hits = sampled.filter(|&at| rollout.tokens[at as usize] == 3).count();
                turn.reward = hits as f64 / 6.0;
            }
            rollout.reward = rollout.turns.iter().map(|turn| turn.reward).sum();
            mean += rollout.reward / 32.0;
        }
        shares.push(mean);
        let trained = step(&mut trainer, &current, &batch, algorithm).unwrap();
        assert!((trained.metrics["reward"] - mean).abs() < 1e-12);
        current = version(number + 1, &trained);
    }
    shares
}

#[test]
fn steps_raise_what_is_rewarded() {
    let shares = rewards_of(&Algorithm { learning_rate: 1e-2, ..Algorithm::default() }, 12);
    assert!(shares[0] < 0.2 && shares[11] > 0.8, "{shares:?}");
}
