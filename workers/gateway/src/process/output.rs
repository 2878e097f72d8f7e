//! The end of what a program writes.

use super::Ended;

/// Bytes of output that are kept: the last.
const OUTPUT_BYTES: usize = 16 * 1024;

/// The end of what a program wrote.
#[derive(Debug, Default)]
pub(super) struct Written {
    all: Tail,
    /// Without its errors.
    printed: Tail,
}

impl Written {
    /// Adds to its output.
    pub(super) fn print(&mut self, bytes: &[u8]) {
        self.all.add(bytes);
        self.printed.add(bytes);
    }

    /// Adds to its errors.
    pub(super) fn complain(&mut self, bytes: &[u8]) {
        self.all.add(bytes);
    }

    /// How it ended, with this exit code.
    pub(super) fn ended(&self, code: Option<i32>) -> Ended {
        Ended { code, output: self.all.text(), printed: self.printed.text() }
    }
}

/// The last bytes of an output.
#[derive(Debug, Default)]
struct Tail(Vec<u8>);

impl Tail {
    /// Adds what was written.
    fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        if self.0.len() > 2 * OUTPUT_BYTES {
            let surplus = self.0.len() - OUTPUT_BYTES;
            self.0.drain(..surplus);
        }
    }

    /// As text. What is no UTF-8 is replaced.
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}
