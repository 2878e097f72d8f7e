//! How full the streams are, for metrics.

/// A stream as its leader reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamReport {
    /// Messages in the stream. In a task stream: tasks that are queued or in flight.
    pub messages: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Bytes at which the stream is full; `None` without a bound of its own.
    pub max_bytes: Option<u64>,
    /// Servers that should have a copy.
    pub copies: u32,
    /// Servers that have all of it now.
    pub current: u32,
}
