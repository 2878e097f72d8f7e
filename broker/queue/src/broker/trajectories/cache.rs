//! What was read or written last, in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_schemas::env_step::EnvStepDone;
use millrace_schemas::generate::GenerateDone;
use millrace_schemas::limits::MAX_CACHED_TRAJECTORY_BYTES;
use millrace_schemas::{EntryRef, OutcomeBody};

/// Bytes of an outcome besides its arrays, with its place here.
const OVERHEAD: usize = 512;

/// Outcomes by reference, those last used, up to a number of bytes.
pub(in super::super) struct TrajectoryCache {
    kept: Mutex<Kept>,
    most: usize,
}

#[derive(Default)]
struct Kept {
    outcomes: HashMap<EntryRef, Outcome>,
    /// The same by last use: the first goes first.
    by_use: BTreeMap<u64, EntryRef>,
    uses: u64,
    bytes: usize,
}

struct Outcome {
    body: Arc<OutcomeBody>,
    /// Whether it is more than the tokens.
    whole: bool,
    bytes: usize,
    used: u64,
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

    /// The outcome, or at least its tokens if those alone are needed.
    pub(super) fn get(&self, entry: &EntryRef, tokens_alone: bool) -> Option<Arc<OutcomeBody>> {
        let mut kept = self.kept();
        let Kept { outcomes, by_use, uses, .. } = &mut *kept;
        let outcome = outcomes.get_mut(entry).filter(|outcome| outcome.whole || tokens_alone)?;
        *uses += 1;
        by_use.remove(&outcome.used);
        by_use.insert(*uses, *entry);
        outcome.used = *uses;
        Some(outcome.body.clone())
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
        kept.remove(entry);
        kept.uses += 1;
        kept.bytes += bytes;
        let used = kept.uses;
        kept.by_use.insert(used, entry);
        kept.outcomes.insert(entry, Outcome { body, whole, bytes, used });
        while kept.bytes > self.most
            && let Some((_, oldest)) = kept.by_use.first_key_value()
        {
            let oldest = *oldest;
            kept.remove(oldest);
        }
    }
}

impl Kept {
    fn remove(&mut self, entry: EntryRef) {
        if let Some(outcome) = self.outcomes.remove(&entry) {
            self.by_use.remove(&outcome.used);
            self.bytes -= outcome.bytes;
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

    #[test]
    fn what_was_used_longest_ago_goes_first_and_the_bound_holds() {
        let cache = TrajectoryCache { most: 3 * (OVERHEAD + 401), ..TrajectoryCache::default() };
        for seq in 1..=3 {
            cache.keep(entry(seq), body(100));
        }
        assert!(cache.get(&entry(1), false).is_some());
        cache.keep(entry(4), body(100));
        assert!(cache.get(&entry(2), false).is_none());
        assert!([1, 3, 4].iter().all(|seq| cache.get(&entry(*seq), false).is_some()));
        assert!(cache.get(&EntryRef { check: 9, ..entry(1) }, false).is_none(), "of other content");
        cache.keep(entry(5), body(1_000_000));
        assert!(cache.get(&entry(5), false).is_none() && cache.get(&entry(4), false).is_some());
        assert!(cache.kept().bytes <= cache.most && cache.kept().by_use.len() == 3);
    }

    #[test]
    fn tokens_are_never_taken_for_the_whole_outcome() {
        let cache = TrajectoryCache::default();
        cache.keep_tokens(entry(1), &[7; 100]);
        assert!(cache.get(&entry(1), true).is_some());
        assert!(cache.get(&entry(1), false).is_none());
        cache.keep(entry(1), body(100));
        cache.keep_tokens(entry(1), &[7; 100]);
        assert_eq!(cache.get(&entry(1), false), Some(body(100)));
    }
}
