//! Steps with other losses, corrections and aggregations than the default: against the oracle, and
//! against themselves.

use std::collections::BTreeMap;

use millrace_policy::{CRITIC_FILE, LoadedVersion, MODEL_FILE, Trained};
use millrace_schemas::PolicyVersion;
use millrace_schemas::submit::{
    Advantage, Aggregation, Algorithm, Correction, CorrectionWeight, Kl, KlEstimator, KlPlace, KlTarget,
    Loss, NormOver, OldPolicy, Parameters, RatioLevel, Rejection, RewardNorm, Shaping,
};
use millrace_schemas::train_shard::Batch;
use millrace_torch::TorchTrainer;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::Deserialize;
use serde_json::{Map, Value};
use tch::Tensor;

use crate::algorithms::Golden;
use crate::forward::difference;
use crate::math::assert_close;
use crate::step::{Oracle, SHAPE, first_moment, once, rewards_of};
use crate::support::{initial, sampled_batch, step, step_near, uneven, version};

/// The critic's tensor.
pub(crate) const CRITIC: &str = "score.weight";

/// What `oracle/algorithms.py` computed of whole steps.
#[derive(Deserialize)]
struct Steps {
    settings: Map<String, Value>,
    /// What critics begin with.
    critic: Vec<f64>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    algorithm: Map<String, Value>,
    loss: f64,
    grad_norm: f64,
    rejected_share: f64,
    sequence_chi2: f64,
    value_loss: Option<f64>,
    /// The critic at the end.
    critic: Option<Vec<f64>>,
    /// Some of the weights at the end.
    weights: BTreeMap<String, Vec<f64>>,
}

/// The oracle's batch; each turn brings a tenth of its number, and half the reward is the goal.
fn oracle_batch(oracle: &Oracle) -> Batch {
    let mut batch = oracle.batch();
    for rollout in batch.groups.iter_mut().flat_map(|group| &mut group.rollouts) {
        rollout.success = rollout.reward >= 0.5;
        for (index, turn) in rollout.turns.iter_mut().enumerate() {
            turn.reward = 0.1 * (index + 1) as f64;
        }
    }
    batch
}

/// A tensor of `model.safetensors`, or the critic's.
pub(crate) fn weights(trained: &Trained, name: &str) -> Vec<f64> {
    let file = if name == CRITIC { CRITIC_FILE } else { MODEL_FILE };
    let file = SafeTensors::deserialize(&trained.files[file]).unwrap();
    let tensor = file.tensor(name).unwrap();
    let numbers = tensor.data().chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
    numbers.map(f64::from).collect()
}

/// The version with a critic.
fn with_critic(of: &Trained, critic: &[f64]) -> Trained {
    let numbers: Vec<u8> = critic.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![1, critic.len()], &numbers).unwrap();
    let file = safetensors::serialize([(CRITIC, view)], None).unwrap();
    let mut of = of.clone();
    of.files.insert(CRITIC_FILE.to_owned(), file.into());
    of
}

#[test]
fn whole_steps_of_other_algorithms_are_the_oracles() {
    let oracle = Oracle::read();
    let golden: Steps = serde_json::from_value(Golden::read().steps).unwrap();
    let base = version(0, &with_critic(&oracle.base(), &golden.critic));
    let reference = version(0, &oracle.base_times(1.1));
    for theirs in &golden.steps {
        let mut settings = theirs.algorithm.clone();
        settings.extend(golden.settings.clone());
        settings.insert("entropy".to_owned(), 0.0.into());
        let algorithm: Algorithm = serde_json::from_value(Value::Object(settings)).unwrap();
        let what = format!("{:?}", theirs.algorithm);
        let ours = step_near(Some(&reference), &base, &oracle_batch(&oracle), &algorithm).unwrap();
        for (name, value) in [
            ("loss", theirs.loss),
            ("grad_norm", theirs.grad_norm),
            ("rejected_share", theirs.rejected_share),
            ("sequence_chi2", theirs.sequence_chi2),
        ] {
            let off = (ours.metrics[name] - value).abs();
            assert!(off < 2e-5 * value.abs().max(0.05), "{what}: {name} off by {off} of {value}");
        }
        let value_loss = ours.metrics.get("value_loss").copied();
        assert_eq!(value_loss.is_some(), theirs.value_loss.is_some(), "{what}");
        assert_eq!(ours.files.contains_key(CRITIC_FILE), theirs.critic.is_some(), "{what}");
        if let (Some(ours), Some(theirs)) = (value_loss, theirs.value_loss) {
            assert!((ours - theirs).abs() < 2e-5 * theirs, "{what}: value_loss {ours} is not {theirs}");
        }
        let critic = theirs.critic.iter().map(|critic| (CRITIC, critic));
        let seen = theirs.weights.iter().map(|(name, weights)| (name.as_str(), weights));
        for (name, theirs) in seen.chain(critic) {
            let (ours, theirs) = (Tensor::from_slice(&weights(&ours, name)), Tensor::from_slice(theirs));
            let off = difference(&ours, &theirs) / algorithm.learning_rate;
            assert!(off < 5e-3, "{what}: {name} off by {off} of the learning rate");
        }
    }
}

