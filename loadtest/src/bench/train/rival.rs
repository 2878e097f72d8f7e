//! The other side: a Python process that makes a step whenever it is asked.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::ours::{LEARNING_RATE, MAX_GRAD_NORM};
use super::rollouts::{Data, Rollout};
use super::{Args, StepFigures};

/// What `rival.py` is told.
#[derive(Debug, Serialize)]
pub(super) struct Settings<'a> {
    model: PathBuf,
    threads: i32,
    microbatch: u32,
    recompute: bool,
    dtype: &'static str,
    learning_rate: f64,
    max_grad_norm: f64,
    rollouts: &'a [Rollout],
}

impl<'a> Settings<'a> {
    pub(super) fn new(args: &Args, data: &'a Data) -> Self {
        Self {
            model: args.model.clone(),
            threads: args.threads,
            microbatch: args.microbatch,
            recompute: args.recompute,
            dtype: "float32",
            learning_rate: LEARNING_RATE,
            max_grad_norm: MAX_GRAD_NORM,
            rollouts: &data.rollouts,
        }
    }
}

/// What it answers first.
#[derive(Debug, Deserialize)]
pub(super) struct Hello {
    pub(super) matmul_flops: f64,
}

/// The process; it ends with this value.
pub(super) struct Rival {
    child: Child,
    tell: ChildStdin,
    hear: BufReader<ChildStdout>,
    pub(super) hello: Hello,
}

impl Rival {
    pub(super) fn start(python: &Path, settings: &Settings<'_>) -> anyhow::Result<Self> {
        let mut child = Command::new(python)
            .args(["-c", include_str!("rival.py")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to start {}", python.display()))?;
        let mut tell = child.stdin.take().context("the rival has no input")?;
        let mut hear = BufReader::new(child.stdout.take().context("the rival has no output")?);
        writeln!(tell, "{}", serde_json::to_string(settings)?)?;
        let hello = answer(&mut hear)?;
        Ok(Self { child, tell, hear, hello })
    }

    pub(super) fn step(&mut self) -> anyhow::Result<StepFigures> {
        writeln!(self.tell, "step")?;
        answer(&mut self.hear)
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answer<T: for<'de> Deserialize<'de>>(hear: &mut impl BufRead) -> anyhow::Result<T> {
    let mut line = String::new();
    hear.read_line(&mut line)?;
    serde_json::from_str(&line)
        .with_context(|| format!("the rival said {line:?}; needs torch and transformers"))
}
