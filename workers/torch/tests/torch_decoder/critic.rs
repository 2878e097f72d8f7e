//! The critic: its advantages and its loss against the oracle; where it is kept; what it learns;
//! and that no gang and no restart changes it.

use millrace_policy::{CRITIC_FILE, LoadedVersion, MODEL_FILE, Trained};
use millrace_schemas::submit::{Advantage, Algorithm, Critic};
use millrace_torch::TorchTrainer;
use millrace_torch::math::advantage::gae::{gae, token_rewards};
use millrace_torch::math::value_loss::value_loss;
use safetensors::SafeTensors;
use serde::Deserialize;
use tch::Tensor;

use crate::algorithm_steps::{CRITIC, weights};
use crate::algorithms::Golden;
use crate::math::{assert_close, numbers};
use crate::step::{SHAPE, once};
use crate::support::{Shape, initial, sampled_batch, step, uneven, version};

/// What `oracle/algorithms.py` computed of critics.
#[derive(Deserialize)]
struct Critics {
    rewards: Vec<f64>,
    values: Vec<f64>,
    cases: Vec<Gae>,
    now: Vec<f64>,
    returns: Vec<f64>,
    losses: Vec<ValueLoss>,
}

#[derive(Deserialize)]
struct Gae {
    discount: f64,
    lambda: f64,
    advantages: Vec<f64>,
}

#[derive(Deserialize)]
struct ValueLoss {
    clip: f64,
    loss: Vec<f64>,
    gradient: Vec<f64>,
}

#[test]
fn advantages_by_tokens_and_the_critics_loss_are_the_oracles() {
    let golden: Critics = serde_json::from_value(Golden::read().critics).unwrap();
    for case in &golden.cases {
        let ours = gae(case.discount, case.lambda, &golden.rewards, &golden.values);
        assert_close("advantages", &ours, &case.advantages);
    }
    let [old, returns] = [&golden.values, &golden.returns].map(|of| Tensor::from_slice(of));
    for case in &golden.losses {
        let now = Tensor::from_slice(&golden.now).set_requires_grad(true);
        let loss = value_loss(&now, &old, &returns, case.clip);
        assert_close("value loss", &numbers(&loss), &case.loss);
        loss.sum(tch::Kind::Double).backward();
        assert_close("its gradient", &numbers(&now.grad()), &case.gradient);
    }
}

#[test]
fn a_turn_is_rewarded_with_its_last_token() {
    assert_eq!(token_rewards(&[2, 1, 3], &[0.5, 0.25, 1.0]), [0.0, 0.5, 0.25, 0.0, 0.0, 1.0]);
    // Turns without a token: nothing of the reward is lost.
    assert_eq!(token_rewards(&[0, 2, 0], &[0.5, 0.25, 1.0]), [0.5, 1.25]);
    assert_eq!(token_rewards(&[0], &[0.5]), [0.0; 0]);
}

fn ppo() -> Algorithm {
    Algorithm { advantage: Advantage::Gae, minibatches: 2, ..once() }
}

#[test]
fn a_critic_is_a_file_of_its_own_that_only_training_reads() {
    let base = initial(1);
    let batch = sampled_batch(&base, 2, 4, SHAPE, 1);
    let trained = step(&mut TorchTrainer::new(), &base, &batch, &ppo()).unwrap();
    let tensors = |trained: &Trained, file: &str| {
        let file = SafeTensors::deserialize(&trained.files[file]).unwrap();
        let mut names: Vec<String> = file.names().into_iter().map(|name| name.to_owned()).collect();
        names.sort();
        names
    };
    let plain = step(&mut TorchTrainer::new(), &base, &batch, &once()).unwrap();
    assert_eq!(tensors(&trained, MODEL_FILE), tensors(&plain, MODEL_FILE));
    assert_eq!(tensors(&trained, CRITIC_FILE), [CRITIC]);
    assert!(!plain.files.contains_key(CRITIC_FILE));
    // Values of 0 explain nothing.
    assert_eq!(trained.metrics["value"], 0.0);
    assert!(trained.metrics["value_loss"] > 0.0 && !plain.metrics.contains_key("value_loss"));
    // A later version without its critic is refused, and not continued with values of 0.
    let mut lost = version(1, &trained);
    lost.files.remove(CRITIC_FILE);
    lost.manifest.files.retain(|file| file.name != CRITIC_FILE);
    let mut batch = batch.clone();
    batch.base = lost.version;
    let refused = step(&mut TorchTrainer::new(), &lost, &batch, &ppo()).unwrap_err();
    assert!(refused.to_string().contains(CRITIC_FILE), "{refused}");
}

#[test]
fn a_critic_continues_from_its_file_bit_for_bit() {
    let base = initial(1);
    let first = sampled_batch(&base, 2, 4, SHAPE, 1);
    let two = |between: &dyn Fn(TorchTrainer) -> TorchTrainer| {
        let mut trainer = TorchTrainer::new();
        let made = version(1, &step(&mut trainer, &base, &first, &ppo()).unwrap());
        let mut batch = sampled_batch(&made, 2, 4, SHAPE, 2);
        batch.base = made.version;
        step(&mut between(trainer), &made, &batch, &ppo()).unwrap()
    };
    let (kept, restarted) = (two(&|trainer| trainer), two(&|_| TorchTrainer::new()));
    assert!(weights(&kept, CRITIC).iter().any(|x| *x != 0.0));
    assert!(kept == restarted);
}

#[test]
fn a_critic_learns_the_returns() {
    // Each turn is one token, rewarded by the observation before it: a critic can predict that, and
    // a policy cannot change it.
    let shape = Shape { new: 1, ..SHAPE };
    let critic = Critic { discount: 0.0, coefficient: 2.0, clip: 0.0, ..Critic::default() };
    let algorithm = Algorithm { learning_rate: 1e-2, epochs: 4, critic, ..ppo() };
    let mut trainer = TorchTrainer::new();
    let mut current: LoadedVersion = initial(1);
    let mut foreseen = Vec::new();
    for number in 0..10 {
        let mut batch = sampled_batch(&current, 4, 8, shape, number);
        for rollout in batch.groups.iter_mut().flat_map(|group| &mut group.rollouts) {
            for turn in &mut rollout.turns {
                turn.reward = f64::from(u8::from(rollout.tokens[turn.at as usize - 1] < 16));
            }
            rollout.reward = rollout.turns.iter().map(|turn| turn.reward).sum();
        }
        let trained = step(&mut trainer, &current, &batch, &algorithm).unwrap();
        foreseen.push(trained.metrics["explained_variance"]);
        current = version(number + 1, &trained);
    }
    assert!(foreseen[0].abs() < 1e-6 && foreseen[9] > 0.5, "{foreseen:?}");
}

#[test]
fn a_rollout_without_a_sampled_token_has_no_part() {
    let base = initial(1);
    let mut batch = uneven(&sampled_batch(&base, 2, 4, SHAPE, 1), 0.2);
    let algorithm = Algorithm { minibatches: 1, ..ppo() };
    let mut rollout = batch.groups[0].rollouts.pop().unwrap();
    let expected = step(&mut TorchTrainer::new(), &base, &batch, &algorithm).unwrap();
    rollout.turns.clear();
    rollout.tokens.truncate(3);
    batch.groups[0].rollouts.push(rollout);
    let made = step(&mut TorchTrainer::new(), &base, &batch, &algorithm).unwrap();
    assert!(made.files[MODEL_FILE] == expected.files[MODEL_FILE]);
    assert!(made.files[CRITIC_FILE] == expected.files[CRITIC_FILE]);
}
