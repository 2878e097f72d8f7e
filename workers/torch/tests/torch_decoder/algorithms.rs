//! Every loss with every correction and aggregation, and every advantage, against
//! `oracle/algorithms.py`, in f64.

use millrace_schemas::submit::{
    Advantage, Aggregation, Algorithm, Correction, CorrectionWeight, Loss, Parameters, RatioLevel, Rejection,
    RewardNorm,
};
use millrace_torch::math::advantage::normalise::{Moments, normalise, whiten};
use millrace_torch::math::advantage::{Scored, ScoredTurn, advantages};
use millrace_torch::math::aggregate::{Whole, add_up};
use millrace_torch::math::correction::correct;
use millrace_torch::math::policy_loss::{Span, Tokens, policy_loss};
use millrace_torch::math::spans::Spans;
use serde::Deserialize;
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use crate::math::{assert_close, numbers};

/// What `oracle/algorithms.py` computed.
#[derive(Deserialize)]
pub(crate) struct Golden {
    losses: GoldenLosses,
    advantages: GoldenAdvantages,
    pub(crate) critics: Value,
    pub(crate) steps: Value,
}

#[derive(Deserialize)]
struct GoldenLosses {
    /// Sampled tokens of each turn of each rollout.
    turns: Vec<Vec<usize>>,
    advantages: Vec<f64>,
    log_p: Vec<f64>,
    log_old: Vec<f64>,
    log_m: Vec<f64>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    algorithm: Algorithm,
    loss: f64,
    gradient: Vec<f64>,
    kept: Vec<f64>,
}

#[derive(Deserialize)]
struct GoldenAdvantages {
    /// Reward and state of each turn of each rollout of each group.
    groups: Vec<Vec<Vec<(f64, u32)>>>,
    parameters: Parameters,
    values: std::collections::BTreeMap<String, Vec<Vec<Vec<f64>>>>,
    norms: GoldenNorms,
}

#[derive(Deserialize)]
struct GoldenNorms {
    /// All rewards of earlier batches.
    before: Vec<f64>,
    cases: Vec<NormCase>,
    tokens: Vec<f64>,
    /// The same, whitened.
    white: Vec<f64>,
}

#[derive(Deserialize)]
struct NormCase {
    norm: RewardNorm,
    advantage: Advantage,
    values: Vec<Vec<Vec<f64>>>,
}

impl Golden {
    pub(crate) fn read() -> Self {
        serde_json::from_str(include_str!("../oracle/algorithms.json")).unwrap()
    }
}

/// A batch as losses see it. All numbers are of sampled tokens, rollout by rollout.
#[derive(Clone)]
struct Tried {
    turns: Vec<Vec<usize>>,
    log_p: Vec<f64>,
    log_old: Vec<f64>,
    log_m: Vec<f64>,
    advantage: Vec<f64>,
    /// 0 for tokens that are masked, even if the correction keeps them.
    mask: Vec<f64>,
}

/// Its loss and gradients.
struct Came {
    loss: f64,
    gradient: Vec<f64>,
    kept: Vec<f64>,
}

impl Tried {
    fn of(golden: &GoldenLosses) -> Self {
        let lengths = golden.turns.iter().map(|turns| turns.iter().sum());
        let spread = lengths.zip(&golden.advantages).flat_map(|(n, a)| std::iter::repeat_n(*a, n));
        Self {
            turns: golden.turns.clone(),
            log_p: golden.log_p.clone(),
            log_old: golden.log_old.clone(),
            log_m: golden.log_m.clone(),
            advantage: spread.collect(),
            mask: vec![1.0; golden.log_p.len()],
        }
    }

    fn lengths(&self) -> Vec<usize> {
        self.turns.iter().map(|turns| turns.iter().sum()).collect()
    }