/// Every aggregation, losses of whole rollouts and turns, and the corrections.
fn all_sorts() -> Vec<Algorithm> {
    let parameters = Parameters { response_tokens: 5, ..Parameters::default() };
    let plain = Algorithm { parameters, max_grad_norm: 1e9, ..once() };
    let rejects = Correction {
        weight: CorrectionWeight::Token,
        reject: Rejection::Turn,
        low: Some(0.8),
        high: Some(1.3),
        ..Correction::default()
    };
    let mut sorts = Vec::new();
    for aggregation in
        [Aggregation::TokenMean, Aggregation::SeqMeanTokenMean, Aggregation::SeqMeanTokenSumNorm]
    {
        for loss in [Loss::PpoClip, Loss::Gspo, Loss::Segment] {
            sorts.push(Algorithm { aggregation, loss, ..plain.clone() });
        }
        let old = OldPolicy::Proximal;
        sorts.push(Algorithm { aggregation, old, loss: Loss::Topr, correction: rejects, ..plain.clone() });
        sorts.push(Algorithm { aggregation, advantage: Advantage::Gae, ..plain.clone() });
    }
    sorts.push(ipa(&plain));
    sorts.push(Algorithm { loss: Loss::Kimi, ..plain.clone() });
    sorts.push(Algorithm { old: OldPolicy::Proximal, correction: ice_pop(), ..plain.clone() });
    sorts.push(Algorithm { whiten_advantages: true, advantage_clip: 0.7, ..lite_ppo(&plain) });
    sorts
}

/// IPA whole: chunk returns of rewards normalised over the group, TOPR with the ratios of turns,
/// their weights and masks, and what reached the goal imitated.
pub(crate) fn ipa(plain: &Algorithm) -> Algorithm {
    let correction = Correction {
        weight: CorrectionWeight::Turn,
        reject: Rejection::Turn,
        low: Some(0.0),
        high: Some(1.2),
        ..Correction::default()
    };
    Algorithm {
        loss: Loss::Topr,
        ratio: Some(RatioLevel::Turn),
        old: OldPolicy::Proximal,
        advantage: Advantage::Chunk,
        reward_norm: RewardNorm { mean: NormOver::Group, std: NormOver::Group },
        imitation: 0.1,
        correction,
        ..plain.clone()
    }
}

/// IcePop's correction.
pub(crate) fn ice_pop() -> Correction {
    let bounds = (Some(0.8), Some(1.3));
    let (weight, reject) = (CorrectionWeight::Token, Rejection::Token);
    Correction { weight, cap: 0.0, reject, low: bounds.0, high: bounds.1, ..Correction::default() }
}

pub(crate) fn lite_ppo(plain: &Algorithm) -> Algorithm {
    Algorithm { advantage: Advantage::LitePpo, ..plain.clone() }
}

