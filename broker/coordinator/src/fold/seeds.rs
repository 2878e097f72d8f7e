//! Seeds: derived from the run's own, so that they follow from the state alone.

/// What a seed is for. Different purposes give independent streams.
#[derive(Debug, Clone, Copy)]
pub enum Purpose {
    /// A training prompt's start state.
    TrainPrompt = 1,
    /// A held-out prompt's start state.
    HeldOutPrompt = 2,
    /// The sampling of a turn.
    Turn = 3,
    /// All that a train step draws.
    Step = 4,
    /// Initial weights.
    Model = 5,
    /// The order of a dataset's rows.
    Rows = 6,
    /// Which group starts from a stored turn, and from which.
    StoredTurn = 7,
}

/// Mixes a run's seed, a purpose and numbers into a seed (SplitMix64's finaliser over each in
/// turn).
#[must_use]
pub fn seed(run: u64, purpose: Purpose, numbers: &[u64]) -> u64 {
    let mut hash = mix(run ^ ((purpose as u64) << 56));
    for number in numbers {
        hash = mix(hash ^ *number);
    }
    hash
}

/// SplitMix64's finaliser: each bit of the result depends on all of `x`.
pub(crate) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
