//! Forks: a turn of a rollout that follows an earlier turn than the last, or none. Its context is what
//! that turn saw, that turn, and its own observation. Turns and observations stay in the order in
//! which they came about.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::trajectory::EntryRef;

/// A turn that does not follow the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fork {
    /// The number of the turn, from 1.
    pub turn: u32,
    /// The turn that it follows, below `turn - 1`; 0 for none.
    pub follows: u32,
}

/// The turns that the turn of this number has in its context, in order.
#[must_use]
pub fn path(forks: &[Fork], turn: u32) -> Vec<u32> {
    let follows = |turn: u32| {
        let before = turn.saturating_sub(1);
        let fork = forks.iter().find(|fork| fork.turn == turn);
        fork.map_or(before, |fork| fork.follows.min(before))
    };
    let mut path = Vec::new();
    let mut at = follows(turn);
    while at > 0 {
        path.push(at);
        at = follows(at);
    }
    path.reverse();
    path
}

/// The log entries of the context of the turn of this number, of all `entries` of its rollout.
/// `[1 + 2·turns]` both.
#[must_use]
pub fn context(forks: &[Fork], entries: &[EntryRef], turn: u32) -> Vec<EntryRef> {
    if forks.is_empty() {
        return entries.to_vec();
    }
    let context = pairs(entries, path(forks, turn));
    context.chain(entries.get(2 * (turn as usize - 1)).copied()).collect()
}

/// The log entries that end with the turn of this number, from 1: its context, and itself; none for 0.
#[must_use]
pub fn up_to(forks: &[Fork], entries: &[EntryRef], turn: u32) -> Vec<EntryRef> {
    let own = (turn > 0).then_some(turn);
    pairs(entries, path(forks, turn).into_iter().chain(own)).collect()
}

/// The observation and the turn of each of these turns.
fn pairs(entries: &[EntryRef], turns: impl IntoIterator<Item = u32>) -> impl Iterator<Item = EntryRef> {
    let starts = turns.into_iter().map(|turn| 2 * (turn as usize - 1));
    starts.flat_map(|at| entries.get(at..at + 2).unwrap_or_default()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_what_its_turn_follows() {
        // 1 – 2 – 5 – 6 and 3 – 4 after none, 7 after 1.
        let forks = [(3, 0), (5, 2), (7, 1)].map(|(turn, follows)| Fork { turn, follows });
        for (turn, expected) in [
            (1, &[][..]),
            (2, &[1]),
            (3, &[]),
            (4, &[3]),
            (5, &[1, 2]),
            (6, &[1, 2, 5]),
            (7, &[1]),
            (8, &[1, 7]),
        ] {
            assert_eq!(path(&forks, turn), expected, "turn={turn}");
        }
        let entries: Vec<EntryRef> = (0..13).map(|seq| EntryRef { seq, tokens: 1, check: 0 }).collect();
        let seqs = |turn| context(&forks, &entries, turn).iter().map(|entry| entry.seq).collect::<Vec<_>>();
        assert_eq!(seqs(7), [0, 1, 12], "the first pair, and the last observation");
        assert_eq!(seqs(4), [4, 5, 6]);
        let until = |turn| up_to(&forks, &entries, turn).iter().map(|entry| entry.seq).collect::<Vec<_>>();
        assert_eq!((until(0), until(1), until(4)), (vec![], vec![0, 1], vec![4, 5, 6, 7]));
        assert_eq!(until(6), [0, 1, 2, 3, 8, 9, 10, 11], "a fork's own turns come after what it follows");
        // Nonsense gives no more than there is.
        let loops = [Fork { turn: 2, follows: 2 }, Fork { turn: 1, follows: 9 }];
        assert_eq!(path(&loops, 3), [1, 2]);
        assert_eq!(path(&[], 3), [1, 2]);
    }
}
