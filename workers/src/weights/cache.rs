//! Blobs that were read or written a moment ago, by their hash.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use millrace_schemas::blob::Sha;

/// Bytes that the cache holds at most: a few versions of a small model, none of one that fills a machine.
const MAX_BYTES: usize = 512 * 1024 * 1024;

/// The least recently used blob goes first.
#[derive(Debug, Default)]
pub(super) struct BlobCache(Mutex<VecDeque<(Sha, Bytes)>>);

impl BlobCache {
    fn blobs(&self) -> MutexGuard<'_, VecDeque<(Sha, Bytes)>> {
        // Nothing in here can be left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blob of this hash, if it is here.
    pub(super) fn get(&self, sha: &Sha) -> Option<Bytes> {
        let mut blobs = self.blobs();
        let at = blobs.iter().position(|(key, _)| key == sha)?;
        let entry = blobs.remove(at)?;
        let content = entry.1.clone();
        blobs.push_back(entry);
        Some(content)
    }

    /// Keeps a blob that is proved to have this hash.
    pub(super) fn insert(&self, sha: Sha, content: Bytes) {
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
