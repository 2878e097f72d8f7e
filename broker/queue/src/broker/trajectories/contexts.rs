//! The contexts of turns, in memory. A turn's context is that of its rollout's turn before and a little more, so
//! that a worker which had the one before need not put it together from all outcomes so far.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_schemas::EntryRef;
use millrace_schemas::limits::MAX_CACHED_CONTEXT_BYTES;

use super::clock::Clock;

/// Bytes of a context besides its tokens.
const OVERHEAD: usize = 128;
/// Outcomes that came since the context which is known, at most: the turn, and a step of the environment.
const SINCE: usize = 3;

/// Tokens by the outcomes that they come from, up to a number of bytes.
pub(in super::super) struct Contexts {
    keys: RandomState,
    kept: Mutex<Clock<ContextKey, Arc<[u32]>>>,
}

/// Stands for the content and order of a trajectory's first outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ContextKey {
    outcomes: usize,
    hash: u64,
}

impl Default for Contexts {
    fn default() -> Self {
        Self { keys: RandomState::new(), kept: Mutex::new(Clock::new(MAX_CACHED_CONTEXT_BYTES)) }
    }
}

impl Contexts {
    fn kept(&self) -> MutexGuard<'_, Clock<ContextKey, Arc<[u32]>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of each beginning of `prefix`, the shortest first.
    pub(super) fn keys(&self, prefix: &[EntryRef]) -> Vec<ContextKey> {
        let mut hasher = self.keys.build_hasher();
        let beginnings = prefix.iter().zip(1..).map(|(entry, outcomes)| {
            entry.hash(&mut hasher);
            ContextKey { outcomes, hash: hasher.finish() }
        });
        beginnings.collect()
    }

    /// The longest context that is known of these, and how many outcomes it stands for.
    pub(super) fn longest(&self, keys: &[ContextKey]) -> Option<(usize, Arc<[u32]>)> {
        let mut kept = self.kept();
        keys.iter().rev().take(SINCE).find_map(|key| Some((key.outcomes, kept.get(key)?.clone())))
    }

    pub(super) fn keep(&self, key: ContextKey, tokens: &[u32]) {
        let bytes = OVERHEAD + size_of_val(tokens);
        let tokens = Arc::from(tokens);
        self.kept().keep(key, tokens, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_known_by_all_of_its_outcomes_in_their_order() {
        let contexts = Contexts::default();
        let prefix: Vec<EntryRef> = (1..=6).map(|seq| EntryRef { seq, tokens: 2, check: 7 * seq }).collect();
        let keys = contexts.keys(&prefix);
        contexts.keep(keys[3], &[1, 2, 3]);
        let found = |prefix: &[EntryRef]| contexts.longest(&contexts.keys(prefix));
        assert_eq!(found(&prefix[..4]), Some((4, [1, 2, 3].into())));
        assert_eq!(found(&prefix), Some((4, [1, 2, 3].into())), "two came since");
        assert_eq!(found(&prefix[..3]), None);
        for wrong in [
            [1, 0, 2, 3].map(|at| prefix[at]).to_vec(),
            prefix[1..5].to_vec(),
            [EntryRef { check: 1, ..prefix[0] }].iter().chain(&prefix[1..4]).copied().collect(),
            [EntryRef { seq: 9, ..prefix[0] }].iter().chain(&prefix[1..4]).copied().collect(),
        ] {
            assert_eq!(found(&wrong), None, "{wrong:?}");
        }
        assert_eq!(found(&[]), None);
    }
}
