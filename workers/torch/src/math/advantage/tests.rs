use super::grpo::{dr_grpo, grpo};
use super::max_rl::max_rl;
use super::raft::raft;
use super::reinforce_plus_plus::reinforce_plus_plus;
use super::rloo::rloo;
use super::shaping::{overlong, shaped};
use super::*;
use millrace_schemas::submit::Shaping;

fn close(ours: &[f64], theirs: &[f64]) {
    let same = ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(same, "{ours:?} instead of {theirs:?}");
}

/// Rollouts of one turn each.
fn group(rewards: &[f64]) -> Vec<Scored<'static>> {
    let one =
        |reward: &f64| Scored { reward: *reward, turns: vec![ScoredTurn { reward: *reward, state: &[1] }] };
    rewards.iter().map(one).collect()
}

/// A rollout of these turns: what each brought, and the state that it was taken in.
fn turns(turns: &[(f64, &'static [u32])]) -> Scored<'static> {
    let reward = turns.iter().map(|(reward, _)| reward).sum();
    Scored { reward, turns: turns.iter().map(|&(reward, state)| ScoredTurn { reward, state }).collect() }
}

#[test]
fn advantages_of_a_group_by_hand() {
    // Mean 0.25, sample variance (0.75² + 3 · 0.25²) / 3 = 0.25.
    let rewards = [1.0, 0.0, 0.0, 0.0];
    close(&grpo(&rewards), &[0.75, -0.25, -0.25, -0.25].map(|a: f64| a / (0.5 + 1e-6)));
    close(&reinforce_plus_plus(&rewards), &grpo(&rewards));
    assert_eq!(dr_grpo(&rewards), [0.75, -0.25, -0.25, -0.25]);
    // The mean of the others is 0 for the best, and 1/3 for each other.
    close(&rloo(&rewards), &[1.0, -1.0 / 3.0, -1.0 / 3.0, -1.0 / 3.0]);
    assert_eq!(max_rl(&rewards), [3.0, -1.0, -1.0, -1.0]);
    assert_eq!(raft(&[0.5, 1.0, 1.0, -3.0]), [0.0, 1.0, 1.0, 0.0]);
}

#[test]
fn a_group_without_spread_has_no_signal_and_no_nan() {
    for rewards in [&[][..], &[3.0], &[1.0; 8], &[0.1, 0.1 + 1e-9]] {
        for of in [grpo, raft, reinforce_plus_plus] {
            assert!(of(rewards).iter().all(|a| *a == 0.0), "{rewards:?}");
        }
        for of in [dr_grpo, rloo, max_rl] {
            assert!(of(rewards).iter().all(|a| a.abs() < 1e-7), "{rewards:?}");
        }
    }
    // Nothing was reached: there is no mean to divide by.
    assert_eq!(max_rl(&[0.0, 0.0, 0.0]), [0.0; 3]);
    assert_eq!(max_rl(&[0.5, -0.5]), [0.0; 2]);
}

#[test]
fn what_compares_adds_up_to_zero_and_does_not_see_an_offset() {
    let rewards = [0.3, 1.7, -2.0, 0.0, 5.5];
    let shifted = rewards.map(|r| r + 100.0);
    for of in [grpo, dr_grpo, rloo, reinforce_plus_plus] {
        let (a, b) = (of(&rewards), of(&shifted));
        assert!(a.iter().sum::<f64>().abs() < 1e-12);
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-12));
    }
}

#[test]
fn a_group_is_compared_with_itself_and_a_batch_as_a_whole() {
    let parameters = Parameters::default();
    let batch = [group(&[1.0, 0.0]), group(&[10.0, 9.0, 9.0])];
    for kind in Advantage::ALL.into_iter().filter(|kind| !kind.has_critic()) {
        let whole = advantages(kind, &parameters, &batch);
        let shape: Vec<usize> = whole.iter().map(Vec::len).collect();
        assert_eq!(shape, [2, 3]);
        let apart: Vec<_> =
            batch.iter().flat_map(|one| advantages(kind, &parameters, std::slice::from_ref(one))).collect();
        let by_batch = matches!(kind, Advantage::ReinforcePlusPlus | Advantage::LitePpo);
        assert_eq!(whole == apart, !by_batch, "{kind:?}");
    }
    let normal = advantages(Advantage::ReinforcePlusPlus, &parameters, &batch).concat().concat();
    assert!(normal.iter().sum::<f64>().abs() < 1e-12);
    assert!((normal.iter().map(|a| a * a).sum::<f64>() / 4.0 - 1.0).abs() < 1e-5);
}

#[test]
fn a_turns_return_is_what_follows_from_it() {
    assert_eq!(chunk::returns(0.5, &[1.0, 0.0, 4.0]), [2.0, 2.0, 4.0]);
    assert_eq!(chunk::returns(1.0, &[1.0, 0.0, 4.0]), [5.0, 4.0, 4.0]);
    assert!(chunk::returns(0.5, &[]).is_empty());
    let batch = [vec![turns(&[(0.0, &[1]), (1.0, &[2])])]];
    let parameters = Parameters { discount: 0.5, ..Parameters::default() };
    assert_eq!(advantages(Advantage::Chunk, &parameters, &batch), [[[0.5, 1.0]]]);
}

#[test]
fn turns_of_one_state_are_compared_within_their_group_alone() {
    let parameters = Parameters { discount: 0.5, turn_weight: 2.0, ..Parameters::default() };
    // Both begin in state 1, with returns 0.5 and 0; state 3 is met twice by the second rollout,
    // returns 0 both times.
    let group = vec![turns(&[(0.0, &[1]), (1.0, &[2])]), turns(&[(0.0, &[1]), (0.0, &[3]), (0.0, &[3])])];
    let episode = grpo(&[1.0, 0.0]);
    let step = grpo(&[0.5, 0.0]);
    let ours = advantages(Advantage::GiGpo, &parameters, std::slice::from_ref(&group));
    close(&ours[0][0], &[episode[0] + 2.0 * step[0], episode[0]]);
    close(&ours[0][1], &[episode[1] + 2.0 * step[1], episode[1], episode[1]]);
    // The same states in another group change nothing.
    let other = vec![turns(&[(9.0, &[1])]), turns(&[(-9.0, &[3])])];
    let both = advantages(Advantage::GiGpo, &parameters, &[group, other]);
    assert_eq!(both[0], ours[0]);
}

#[test]
fn an_overlong_rollout_loses_and_a_reward_is_cut() {
    let shaping = Shaping { overlong_tokens: 100, overlong_buffer: 20, overlong_penalty: 2.0, clip: 0.5 };
    for (tokens, penalty) in [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (900, -1.0)] {
        assert_eq!(overlong(&shaping, tokens), penalty, "{tokens}");
        assert_eq!(shaped(&shaping, 7.0, tokens), 0.5 + 2.0 * penalty);
        assert_eq!(shaped(&shaping, -7.0, tokens), -0.5 + 2.0 * penalty);
    }
    let hard = Shaping { overlong_buffer: 0, ..shaping };
    assert_eq!([99, 100, 101].map(|tokens| overlong(&hard, tokens)), [0.0, -1.0, -1.0]);
    assert_eq!(shaped(&Shaping::default(), -7.25, 1_000_000), -7.25);
}