    /// Weights and masks of all tokens by the correction.
    fn corrected(&self, correction: &Correction) -> (Vec<f64>, Vec<f64>) {
        let (mut weights, mut kept, mut from) = (Vec::new(), Vec::new(), 0);
        for turns in &self.turns {
            let to = from + turns.iter().sum::<usize>();
            let pairs = self.log_old[from..to].iter().zip(&self.log_m[from..to]);
            let log_ratios: Vec<f64> = pairs.map(|(old, m)| old - m).collect();
            let corrected = correct(correction, &log_ratios, turns);
            weights.extend(corrected.weights);
            kept.extend(corrected.kept.into_iter().map(|kept| f64::from(u8::from(kept))));
            from = to;
        }
        (weights, kept)
    }

    /// The loss as a step puts it together.
    fn come(&self, algorithm: &Algorithm) -> Came {
        let (weights, kept) = self.corrected(&algorithm.correction);
        let lengths = self.lengths();
        let whole = Whole::of(lengths.iter().copied());
        let constant = algorithm.parameters.response_tokens;
        let share = |&n: &usize| std::iter::repeat_n(whole.share(algorithm.aggregation, constant, n), n);
        let shares: Vec<f64> = lengths.iter().flat_map(share).collect();
        let log_p = Tensor::from_slice(&self.log_p).set_requires_grad(true);
        let [log_old, log_m, advantage, weights, mask, shares] =
            [&self.log_old, &self.log_m, &self.advantage, &weights, &self.mask, &shares]
                .map(|of| Tensor::from_slice(of));
        let spans = match algorithm.ratio_level() {
            RatioLevel::Token => None,
            RatioLevel::Turn => Some(Spans::new(&self.turns.concat(), Device::Cpu)),
            RatioLevel::Rollout => Some(Spans::new(&lengths, Device::Cpu)),
        };
        let spans = spans.map(|of| (of.means(&(log_p.detach() - &log_old)), of.lengths()));
        let tokens = Tokens {
            log_p: &log_p,
            log_old: &log_old,
            log_m: &log_m,
            advantage: &advantage,
            span: spans.as_ref().map(|(mean_log_ratio, length)| Span { mean_log_ratio, length }),
        };
        let per_token = policy_loss(algorithm, &tokens).loss * weights;
        let loss = add_up(&per_token, &(Tensor::from_slice(&kept) * mask), &shares);
        let gradient = Tensor::run_backward(&[&loss], &[&log_p], false, false).remove(0);
        Came { loss: numbers(&loss)[0], gradient: numbers(&gradient), kept }
    }
}

#[test]
fn losses_corrections_and_aggregations_are_the_oracles() {
    let golden = Golden::read().losses;
    let tried = Tried::of(&golden);
    assert!(golden.cases.len() > 200, "only {} cases", golden.cases.len());
    for case in &golden.cases {
        let ours = tried.come(&case.algorithm);
        let of = format!("{:?}", case.algorithm);
        assert_close(&of, &[ours.loss], &[case.loss]);
        assert_close(&of, &ours.gradient, &case.gradient);
        assert_eq!(ours.kept, case.kept, "{of}");
    }
}

/// A rollout of turns with these rewards and states.
fn scored(turns: &[(f64, u32)]) -> Scored<'_> {
    let turn = |at: usize| ScoredTurn { reward: turns[at].0, state: std::slice::from_ref(&turns[at].1) };
    let reward = turns.iter().map(|(reward, _)| reward).sum();
    Scored { reward, turns: (0..turns.len()).map(turn).collect() }
}

#[test]
fn advantages_of_whole_batches_are_the_oracles() {
    let golden = Golden::read().advantages;
    let groups: Vec<Vec<Scored<'_>>> =
        golden.groups.iter().map(|group| group.iter().map(|turns| scored(turns)).collect()).collect();
    assert_eq!(golden.values.len(), 10);
    for (name, theirs) in &golden.values {
        let kind: Advantage = serde_json::from_value(Value::from(name.as_str())).unwrap();
        let ours = advantages(kind, &golden.parameters, &groups);
        let flat = |of: &[Vec<Vec<f64>>]| of.concat().concat();
        assert_close(name, &flat(&ours), &flat(theirs));
    }
}

