//! Which segments are the log's. A log that was restored from a backup gives positions out again,
//! and the segments that were written after the backup hold entries that it does not: those of a
//! lost future. They stay as they are, for the payloads that they name, and nobody reads them.
//!
//! The restored log writes its segments in a later *branch*. From the first position of a branch
//! on, no segment of an earlier one is the log's.

use std::collections::BTreeMap;

use millrace_schemas::blob::paths::{self, ObjectKind};

use crate::broker::{Broker, BrokerError};

/// The segments of one log, by the position of their first entry.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The branch of each.
    branch: BTreeMap<u64, u32>,
}

impl Chain {
    /// Of all segments that there are, as branch and first position.
    fn of(listed: impl Iterator<Item = (u32, u64)>) -> Self {
        let mut listed: Vec<(u32, u64)> = listed.collect();
        listed.sort_unstable();
        let mut branch = BTreeMap::new();
        let mut newest = 0;
        for (of, first) in listed {
            if of > newest {
                // The first of its branch: the listing is in order.
                branch.split_off(&first);
                newest = of;
            }
            branch.insert(first, of);
        }
        Self { branch }
    }

    /// Where they begin, in order.
    pub fn firsts(&self) -> impl Iterator<Item = u64> {
        self.branch.keys().copied()
    }

    /// The newest that begins at `seq` or before it, as branch and first position.
    #[must_use]
    pub fn before(&self, seq: u64) -> Option<(u32, u64)> {
        self.branch.range(..=seq).next_back().map(|(first, branch)| (*branch, *first))
    }

    /// The branch of the one that begins at `first`.
    pub(super) fn at(&self, first: u64) -> Option<u32> {
        self.branch.get(&first).copied()
    }

    /// Whether one begins behind `first`.
    pub(super) fn is_beyond(&self, first: u64) -> bool {
        self.branch.last_key_value().is_some_and(|(last, _)| *last > first)
    }

    /// The branch that is written to; it ends the chain.
    pub(super) fn newest(&self) -> u32 {
        self.branch.last_key_value().map_or(0, |(_, branch)| *branch)
    }
}

impl Broker {
    /// The segments of a log.
    ///
    /// # Errors
    /// The object store fails.
    pub async fn segments(&self, log: u64) -> Result<Chain, BrokerError> {
        let listed = self.objects.list(&paths::segments(log)).await?;
        Ok(Chain::of(listed.iter().filter_map(|path| match paths::parse(path) {
            Some(ObjectKind::Segment { log: of, branch, first }) if of == log => Some((branch, first)),
            Some(_) | None => None,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Restored twice, the second time from the older backup.
    #[test]
    fn a_branch_ends_what_earlier_ones_hold_from_its_start_on() {
        let chain = |listed: &[(u32, u64)]| Chain::of(listed.iter().copied());
        let stands = |chain: &Chain| chain.branch.iter().map(|(first, of)| (*of, *first)).collect::<Vec<_>>();
        let first = [(0, 1), (0, 11), (0, 21), (0, 31)];
        assert_eq!(stands(&chain(&first)), first);
        let once = chain(&[(1, 21), (0, 31), (0, 11), (0, 1), (1, 28), (0, 21)]);
        assert_eq!(stands(&once), [(0, 1), (0, 11), (1, 21), (1, 28)]);
        assert_eq!((once.before(20), once.before(35), once.before(0)), (Some((0, 11)), Some((1, 28)), None));
        assert_eq!(
            (once.newest(), once.at(21), once.is_beyond(27), once.is_beyond(28)),
            (1, Some(1), true, false)
        );
        let twice = chain(&[(0, 1), (0, 11), (0, 21), (1, 21), (1, 28), (2, 11)]);
        assert_eq!(stands(&twice), [(0, 1), (2, 11)]);
        assert_eq!(chain(&[]).newest(), 0);
    }
}