#[test]
fn the_size_of_a_forward_does_not_change_the_loss() {
    let base = initial(1);
    let batch = uneven(&sampled_batch(&base, 4, 4, SHAPE, 1), 0.5);
    let mut seen: Vec<f64> = Vec::new();
    for algorithm in all_sorts() {
        let of = |tokens_per_microbatch| {
            let algorithm = Algorithm { tokens_per_microbatch, ..algorithm.clone() };
            step(&mut TorchTrainer::new(), &base, &batch, &algorithm).unwrap()
        };
        // All in one; a few each; each rollout alone, so that none can have attended to another.
        let whole = of(16_384);
        let scale = f64::try_from(first_moment(&whole).abs().max()).unwrap();
        let what = format!("{:?} {:?}", algorithm.loss, algorithm.aggregation);
        for tokens in [100, 1] {
            let split = of(tokens);
            for (name, value) in &whole.metrics {
                let off = (split.metrics[name] - value).abs();
                // Ratios of whole rollouts have the rounding of all their tokens.
                let most = if ["loss", "entropy", "grad_norm"].contains(&name.as_str()) { 0.1 } else { 5.0 };
                assert!(off < 1e-5 * value.abs().max(most), "{what}: {name} off by {off} of {value}");
            }
            let off = difference(&first_moment(&split), &first_moment(&whole)) / scale;
            assert!(off < 1e-5, "{what}: gradient off by {off}");
        }
        // The aggregations are not one and the same here.
        let norm = whole.metrics["grad_norm"];
        assert!(seen.iter().all(|other| (other - norm).abs() > 1e-4 * norm), "{what}: {norm} of {seen:?}");
        seen.push(norm);
    }
}

/// `batch` with all recorded log-probabilities moved.
fn moved(batch: &Batch, by: f32) -> Batch {
    let mut batch = batch.clone();
    let turns = batch.groups.iter_mut().flat_map(|g| &mut g.rollouts).flat_map(|r| &mut r.turns);
    turns.flat_map(|turn| &mut turn.logprobs).for_each(|logprob| *logprob += by);
    batch
}

#[test]
fn losses_see_the_behaviour_policy() {
    let base = initial(1);
    let batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    let of = |batch: &Batch, old| {
        let algorithm = Algorithm { old, epochs: 1, entropy: 0.0, ..Algorithm::default() };
        step(&mut TorchTrainer::new(), &base, batch, &algorithm).unwrap()
    };
    let far = moved(&batch, -0.5);
    // Against the behaviour policy: every ratio is e^0.5, so what is better than expected is
    // clipped.
    let (near, clipped) = (of(&batch, OldPolicy::Behaviour), of(&far, OldPolicy::Behaviour));
    assert!(clipped.metrics["clip_share"] > 0.3, "clip_share={}", clipped.metrics["clip_share"]);
    assert!(near.files["model.safetensors"] != clipped.files["model.safetensors"]);
    assert_eq!((clipped.metrics["old_logprob_abs"], clipped.metrics["old_is_behaviour"]), (0.0, 1.0));
    assert!((clipped.metrics["logprob_abs"] - 0.5).abs() < 1e-5);
    // Against the version trained on: what was recorded no longer matters for the update, only for
    // metrics.
    let (near, free) = (of(&batch, OldPolicy::Proximal), of(&far, OldPolicy::Proximal));
    assert_eq!((free.metrics["clip_share"], free.metrics["old_is_proximal"]), (0.0, 1.0));
    assert!(near.files["model.safetensors"] == free.files["model.safetensors"]);
    assert!((free.metrics["old_logprob_abs"] - 0.5).abs() < 1e-5);
}

