//! Time that passes only while nothing else happens: hours in seconds.

use anyhow::Context;

/// Runs `play` in virtual time, on this thread.
pub(crate) fn in_virtual_time<T>(play: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().context("failed to start")?;
    runtime.block_on(play)
}
