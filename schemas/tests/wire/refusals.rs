//! A worker's turn is checked before anything is trained on it.

use millrace_schemas::PolicyVersion;
use millrace_schemas::generate::{MalformedTurn, Segment};

use crate::samples::turn;

#[test]
fn a_sound_turn_passes() {
    assert_eq!(turn().check(), Ok(()));
    assert_eq!(turn().check_versions(PolicyVersion(4), PolicyVersion(5)), Ok(()));
}

#[test]
fn a_turn_without_tokens_is_refused() {
    let mut turn = turn();
    turn.tokens.clear();
    turn.logprobs.clear();
    turn.segments.clear();
    assert_eq!(turn.check(), Err(MalformedTurn::Empty));
}

#[test]
fn arrays_of_different_lengths_are_refused() {
    let mut short_logprobs = turn();
    short_logprobs.logprobs.pop();
    let mut short_segments = turn();
    short_segments.segments.pop();
    let mut long_tokens = turn();
    long_tokens.tokens.push(1);
    for turn in [short_logprobs, short_segments, long_tokens] {
        assert!(matches!(turn.check(), Err(MalformedTurn::Lengths { .. })), "{turn:?}");
    }
}

#[test]
fn segment_counts_that_overflow_32_bits_are_refused() {
    let mut turn = turn();
    turn.segments = vec![Segment { version: PolicyVersion(4), tokens: u32::MAX }; 3];
    assert!(
        matches!(turn.check(), Err(MalformedTurn::Lengths { segment_tokens, .. }) if segment_tokens == 3 * u64::from(u32::MAX))
    );
}

#[test]
fn a_log_probability_that_is_none_is_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.5] {
        let mut turn = turn();
        turn.logprobs[1] = bad;
        assert!(matches!(turn.check(), Err(MalformedTurn::Logprob { index: 1, .. })), "{bad}");
    }
}

#[test]
fn segments_of_versions_that_may_not_sample_are_refused() {
    let turn = turn();
    assert!(turn.check_versions(PolicyVersion(5), PolicyVersion(5)).is_err(), "too old");
    assert!(turn.check_versions(PolicyVersion(3), PolicyVersion(4)).is_err(), "not committed yet");
    let mut backwards = turn;
    backwards.segments.reverse();
    assert!(backwards.check_versions(PolicyVersion(4), PolicyVersion(5)).is_err(), "going back in time");
}