#[test]
fn every_off_policy_loss_sees_the_behaviour_policy() {
    let base = initial(1);
    let batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    let differs = |algorithm: &Algorithm| {
        let [near, far] = [0.0, 0.6].map(|by| {
            let made = step(&mut TorchTrainer::new(), &base, &moved(&batch, by), algorithm).unwrap();
            first_moment(&made)
        });
        difference(&near, &far) > 1e-3 * f64::try_from(near.abs().max()).unwrap()
    };
    let plain = Algorithm { entropy: 0.0, max_grad_norm: 1e9, ..once() };
    for loss in [Loss::PpoClip, Loss::Cispo, Loss::Topr, Loss::Gspo, Loss::Segment, Loss::Kimi, Loss::DppoTv]
    {
        assert!(differs(&Algorithm { loss, ..plain.clone() }), "{loss:?}");
    }
    let corrections = [
        Correction { weight: CorrectionWeight::Token, ..Correction::default() },
        Correction { weight: CorrectionWeight::Sequence, cap: 0.0, ..Correction::default() },
        Correction { reject: Rejection::Geometric, ..Correction::default() },
        Correction { reject: Rejection::Turn, low: Some(0.9), high: Some(1.2), ..Correction::default() },
    ];
    for correction in corrections {
        let (loss, old) = (Loss::PolicyGradient, OldPolicy::Proximal);
        assert!(differs(&Algorithm { loss, old, correction, ..plain.clone() }), "{correction:?}");
    }
    // The policy gradient alone has no ratio, and the current policy itself has one of 1.
    for (loss, old) in [
        (Loss::PolicyGradient, OldPolicy::Behaviour),
        (Loss::PpoClip, OldPolicy::Current),
        (Loss::Topr, OldPolicy::Current),
    ] {
        assert!(!differs(&Algorithm { loss, old, ..plain.clone() }), "{loss:?} {old:?}");
    }
}

#[test]
fn the_old_policy_in_force_is_a_metric() {
    let base = initial(1);
    let batch = sampled_batch(&base, 2, 2, SHAPE, 1);
    for old in OldPolicy::ALL {
        let algorithm = Algorithm { old, ..once() };
        let metrics = step(&mut TorchTrainer::new(), &base, &batch, &algorithm).unwrap().metrics;
        for other in OldPolicy::ALL {
            assert_eq!(metrics[&format!("old_is_{}", other.name())], f64::from(u8::from(other == old)));
        }
    }
}

#[test]
fn shares_of_tokens_and_staleness_are_metrics() {
    let base = initial(1);
    let mut batch = uneven(&sampled_batch(&base, 2, 4, SHAPE, 1), 0.5);
    let base = version(3, &step(&mut TorchTrainer::new(), &base, &batch, &once()).unwrap());
    batch.base = base.version;
    for (index, rollout) in batch.groups.iter_mut().flat_map(|group| &mut group.rollouts).enumerate() {
        rollout.start_version = PolicyVersion(if index < 2 { 0 } else { 2 });
    }
    let correction = Correction { reject: Rejection::Geometric, ..Correction::default() };
    let algorithm = Algorithm { old: OldPolicy::Proximal, correction, ..once() };
    let metrics = step(&mut TorchTrainer::new(), &base, &batch, &algorithm);
    let metrics = metrics.unwrap().metrics;
    let of = |name: &str| metrics.get(name).copied();
    assert_eq!((of("staleness_share_3"), of("staleness_share_1")), (Some(0.25), Some(0.75)));
    assert_eq!((of("staleness_share_0"), of("staleness_share_2")), (None, None));
    let sampled = metrics["sampled_tokens"] / metrics["tokens"];
    assert!((metrics["masked_share"] - (1.0 - sampled)).abs() < 1e-12);
    assert!(metrics["rejected_share"] > 0.3 && metrics["rejected_share"] <= 1.0, "{metrics:?}");
    assert!(metrics["sequence_chi2"].is_finite() && metrics["old_sequence_chi2"].abs() > 1e-3);
}

#[test]
fn a_kl_penalty_in_the_reward_comes_before_the_advantages() {
    let (base, other) = (initial(1), initial(2));
    let batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    let of = |kl: Option<Kl>, shaping| {
        let algorithm = Algorithm { kl, shaping, entropy: 0.0, max_grad_norm: 1e9, ..once() };
        step_near(kl.map(|_| &other), &base, &batch, &algorithm).unwrap()
    };
    let kl = |coefficient, place| Some(Kl { place, ..Kl::of_loss(coefficient, KlEstimator::K3) });
    let none = Shaping::default();
    let plain = of(None, none);
    let rewarded = of(kl(0.5, KlPlace::Reward), none);
    assert_eq!(rewarded.metrics["kl_coefficient"], 0.5);
    // Six sampled tokens each: the mean reward falls by the mean KL divergence of a rollout.
    let fall = 0.5 * 6.0 * rewarded.metrics["kl"];
    let off = rewarded.metrics["reward"] - fall - rewarded.metrics["shaped_reward"];
    assert!(off.abs() < 1e-5 * fall && fall > 1e-3, "off by {off} of {fall}");
    assert!(difference(&first_moment(&plain), &first_moment(&rewarded)) > 1e-6);
    assert!(!plain.metrics.contains_key("shaped_reward"));
    // All rollouts are equally long, so the penalty favours none.
    let overlong = Shaping { overlong_tokens: 6, overlong_penalty: 2.0, ..none };
    let overlong = of(None, overlong);
    assert_close("reward", &[overlong.metrics["shaped_reward"]], &[plain.metrics["reward"] - 2.0]);
    assert!(difference(&first_moment(&plain), &first_moment(&overlong)) < 1e-6);
}

