//! Which slot of the cache holds whose tokens, under which version. Slots without a request are kept until
//! they are needed, the least recently used first to go.

use std::collections::{BTreeSet, HashMap};

use millrace_schemas::{PolicyVersion, RolloutId};

/// The slots.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Slots without a request, by when they were last taken.
    idle: BTreeSet<(u64, usize)>,
    /// Idle or busy: the latest slot of each rollout.
    by_rollout: HashMap<RolloutId, usize>,
    /// Counts takes, as the clock of recency.
    clock: u64,
}

#[derive(Debug, Default)]
struct Slot {
    busy: bool,
    owner: Option<RolloutId>,
    version: PolicyVersion,
    /// The tokens whose keys and values it holds.
    tokens: Vec<u32>,
    used: u64,
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        let slots = std::iter::repeat_with(Slot::default).take(count).collect();
        Self { slots, idle: (0..count).map(|slot| (0, slot)).collect(), by_rollout: HashMap::new(), clock: 0 }
    }

    /// Forgets what all slots hold, and frees them.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.slots.len());
    }

    /// A slot for the next turn of `rollout`, and how many of its tokens the slot holds: at most all but one,
    /// since the last must be computed. `None` when all are busy.
    pub(super) fn take(
        &mut self,
        rollout: RolloutId,
        version: PolicyVersion,
        tokens: &[u32],
    ) -> Option<(usize, usize)> {
        let own = self.by_rollout.get(&rollout).copied().filter(|&slot| !self.slots[slot].busy);
        let index = own.or_else(|| self.idle.first().map(|&(_, slot)| slot))?;
        self.clock += 1;
        let slot = &mut self.slots[index];
        self.idle.remove(&(slot.used, index));
        let common = slot.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let kept = if own.is_some() && slot.version == version { common.min(tokens.len() - 1) } else { 0 };
        slot.tokens.truncate(kept);
        let before = slot.owner.replace(rollout);
        (slot.busy, slot.version, slot.used) = (true, version, self.clock);
        if let Some(before) = before
            && self.by_rollout.get(&before) == Some(&index)
        {
            self.by_rollout.remove(&before);
        }
        self.by_rollout.insert(rollout, index);
        Some((index, kept))
    }

    /// `tokens` were computed into the slot.
    pub(super) fn extend(&mut self, slot: usize, tokens: &[u32]) {
        self.slots[slot].tokens.extend_from_slice(tokens);
    }

    /// The slot's request ended; what it holds is kept for the rollout's next turn.
    pub(super) fn release(&mut self, slot: usize) {
        self.slots[slot].busy = false;
        self.idle.insert((self.slots[slot].used, slot));
    }
}
