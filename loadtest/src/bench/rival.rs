//! The other side: a Python process that is asked and answers in lines of JSON.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The process. It ends when its input does.
pub(super) struct Rival {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Rival {
    pub(super) fn start(python: &Path, script: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(python)
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to start {}; name another by --python", python.display()))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("its output is piped")?);
        Ok(Self { child, input, output })
    }

    /// Sends a line and waits for the one that answers it.
    pub(super) fn ask<T: DeserializeOwned>(&mut self, question: &impl Serialize) -> anyhow::Result<T> {
        let input = self.input.as_mut().context("its input is open until it is dropped")?;
        writeln!(input, "{}", serde_json::to_string(question)?)?;
        input.flush()?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        anyhow::ensure!(!line.is_empty(), "the rival ended; what it said is above");
        serde_json::from_str(&line).with_context(|| format!("the rival answered {line:?}"))
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        drop(self.input.take());
        // There is nobody to tell of a process that does not end well.
        let _ = self.child.wait();
    }
}
