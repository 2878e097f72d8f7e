//! The splits of levels, and the draw of a level.

use millrace_policy::random::Stream;
use millrace_schemas::env_step::Split;

use super::EnvError;

/// One in so many levels is held out.
const HELD_OUT_ONE_IN: u64 = 8;
/// Levels that are drawn before the settings count as impossible.
const TRIES: u32 = 20_000;

/// The split that a level belongs to: by its content, so that no seed can bring a level into both.
pub(super) fn split_of(level: &[u8]) -> Split {
    // The low bits of FNV-1a follow from the low bits of the bytes alone, so the high half is
    // folded in.
    let hash = fnv1a(level);
    if (hash ^ (hash >> 32)).is_multiple_of(HELD_OUT_ONE_IN) { Split::HeldOut } else { Split::Train }
}

/// FNV-1a with 64 bits.
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Draws with `candidate` until it gives a level, and one whose identity is in `split`.
pub(super) fn draw<L>(
    environment: &'static str,
    split: Split,
    seed: u64,
    candidate: impl FnMut(&mut Stream) -> Option<L>,
    identity: impl Fn(&L) -> Vec<u8>,
) -> Result<L, EnvError> {
    draw_from(environment, split, Stream::new(seed), candidate, identity)
}

/// The same with a stream of which something was drawn already.
pub(super) fn draw_from<L>(
    environment: &'static str,
    split: Split,
    mut stream: Stream,
    mut candidate: impl FnMut(&mut Stream) -> Option<L>,
    identity: impl Fn(&L) -> Vec<u8>,
) -> Result<L, EnvError> {
    (0..TRIES)
        .filter_map(|_| candidate(&mut stream))
        .find(|level| split_of(&identity(level)) == split)
        .ok_or(EnvError::NoLevel { environment, split, tries: TRIES })
}
