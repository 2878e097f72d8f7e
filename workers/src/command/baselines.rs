//! `millrace-worker baselines`: the results of rules that learn nothing on the prompts of a run, to
//! compare with the run's.

use std::ffi::OsString;
use std::io::Read;

use anyhow::Context;
use clap::Parser;
use millrace_schemas::env_step::EnvStepTask;

use super::check_model;
use crate::envs::baselines;

/// The subcommand.
const WORD: &str = "baselines";

/// Plays fixed rules on prompts: reads their resets from standard input, a JSON list of env_step
/// tasks, and writes what each rule reached as JSON. `millrace up` does it at the end of a run.
#[derive(Debug, Parser)]
#[command(name = "millrace-worker baselines")]
pub(super) struct Baselines {}

impl Baselines {
    /// The parsed command line; `None` for that of a worker.
    pub(super) fn asked(words: impl IntoIterator<Item = OsString>) -> Option<Self> {
        check_model::asked(WORD, words)
    }

    /// Plays them.
    ///
    /// # Errors
    /// The input is no list of resets, or a prompt cannot be drawn.
    #[expect(clippy::print_stdout, reason = "the answer of a command")]
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let mut input = Vec::new();
        std::io::stdin().lock().read_to_end(&mut input).context("failed to read the prompts")?;
        let resets: Vec<EnvStepTask> = serde_json::from_slice(&input)
            .context("failed to read the prompts; give a JSON list of resets")?;
        println!("{}", serde_json::to_string(&baselines::play(&resets)?)?);
        Ok(())
    }
}
