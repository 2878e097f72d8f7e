//! transformers' `generate`, in a process that is told what to sample line by line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};

use super::Args;

const SCRIPT: &str = include_str!("rival.py");

/// The process. It ends when its input does.
pub(super) struct Rival {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Rival {
    pub(super) fn start(args: &Args) -> anyhow::Result<Self> {
        let mut child = Command::new(&args.python)
            .args(["-c", SCRIPT])
            .arg(&args.model)
            .args([args.prompt.to_string(), args.threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!("failed to start {}; name another by --python", args.python.display())
            })?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("its output is piped")?);
        Ok(Self { child, input, output })
    }

    /// Seconds for so many sequences at once.
    pub(super) fn seconds(&mut self, dtype: &str, sequences: usize, tokens: u32) -> anyhow::Result<f64> {
        let input = self.input.as_mut().context("its input is open until it is dropped")?;
        writeln!(input, "{sequences} {dtype} {tokens}")?;
        input.flush()?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            bail!("transformers ended; what it said is above");
        }
        line.trim().parse().with_context(|| format!("transformers answered {line:?}"))
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        drop(self.input.take());
        // There is nobody to tell of a process that does not end well.
        let _ = self.child.wait();
    }
}