#[test]
fn normalised_rewards_and_whitened_advantages_are_the_oracles() {
    let golden = Golden::read().advantages;
    assert!(golden.norms.cases.len() > 10);
    for case in &golden.norms.cases {
        let mut groups: Vec<Vec<Scored<'_>>> =
            golden.groups.iter().map(|group| group.iter().map(|turns| scored(turns)).collect()).collect();
        // As two batches, and what a manifest holds of them.
        let (first, second) = golden.norms.before.split_at(3);
        let before = Moments::of(first.iter().copied()).with(Moments::of(second.iter().copied()));
        let before = Moments::read(&before.metrics().collect());
        let running = normalise(case.norm, &mut groups, before);
        let name = format!("{:?} {:?}", case.advantage, case.norm);
        assert_eq!(running.is_some(), format!("{:?}", case.norm).contains("Running"), "{name}");
        let ours = advantages(case.advantage, &golden.parameters, &groups);
        let flat = |of: &[Vec<Vec<f64>>]| of.concat().concat();
        assert_close(&name, &flat(&ours), &flat(&case.values));
    }
    let mut tokens: Vec<f32> = golden.norms.tokens.iter().map(|x| *x as f32).collect();
    whiten(tokens.iter_mut());
    let off = tokens.iter().zip(&golden.norms.white).map(|(a, b)| (f64::from(*a) - b).abs());
    assert!(off.fold(0.0, f64::max) < 1e-6, "{tokens:?} is not {:?}", golden.norms.white);
    let mut alike = [0.3_f32; 4];
    whiten(alike.iter_mut());
    assert_eq!(alike, [0.0; 4]);
}

/// Every loss with every ratio that it has and every aggregation.
fn every_algorithm() -> impl Iterator<Item = Algorithm> {
    let aggregations =
        [Aggregation::TokenMean, Aggregation::SeqMeanTokenMean, Aggregation::SeqMeanTokenSumNorm];
    let losses =
        Loss::ALL.into_iter().flat_map(|loss| loss.ratio_levels().iter().map(move |level| (loss, *level)));
    losses.flat_map(move |(loss, level)| {
        aggregations.map(|aggregation| {
            let parameters = Parameters { response_tokens: 7, ..Parameters::default() };
            let (ratio, clip_low, clip_high) = (Some(level), 0.9, 9.0);
            Algorithm { loss, ratio, aggregation, parameters, clip_low, clip_high, ..Algorithm::default() }
        })
    })
}

#[test]
fn masks_multiply() {
    // Masked tokens change neither the loss nor any gradient, however large they are, with any loss
    // and aggregation.
    let tried = Tried::of(&Golden::read().losses);
    for algorithm in every_algorithm() {
        let of = format!("{:?} {:?}", algorithm.loss, algorithm.aggregation);
        let whole = tried.come(&algorithm);
        let mut masked = tried.clone();
        // A token, and a whole rollout; its ratio is its own, as that of its rollout in a loss of
        // whole ones is not.
        let own = if algorithm.ratio_level() == RatioLevel::Token { 2..3 } else { 9..15 };
        masked.mask[own.clone()].fill(0.0);
        let before = masked.come(&algorithm);
        for at in own.clone() {
            masked.advantage[at] = 1e30;
            masked.log_p[at] = -300.0;
            masked.log_m[at] = -0.1;
        }
        let after = masked.come(&algorithm);
        assert_eq!((before.loss, &before.gradient), (after.loss, &after.gradient), "{of}");
        assert!(own.clone().all(|at| after.gradient[at] == 0.0), "{of}: {:?}", after.gradient);
        // The other tokens count as before: so does the denominator.
        let mut others = (0..tried.log_p.len()).filter(|at| !own.contains(at));
        assert!(others.clone().all(|at| after.gradient[at] == whole.gradient[at]), "{of}");
        assert!(others.any(|at| after.gradient[at] != 0.0), "{of}");
    }
}

#[test]
fn what_is_rejected_leaves_the_others_as_they_are() {
    let tried = Tried::of(&Golden::read().losses);
    let rejects =
        Correction { reject: Rejection::Sequence, low: Some(0.6), high: Some(1.8), ..Correction::default() };
    for algorithm in every_algorithm() {
        let whole = tried.come(&algorithm);
        let left = tried.come(&Algorithm { correction: rejects, ..algorithm.clone() });
        assert!(left.kept.contains(&0.0) && left.kept.contains(&1.0));
        for (at, kept) in left.kept.iter().enumerate() {
            let expected = if *kept == 1.0 { whole.gradient[at] } else { 0.0 };
            assert_eq!(left.gradient[at], expected, "{algorithm:?}");
        }
    }
}

