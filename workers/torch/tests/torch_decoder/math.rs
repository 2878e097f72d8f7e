//! The formulas against `oracle/oracle.py`, in f64.

use std::collections::BTreeMap;

use millrace_schemas::submit::KlEstimator;
use millrace_torch::math::advantage::grpo::{dr_grpo, grpo};
use millrace_torch::math::aggregate::add_up;
use millrace_torch::math::drift;
use millrace_torch::math::entropy::entropy;
use millrace_torch::math::kl::kl;
use millrace_torch::math::policy_loss::policy_gradient::policy_gradient;
use millrace_torch::math::policy_loss::ppo_clip::{Bounds, ppo_clip};
use millrace_torch::math::ratio::log_ratio;
use serde::Deserialize;
use tch::{Kind, Tensor};

#[derive(Deserialize)]
struct Golden {
    log_p: Vec<f64>,
    log_old: Vec<f64>,
    advantage: Vec<f64>,
    mask: Vec<f64>,
    low: f64,
    high: f64,
    ppo: Vec<f64>,
    ppo_clipped: Vec<bool>,
    ppo_mean: f64,
    ppo_grad: Vec<f64>,
    pg: Vec<f64>,
    pg_grad: Vec<f64>,
    logits: Vec<Vec<f64>>,
    entropy: Vec<f64>,
    entropy_grad: Vec<Vec<f64>>,
    drift: BTreeMap<String, f64>,
    kl: BTreeMap<String, GoldenKl>,
    rewards: Vec<f64>,
    grpo: Vec<f64>,
    dr_grpo: Vec<f64>,
}

#[derive(Deserialize)]
struct GoldenKl {
    value: Vec<f64>,
    grad: Vec<f64>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../oracle/losses.json")).unwrap()
}

pub(crate) fn assert_close(what: &str, ours: &[f64], theirs: &[f64]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (a, b) in ours.iter().zip(theirs) {
        assert!((a - b).abs() <= 1e-12 * b.abs().max(1.0), "{what}: {a} instead of {b}");
    }
}

pub(crate) fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.reshape([-1]).to_kind(Kind::Double)).unwrap()
}

fn token_mean(per_token: &Tensor, mask: &Tensor, tokens: f64) -> Tensor {
    add_up(per_token, mask, &(mask.ones_like() / tokens))
}

#[test]
fn advantages_are_the_oracles() {
    let golden = golden();
    assert_close("grpo", &grpo(&golden.rewards), &golden.grpo);
    assert_close("dr_grpo", &dr_grpo(&golden.rewards), &golden.dr_grpo);
}

#[test]
fn losses_and_their_gradients_are_the_oracles() {
    let golden = golden();
    let log_p = Tensor::from_slice(&golden.log_p).set_requires_grad(true);
    let (old, advantage) = (Tensor::from_slice(&golden.log_old), Tensor::from_slice(&golden.advantage));
    let mask = Tensor::from_slice(&golden.mask);
    let tokens: f64 = golden.mask.iter().sum();

    let bounds = Bounds { low: golden.low, high: golden.high, dual: 0.0 };
    let ppo = ppo_clip(&log_ratio(&log_p, &old), &advantage, bounds);
    assert_close("ppo", &numbers(&ppo.loss), &golden.ppo);
    assert_eq!(Vec::<bool>::try_from(&ppo.clipped).unwrap(), golden.ppo_clipped);
    let mean = token_mean(&ppo.loss, &mask, tokens);
    assert_close("ppo mean", &numbers(&mean), &[golden.ppo_mean]);
    let gradient = Tensor::run_backward(&[&mean], &[&log_p], false, false).remove(0);
    assert_close("ppo gradient", &numbers(&gradient), &golden.ppo_grad);

    let pg = policy_gradient(&log_p, &advantage);
    assert_close("pg", &numbers(&pg.loss), &golden.pg);
    let mean = token_mean(&pg.loss, &mask, tokens);
    let gradient = Tensor::run_backward(&[&mean], &[&log_p], false, false).remove(0);
    assert_close("pg gradient", &numbers(&gradient), &golden.pg_grad);
}

#[test]
fn entropy_and_its_gradient_are_the_oracles() {
    let golden = golden();
    let logits = Tensor::from_slice(&golden.logits.concat()).view([4, -1]).set_requires_grad(true);
    let ours = entropy(&logits.log_softmax(-1, Kind::Double));
    assert_close("entropy", &numbers(&ours), &golden.entropy);
    let gradient = Tensor::run_backward(&[ours.sum(Kind::Double)], &[&logits], false, false).remove(0);
    assert_close("entropy gradient", &numbers(&gradient), &golden.entropy_grad.concat());
}

#[test]
fn drift_is_the_oracles() {
    let golden = golden();
    let [log_p, old, mask] = [&golden.log_p, &golden.log_old, &golden.mask].map(|v| Tensor::from_slice(v));
    let mut ours = BTreeMap::new();
    drift::report("", &numbers(&drift::sums(&log_p, &old, &mask)), golden.mask.iter().sum(), &mut ours);
    assert_eq!(ours.keys().collect::<Vec<_>>(), golden.drift.keys().collect::<Vec<_>>());
    let values = |map: &BTreeMap<String, f64>| map.values().copied().collect::<Vec<_>>();
    assert_close("drift", &values(&ours), &values(&golden.drift));
}

#[test]
fn distances_from_the_reference_and_their_gradients_are_the_oracles() {
    let golden = golden();
    let tokens: f64 = golden.mask.iter().sum();
    let [reference, mask] = [&golden.log_old, &golden.mask].map(|numbers| Tensor::from_slice(numbers));
    for (name, estimator) in [("k1", KlEstimator::K1), ("k2", KlEstimator::K2), ("k3", KlEstimator::K3)] {
        let log_p = Tensor::from_slice(&golden.log_p).set_requires_grad(true);
        let ours = kl(estimator, &log_p, &reference);
        assert_close(name, &numbers(&ours), &golden.kl[name].value);
        let mean = token_mean(&ours, &mask, tokens);
        let gradient = Tensor::run_backward(&[&mean], &[&log_p], false, false).remove(0);
        assert_close(name, &numbers(&gradient), &golden.kl[name].grad);
    }
}

#[test]
fn a_log_ratio_that_runs_away_stays_finite() {
    let log_p = Tensor::from_slice(&[-0.1, -900.0]).set_requires_grad(true);
    let old = Tensor::from_slice(&[-900.0, -0.1]);
    let bounds = Bounds { low: 0.2, high: 0.2, dual: 0.0 };
    let loss = ppo_clip(&log_ratio(&log_p, &old), &Tensor::from_slice(&[-1.0, 1.0]), bounds).loss;
    assert_close("loss", &numbers(&loss), &[20.0_f64.exp(), -(-20.0_f64).exp()]);
    let gradient = Tensor::run_backward(&[loss.sum(Kind::Double)], &[&log_p], false, false).remove(0);
    assert_eq!(numbers(&gradient), [0.0, 0.0]);
}
