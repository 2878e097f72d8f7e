//! A cache up to a number of bytes, of which a use costs little: what is the oldest goes, unless it was used
//! since it was looked at last (the algorithm CLOCK, or second chance).

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// What was used and is kept once more for it, at most, while room is made for something new.
const CHANCES: usize = 64;

/// Values by key.
pub(super) struct Clock<Key, Value> {
    kept: HashMap<Key, Kept<Value>>,
    /// The keys in the order in which they are looked at.
    order: VecDeque<Key>,
    bytes: usize,
    most: usize,
}

struct Kept<Value> {
    value: Value,
    bytes: usize,
    /// Since it was looked at last.
    used: bool,
}

impl<Key: Copy + Eq + Hash, Value> Clock<Key, Value> {
    pub(super) fn new(most: usize) -> Self {
        Self { kept: HashMap::new(), order: VecDeque::new(), bytes: 0, most }
    }

    pub(super) fn get(&mut self, key: &Key) -> Option<&Value> {
        let kept = self.kept.get_mut(key)?;
        kept.used = true;
        Some(&kept.value)
    }

    /// Keeps a value of so many bytes, unless it alone is larger than the cache.
    pub(super) fn keep(&mut self, key: Key, value: Value, bytes: usize) {
        if bytes > self.most {
            return;
        }
        if let Some(kept) = self.kept.get_mut(&key) {
            self.bytes = self.bytes - kept.bytes + bytes;
            *kept = Kept { value, bytes, used: true };
            self.make_room(0);
            return;
        }
        self.make_room(bytes);
        self.kept.insert(key, Kept { value, bytes, used: false });
        self.order.push_back(key);
        self.bytes += bytes;
    }

    /// Lets go of what is too much for so many further bytes.
    fn make_room(&mut self, bytes: usize) {
        let mut chances = CHANCES;
        while self.bytes + bytes > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            match self.kept.get_mut(&oldest) {
                Some(kept) if kept.used && chances > 0 => {
                    kept.used = false;
                    chances -= 1;
                    self.order.push_back(oldest);
                }
                _ => self.bytes -= self.kept.remove(&oldest).map_or(0, |kept| kept.bytes),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_goes_first_and_the_bound_holds() {
        let mut clock = Clock::new(300);
        let kept = |clock: &mut Clock<u8, u8>| -> Vec<(u8, u8)> {
            (1..=6).filter_map(|key| Some((key, *clock.get(&key)?))).collect()
        };
        (1..=3).for_each(|key| clock.keep(key, key, 100));
        assert_eq!(clock.get(&1), Some(&1));
        clock.keep(4, 4, 100);
        assert_eq!(kept(&mut clock), [(1, 1), (3, 3), (4, 4)]);
        clock.keep(5, 5, 301);
        assert_eq!(kept(&mut clock), [(1, 1), (3, 3), (4, 4)], "larger than the cache");
        clock.keep(4, 40, 100);
        assert_eq!(kept(&mut clock), [(1, 1), (3, 3), (4, 40)], "the same key takes no more room");
        assert_eq!((clock.bytes, clock.order.len(), clock.kept.len()), (300, 3, 3));
        clock.keep(6, 6, 300);
        assert_eq!(kept(&mut clock), [(6, 6)], "it needs all of the room");
    }

    #[test]
    fn where_all_was_used_room_is_made_at_once() {
        let mut clock = Clock::new(100_000);
        for key in 0..10_000 {
            clock.keep(key, (), 100);
            assert!(clock.get(&key).is_some(), "key={key}");
        }
        assert_eq!((clock.order.len(), clock.kept.len()), (1_000, 1_000));
    }
}
