//! Power loss: what a machine that syncs now and then keeps of each stream and bucket. They are files of their
//! own, so each loses its own part.

use std::collections::VecDeque;
use std::time::Duration;

use super::MemoryState;

/// States of a stream that are remembered between two syncs: the machine writes back what is older by itself.
const MOST_KEPT: usize = 64;

/// What may be lost of everything.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    synced_at: Duration,
    /// The log's end at the last sync.
    log_end: u64,
    /// The log's end at the newest remembered state.
    states: VecDeque<Kept>,
}

/// Everything but the log as it was at one time since the last sync.
#[derive(Debug, Clone)]
struct Kept {
    tasks: std::collections::BTreeMap<millrace_schemas::Stage, super::tasks::Tasks>,
    exhausted: super::tasks::Tasks,
    dead: super::records::Records,
    buckets: std::collections::BTreeMap<&'static str, super::records::Bucket>,
}

impl Kept {
    fn of(state: &MemoryState) -> Self {
        Self {
            tasks: state.tasks.clone(),
            exhausted: state.exhausted.clone(),
            dead: state.dead.clone(),
            buckets: state.buckets.clone(),
        }
    }
}

/// Remembers the state before a change, and syncs when it is time.
pub(super) fn before_change(state: &mut MemoryState, now: Duration, every: Duration) {
    if now >= state.unsynced.synced_at + every {
        state.unsynced.synced_at = now;
        state.unsynced.log_end = state.log.end();
        state.unsynced.states.clear();
    }
    let kept = Kept::of(state);
    state.unsynced.states.push_back(kept);
    if state.unsynced.states.len() > MOST_KEPT {
        state.unsynced.states.pop_front();
    }
}

/// Each stream and bucket goes back by a part of what was not synced.
pub(super) fn strike(state: &mut MemoryState, seed: u64) {
    let mut draw = Draw(seed);
    let unsynced = std::mem::take(&mut state.unsynced);
    let back = |draw: &mut Draw| {
        let lost = draw.below(unsynced.states.len() as u64 + 1) as usize;
        unsynced.states.len().checked_sub(lost).and_then(|at| unsynced.states.get(at))
    };
    let log_end = state.log.end();
    let lost = draw.below(log_end.saturating_sub(unsynced.log_end) + 1);
    state.log.truncate(log_end - lost);
    for (stage, tasks) in &mut state.tasks {
        if let Some(kept) = back(&mut draw) {
            *tasks = kept.tasks.get(stage).cloned().unwrap_or_default();
        }
        if draw.below(2) == 0 {
            tasks.forget_deliveries();
        }
    }
    if let Some(kept) = back(&mut draw) {
        state.exhausted = kept.exhausted.clone();
    }
    if let Some(kept) = back(&mut draw) {
        state.dead = kept.dead.clone();
    }
    for (name, bucket) in &mut state.buckets {
        if let Some(kept) = back(&mut draw) {
            *bucket = kept.buckets.get(name).cloned().unwrap_or_default();
        }
    }
    state.unsynced = Unsynced { log_end: state.log.end(), ..unsynced };
    state.unsynced.states.clear();
    state.losses += 1;
}

/// Draws that follow from a seed (SplitMix64).
struct Draw(u64);

impl Draw {
    const fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}
