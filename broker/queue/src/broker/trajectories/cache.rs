//! What was read or written last, in memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_schemas::env_step::EnvStepDone;
use millrace_schemas::generate::GenerateDone;
use millrace_schemas::limits::MAX_CACHED_TRAJECTORY_BYTES;
use millrace_schemas::{EntryRef, OutcomeBody};

use super::Content;
use super::clock::Clock;

/// Bytes of an outcome besides its arrays, with its place here.
const OVERHEAD: usize = 512;

/// Outcomes by reference, up to a number of bytes.
pub(in super::super) struct TrajectoryCache(Mutex<Clock<EntryRef, Outcome>>);

struct Outcome {
    body: Arc<OutcomeBody>,
    /// Whether it is more than the tokens.
    whole: bool,
}

impl Default for TrajectoryCache {
    fn default() -> Self {
        Self::new(MAX_CACHED_TRAJECTORY_BYTES)
    }
}

impl TrajectoryCache {
    fn new(most: usize) -> Self {
        Self(Mutex::new(Clock::new(most)))
    }

    fn kept(&self) -> MutexGuard<'_, Clock<EntryRef, Outcome>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of `entries` that are kept, whole or at least their tokens if those alone are needed; and the others.
    pub(super) fn get(&self, entries: &[EntryRef], tokens_alone: bool) -> (Content, Vec<EntryRef>) {
        let (mut content, mut missing) = (Content::with_capacity(entries.len()), Vec::new());
        let mut kept = self.kept();
        for entry in entries {
            match kept.get(entry).filter(|outcome| outcome.whole || tokens_alone) {
                Some(outcome) => _ = content.insert(*entry, outcome.body.clone()),
                None => missing.push(*entry),
            }
        }
        (content, missing)
    }

    /// Keeps an outcome.
    pub(super) fn keep(&self, entry: EntryRef, body: Arc<OutcomeBody>) {
        self.insert(entry, body, true);
    }

    /// Keeps what is known of an observation without the rest of its outcome.
    pub(super) fn keep_tokens(&self, entry: EntryRef, tokens: &[u32]) {
        let known = self.kept().get(&entry).is_some();
        if !known {
            let done = EnvStepDone { observation: tokens.to_vec(), ..EnvStepDone::default() };
            self.insert(entry, Arc::new(OutcomeBody::EnvStep(done)), false);
        }
    }

    fn insert(&self, entry: EntryRef, body: Arc<OutcomeBody>, whole: bool) {
        let bytes = OVERHEAD + size(&body);
        self.kept().keep(entry, Outcome { body, whole }, bytes);
    }
}

fn size_of_turn(done: &GenerateDone) -> usize {
    4 * (done.tokens.len() + done.logprobs.len() + done.uncut_logprobs.len()) + 16 * done.segments.len()
}

/// Bytes of an outcome's arrays.
fn size(body: &OutcomeBody) -> usize {
    match body {
        OutcomeBody::Generate(done) => size_of_turn(done),
        OutcomeBody::Returned(returned) => returned.sampled.as_deref().map_or(0, size_of_turn),
        OutcomeBody::EnvStep(done) => {
            let said: usize = done.said.iter().map(|said| said.text.len()).sum();
            let row: usize = done.row.iter().map(|(name, value)| name.len() + value.to_string().len()).sum();
            // A parsed row takes several times its text.
            done.state.len() + 4 * done.observation.len() + said + 4 * row
        }
        OutcomeBody::TurnBrief(_)
        | OutcomeBody::StepBrief(_)
        | OutcomeBody::Reward(_)
        | OutcomeBody::TrainShard(_)
        | OutcomeBody::Void(_)
        | OutcomeBody::Lost(_)
        | OutcomeBody::PublishWeights(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(tokens: usize) -> Arc<OutcomeBody> {
        let done = EnvStepDone { observation: vec![7; tokens], state: vec![1], ..EnvStepDone::default() };
        Arc::new(OutcomeBody::EnvStep(done))
    }

    fn entry(seq: u64) -> EntryRef {
        EntryRef { seq, tokens: 100, check: seq }
    }

    /// What is kept of an outcome.
    fn get(cache: &TrajectoryCache, entry: EntryRef, tokens_alone: bool) -> Option<Arc<OutcomeBody>> {
        let (mut content, missing) = cache.get(&[entry], tokens_alone);
        assert_eq!(content.len() + missing.len(), 1);
        content.remove(&entry)
    }

    #[test]
    fn what_is_kept_is_found_by_its_content() {
        let cache = TrajectoryCache::new(3 * (OVERHEAD + 401));
        for seq in 1..=4 {
            cache.keep(entry(seq), body(100));
        }
        let (content, missing) = cache.get(&[1, 2, 3, 4].map(entry), false);
        assert_eq!((content.len(), missing), (3, vec![entry(1)]));
        assert!(get(&cache, EntryRef { check: 9, ..entry(2) }, false).is_none(), "of other content");
    }

    #[test]
    fn tokens_are_never_taken_for_the_whole_outcome() {
        let cache = TrajectoryCache::default();
        cache.keep_tokens(entry(1), &[7; 100]);
        assert!(get(&cache, entry(1), true).is_some());
        assert!(get(&cache, entry(1), false).is_none());
        cache.keep(entry(1), body(100));
        cache.keep_tokens(entry(1), &[7; 100]);
        assert_eq!(get(&cache, entry(1), false), Some(body(100)));
    }
}