/// The gradient where all recorded log-probabilities are moved by so much.
fn gradient_when_moved(tried: &Tried, algorithm: &Algorithm, by: f64) -> Vec<f64> {
    let mut moved = tried.clone();
    moved.log_m.iter_mut().for_each(|log_m| *log_m += by);
    if !algorithm.correction.is_off() {
        return moved.come(algorithm).gradient;
    }
    // The old policy is the behaviour policy.
    moved.log_old.clone_from(&moved.log_m);
    moved.come(algorithm).gradient
}

#[test]
fn sees_old_is_whether_a_loss_depends_on_the_old_policy() {
    let tried = Tried::of(&Golden::read().losses);
    let mut moved = tried.clone();
    moved.log_old.iter_mut().for_each(|log_old| *log_old += 0.4);
    for algorithm in every_algorithm() {
        let [near, far] = [&tried, &moved].map(|of| of.come(&algorithm).gradient);
        let differs = near.iter().zip(&far).any(|(a, b)| (a - b).abs() > 1e-6);
        assert_eq!(differs, algorithm.loss.sees_old(), "{algorithm:?}");
    }
}

#[test]
fn off_policy_terms_see_the_behaviour_policy() {
    let tried = Tried::of(&Golden::read().losses);
    let differs = |algorithm: &Algorithm| {
        let [near, far] = [0.0, 0.4].map(|by| gradient_when_moved(&tried, algorithm, by));
        near.iter().zip(&far).any(|(a, b)| (a - b).abs() > 1e-3)
    };
    for loss in Loss::ALL {
        let algorithm = Algorithm { loss, clip_high: 0.5, ..Algorithm::default() };
        // The plain gradient has no ratio.
        assert_eq!(differs(&algorithm), loss != Loss::PolicyGradient, "{loss:?}");
    }
    let none = Correction::default();
    for correction in [
        Correction { weight: CorrectionWeight::Token, ..none },
        Correction { weight: CorrectionWeight::Turn, ..none },
        Correction { weight: CorrectionWeight::Sequence, ..none },
        Correction { reject: Rejection::Token, low: Some(0.6), high: Some(1.5), ..none },
        Correction { reject: Rejection::Sequence, ..none },
        Correction { reject: Rejection::Turn, low: Some(0.7), high: Some(1.4), ..none },
        Correction { reject: Rejection::Geometric, low: Some(0.8), high: Some(1.2), ..none },
        Correction { veto: 0.4, ..none },
    ] {
        let algorithm = Algorithm { loss: Loss::PolicyGradient, correction, ..Algorithm::default() };
        assert!(differs(&algorithm), "{correction:?}");
    }
}

#[test]
fn shares_add_up_whatever_the_split() {
    let lengths = [3, 0, 5, 2];
    let whole = Whole::of(lengths.into_iter());
    assert_eq!((whole.tokens, whole.rollouts), (10, 3));
    let sum =
        |aggregation| -> f64 { lengths.iter().map(|&n| whole.share(aggregation, 4, n) * n as f64).sum() };
    assert!((sum(Aggregation::TokenMean) - 1.0).abs() < 1e-15);
    assert!((sum(Aggregation::SeqMeanTokenMean) - 1.0).abs() < 1e-15);
    assert!((sum(Aggregation::SeqMeanTokenSumNorm) - 10.0 / 12.0).abs() < 1e-15);
    let masked = add_up(
        &Tensor::from_slice(&[1.0, f64::MAX, 2.0]),
        &Tensor::from_slice(&[1.0, 0.0, 1.0]),
        &Tensor::from_slice(&[0.5, 0.5, 0.25]),
    );
    assert_eq!((numbers(&masked), masked.kind()), (vec![1.0], Kind::Double));
}