#[test]
fn the_kl_coefficient_continues_from_the_version_trained_on() {
    let (base, other) = (initial(1), initial(2));
    let batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    let adapt = Some(KlTarget { target: 1e-3, horizon: 160 });
    let kl = Kl { adapt, ..Kl::of_loss(0.5, KlEstimator::K3) };
    let algorithm = Algorithm { kl: Some(kl), ..once() };
    let of = |base: &LoadedVersion| step_near(Some(&other), base, &batch, &algorithm).unwrap().metrics;
    let first = of(&base);
    assert_eq!(first["kl_coefficient"], 0.5);
    // Far above the target: a fifth more, for 16 of 160 rollouts.
    let mut next = base.clone();
    next.manifest.metrics = first;
    assert_close("coefficient", &[of(&next)["kl_coefficient"]], &[0.5 * 1.02]);
    next.manifest.metrics.insert("kl".to_owned(), 0.0);
    assert_close("coefficient", &[of(&next)["kl_coefficient"]], &[0.5 * 0.98]);
}

#[test]
fn rollouts_that_were_cut_off_count_for_nothing_where_the_run_masks_them() {
    let base = initial(1);
    let batch = uneven(&sampled_batch(&base, 4, 4, SHAPE, 1), 0.5);
    let with = |cut: &[usize]| {
        let mut batch = batch.clone();
        let rollouts = batch.groups.iter_mut().flat_map(|group| &mut group.rollouts);
        rollouts.enumerate().for_each(|(index, rollout)| rollout.truncated = cut.contains(&index));
        batch
    };
    let of = |batch: &Batch, mask_truncated, advantage| {
        let algorithm = Algorithm { mask_truncated, advantage, max_grad_norm: 1e9, ..once() };
        step(&mut TorchTrainer::new(), &base, batch, &algorithm).unwrap()
    };
    let cut = with(&[0, 3, 9]);
    let masked = of(&cut, true, Advantage::Reinforce);
    assert_eq!(masked.metrics["truncated_share"], 3.0 / 16.0);
    // With an advantage that compares nothing it is as if they had not been there, in the
    // denominator too.
    let mut without = cut.clone();
    for group in &mut without.groups {
        group.rollouts.retain(|rollout| !rollout.truncated);
    }
    let expected = of(&without, false, Advantage::Reinforce);
    let scale = f64::try_from(first_moment(&expected).abs().max()).unwrap();
    assert!(difference(&first_moment(&masked), &first_moment(&expected)) < 1e-5 * scale);
    // Their rewards are compared: the others' advantages are those of before.
    let compared = of(&cut, true, Advantage::Grpo);
    let alone = of(&without, false, Advantage::Grpo);
    assert!(difference(&first_moment(&compared), &first_moment(&alone)) > 1e-3 * scale);
    // Not asked for, nothing is masked; and all masked is a step that moves nothing.
    assert!(of(&cut, false, Advantage::Grpo).files == of(&batch, false, Advantage::Grpo).files);
    let all = of(&with(&(0..16).collect::<Vec<_>>()), true, Advantage::Grpo);
    assert_eq!((all.metrics["grad_norm"], all.metrics["truncated_share"]), (0.0, 1.0));
}

