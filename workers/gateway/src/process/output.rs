//! The end of what a program writes.

/// Bytes of output that are kept: the last.
const OUTPUT_BYTES: usize = 16 * 1024;

/// The last bytes of an output.
#[derive(Debug, Default)]
pub(super) struct Tail(Vec<u8>);

impl Tail {
    /// Adds what was written.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        if self.0.len() > 2 * OUTPUT_BYTES {
            let surplus = self.0.len() - OUTPUT_BYTES;
            self.0.drain(..surplus);
        }
    }

    /// As text. What is no UTF-8 is replaced.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}
