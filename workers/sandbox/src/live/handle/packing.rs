//! What a sandbox wrote, written down while it lives.

use std::path::Path;
use std::sync::Arc;

use super::{Link, LiveSandbox};
use crate::live::spec::LiveError;
use crate::live::store::Digest;
use crate::live::wire::FileAsk;

/// Files that stand still, until this value is dropped.
struct Frozen(Arc<Link>);

impl Drop for Frozen {
    fn drop(&mut self) {
        let link = Arc::clone(&self.0);
        // A runtime that has ended takes the sandbox along.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { link.file(FileAsk::Thaw).await });
        }
    }
}

impl LiveSandbox {
    /// Writes what this sandbox has written over the files that it began with into a folder, as a
    /// layer under the digest of its bytes. Its processes stand still meanwhile, commands and
    /// questions about files wait, and all goes on afterwards; one that was stopped goes on, too.
    ///
    /// # Errors
    /// The folder cannot be written, what it has written is more than [`LAYER_BYTES`](crate::live::LAYER_BYTES)
    /// with the holes of sparse files, or the sandbox has ended.
    pub async fn pack(&self, folder: &Path) -> Result<Digest, LiveError> {
        // Before the question: who drops this future in between must not leave it frozen.
        let frozen = Frozen(Arc::clone(&self.body.link));
        frozen.0.file(FileAsk::Freeze).await?;
        self.host.pack(self.body.upper.number, folder).await
    }
}