#[test]
fn running_moments_continue_from_the_version_trained_on() {
    let base = initial(1);
    let batch = sampled_batch(&base, 4, 4, SHAPE, 1);
    let of = |base: &LoadedVersion, std| {
        let reward_norm = RewardNorm { mean: NormOver::Running, std };
        let algorithm = Algorithm { advantage: Advantage::Reinforce, reward_norm, ..once() };
        step(&mut TorchTrainer::new(), base, &batch, &algorithm).unwrap()
    };
    let first = of(&base, NormOver::Running);
    assert_eq!(first.metrics["reward_norm_count"], 16.0);
    assert_close("mean", &[first.metrics["reward_norm_mean"]], &[first.metrics["reward"]]);
    // The next step knows of those before by the manifest alone: a restarted trainer, or another
    // gang, has it too.
    let mut next = base.clone();
    next.manifest.metrics = first.metrics.clone();
    next.manifest.metrics.insert("reward_norm_mean".to_owned(), first.metrics["reward"] + 3.0);
    let second = of(&next, NormOver::Running);
    assert_eq!(second.metrics["reward_norm_count"], 32.0);
    assert_close("mean", &[second.metrics["reward_norm_mean"]], &[first.metrics["reward"] + 1.5]);
    assert!(difference(&first_moment(&first), &first_moment(&second)) > 1e-6);
    // A run without running moments stores none.
    let without = Algorithm { advantage: Advantage::Reinforce, whiten_advantages: true, ..once() };
    let made = step(&mut TorchTrainer::new(), &next, &batch, &without).unwrap();
    assert!(!made.metrics.contains_key("reward_norm_count"));
}

#[test]
fn a_step_of_every_kind_is_repeated_to_the_byte() {
    let base = initial(1);
    let batch = uneven(&sampled_batch(&base, 4, 4, SHAPE, 1), 0.5);
    for algorithm in all_sorts() {
        let algorithm = Algorithm { minibatches: 2, recompute: true, ..algorithm };
        let [a, b] = [(); 2].map(|()| step(&mut TorchTrainer::new(), &base, &batch, &algorithm).unwrap());
        assert!(a == b, "{algorithm:?}");
        let plain = Algorithm { recompute: false, ..algorithm };
        assert!(step(&mut TorchTrainer::new(), &base, &batch, &plain).unwrap() == a, "{plain:?}");
    }
}

#[test]
fn every_algorithm_raises_what_is_rewarded() {
    let plain = Algorithm { learning_rate: 1e-2, ..Algorithm::default() };
    let decoupled = Correction { weight: CorrectionWeight::Token, cap: 0.0, ..Correction::default() };
    let sum = Parameters { response_tokens: 6, ..Parameters::default() };
    let narrow = Algorithm { clip_low: 0.03, clip_high: 0.04, ..plain.clone() };
    for algorithm in [
        Algorithm { advantage: Advantage::Rloo, loss: Loss::Cispo, ..plain.clone() },
        Algorithm { advantage: Advantage::ReinforcePlusPlus, loss: Loss::Topr, ..plain.clone() },
        Algorithm { advantage: Advantage::Raft, loss: Loss::PolicyGradient, ..plain.clone() },
        Algorithm { loss: Loss::Gspo, aggregation: Aggregation::SeqMeanTokenMean, ..narrow.clone() },
        Algorithm { advantage: Advantage::GiGpo, loss: Loss::Segment, ..narrow },
        Algorithm { advantage: Advantage::MaxRl, loss: Loss::Kimi, ..plain.clone() },
        Algorithm { loss: Loss::Cispo, old: OldPolicy::Proximal, correction: ice_pop(), ..plain.clone() },
        lite_ppo(&plain),
        ipa(&plain),
        Algorithm { advantage: Advantage::Chunk, loss: Loss::PpoClip, ..plain.clone() },
        Algorithm { advantage: Advantage::Gae, loss: Loss::PpoClip, minibatches: 2, ..plain.clone() },
        Algorithm { old: OldPolicy::Proximal, correction: decoupled, ..plain.clone() },
        Algorithm {
            advantage: Advantage::DrGrpo,
            loss: Loss::DppoTv,
            aggregation: Aggregation::SeqMeanTokenSumNorm,
            parameters: sum,
            ..plain
        },
    ] {
        let shares = rewards_of(&algorithm, 16);
        let what = format!("{:?} {:?}", algorithm.advantage, algorithm.loss);
        assert!(shares[15] > 0.5 && shares[0] < 0.2, "{what}: {shares:?}");
    }
}
