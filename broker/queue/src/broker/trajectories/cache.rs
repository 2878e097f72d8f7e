//! What was read or written last, in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_schemas::env_step::EnvStepDone;
use millrace_schemas::generate::GenerateDone;
use millrace_schemas::limits::MAX_CACHED_TRAJECTORY_BYTES;
use millrace_schemas::{EntryRef, OutcomeBody};

use super::Content;

/// Bytes of an outcome besides its arrays, with its place here.
const OVERHEAD: usize = 512;

/// Outcomes that were used and are kept once more for it, while room is made for a new one.
const CHANCES: usize = 64;

/// Outcomes by reference, up to a number of bytes. A turn asks for all of its rollout so far, so that a use has
/// to cost little: what is the oldest goes, unless it was used since it was looked at last (CLOCK).
pub(in super::super) struct TrajectoryCache {
    kept: Mutex<Kept>,
    most: usize,
}

#[derive(Default)]
struct Kept {
    outcomes: HashMap<EntryRef, Outcome>,
    /// The same in the order in which they are looked at.
    order: VecDeque<EntryRef>,
    bytes: usize,
}

struct Outcome {
    body: Arc<OutcomeBody>,
    /// Whether it is more than the tokens.
    whole: bool,
    bytes: usize,
    /// Since it was looked at last.
    used: bool,
}

impl Default for TrajectoryCache {
    fn default() -> Self {
        Self { kept: Mutex::default(), most: MAX_CACHED_TRAJECTORY_BYTES }
    }
}

impl TrajectoryCache {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of `entries` that are kept, whole or at least their tokens if those alone are needed; and the others.
    pub(super) fn get(&self, entries: &[EntryRef], tokens_alone: bool) -> (Content, Vec<EntryRef>) {
        let (mut content, mut missing) = (Content::with_capacity(entries.len()), Vec::new());
        let mut kept = self.kept();
        for entry in entries {
            match kept.outcomes.get_mut(entry).filter(|outcome| outcome.whole || tokens_alone) {
                Some(outcome) => {
                    outcome.used = true;
                    content.insert(*entry, outcome.body.clone());
                }
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
        let known = self.kept().outcomes.contains_key(&entry);
        if !known {
            let done = EnvStepDone { observation: tokens.to_vec(), ..EnvStepDone::default() };
            self.insert(entry, Arc::new(OutcomeBody::EnvStep(done)), false);
        }
    }

    fn insert(&self, entry: EntryRef, body: Arc<OutcomeBody>, whole: bool) {
        let bytes = OVERHEAD + size(&body);
        if bytes > self.most {
            return;
        }
        let mut kept = self.kept();
        let outcome = Outcome { body, whole, bytes, used: false };
        match kept.outcomes.insert(entry, outcome) {
            Some(before) => kept.bytes -= before.bytes,
            None => kept.order.push_back(entry),
        }
        kept.bytes += bytes;
        kept.make_room(self.most);
    }
}

impl Kept {
    fn make_room(&mut self, most: usize) {
        let mut chances = CHANCES;
        while self.bytes > most
            && let Some(oldest) = self.order.pop_front()
        {
            match self.outcomes.get_mut(&oldest) {
                Some(outcome) if outcome.used && chances > 0 => {
                    outcome.used = false;
                    chances -= 1;
                    self.order.push_back(oldest);
                }
                _ => self.bytes -= self.outcomes.remove(&oldest).map_or(0, |outcome| outcome.bytes),
            }
        }
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
    fn what_was_not_used_goes_first_and_the_bound_holds() {
        let cache = TrajectoryCache { most: 3 * (OVERHEAD + 401), ..TrajectoryCache::default() };
        for seq in 1..=3 {
            cache.keep(entry(seq), body(100));
        }
        assert!(get(&cache, entry(1), false).is_some());
        cache.keep(entry(4), body(100));
        assert!(get(&cache, entry(2), false).is_none());
        let (content, missing) = cache.get(&[1, 2, 3, 4].map(entry), false);
        assert_eq!((content.len(), missing), (3, vec![entry(2)]));
        assert!(get(&cache, EntryRef { check: 9, ..entry(1) }, false).is_none(), "of other content");
        cache.keep(entry(5), body(1_000_000));
        assert!(get(&cache, entry(5), false).is_none() && get(&cache, entry(4), false).is_some());
        // The same again takes no more room.
        cache.keep(entry(4), body(100));
        let kept = cache.kept();
        assert!(kept.bytes <= cache.most && kept.order.len() == 3 && kept.outcomes.len() == 3);
    }

    #[test]
    fn where_all_was_used_room_is_made_at_once() {
        let most = 1_000;
        let cache = TrajectoryCache { most: most * (OVERHEAD + 401), ..TrajectoryCache::default() };
        for seq in 0..10 * most as u64 {
            cache.keep(entry(seq), body(100));
            assert!(get(&cache, entry(seq), false).is_some(), "seq={seq}");
        }
        let kept = cache.kept();
        assert_eq!((kept.order.len(), kept.outcomes.len()), (most, most));
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
