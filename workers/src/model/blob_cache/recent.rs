//! Content of blobs by hash; the least recently used goes first.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use millrace_schemas::blob::Sha;

/// Bytes in the cache at most: a few versions of a small model, none of one that fills a machine.
const MAX_BYTES: usize = 512 * 1024 * 1024;

/// From the least to the most recently used.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<VecDeque<(Sha, Bytes)>>);

impl Recent {
    fn blobs(&self) -> MutexGuard<'_, VecDeque<(Sha, Bytes)>> {
        // A panic cannot leave the list half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, sha: &Sha) -> Option<Bytes> {
        let mut blobs = self.blobs();
        let at = blobs.iter().position(|(key, _)| key == sha)?;
        let entry = blobs.remove(at)?;
        let content = entry.1.clone();
        blobs.push_back(entry);
        Some(content)
    }

    /// The caller has proved that `content` has this hash.
    pub(super) fn insert(&self, sha: Sha, content: Bytes) {
        // It would drive out all others and then itself.
        if content.len() > MAX_BYTES {
            return;
        }
        let mut blobs = self.blobs();
        blobs.retain(|(key, _)| *key != sha);
        blobs.push_back((sha, content));
        let mut bytes: usize = blobs.iter().map(|(_, content)| content.len()).sum();
        while bytes > MAX_BYTES
            && let Some((_, oldest)) = blobs.pop_front()
        {
            bytes -= oldest.len();
        }
    }
}
