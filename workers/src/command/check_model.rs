//! `millrace-worker check-model DIR`: everything that is wrong with a model directory, before a run
//! starts with it.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::bail;
use clap::Parser;
use millrace_policy::directory::ModelDir;

/// The subcommand.
const WORD: &str = "check-model";

/// The parsed command line if its first argument is `word`.
pub(super) fn asked<C: Parser>(word: &str, words: impl IntoIterator<Item = OsString>) -> Option<C> {
    let words: Vec<OsString> = words.into_iter().skip(1).collect();
    words.first().is_some_and(|first| first == word).then(|| C::parse_from(words))
}

/// Checks a directory with a model of the Hugging Face hub: everything must exist, fit together,
/// and be computable here, and every number must be finite. Reports everything that is wrong
#[derive(Debug, Parser)]
#[command(name = "millrace-worker check-model")]
pub(super) struct CheckModel {
    /// The directory
    directory: PathBuf,
    /// Tokens that a rollout may have. Default: as many as the model takes
    #[arg(long)]
    context: Option<u32>,
    /// For an environment that speaks text: there must be a tokenizer
    #[arg(long)]
    text: bool,
}

impl CheckModel {
    /// The parsed command line; `None` for that of a worker.
    pub(super) fn asked(words: impl IntoIterator<Item = OsString>) -> Option<Self> {
        asked(WORD, words)
    }

    /// Checks it.
    ///
    /// # Errors
    /// Everything that is wrong.
    #[expect(clippy::print_stdout, reason = "the answer of a command")]
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let dir = ModelDir::open(&self.directory, self.context)?;
        dir.check_numbers()?;
        if self.text && !dir.speaks() {
            bail!(
                "model directory {} has no tokenizer.json; the environment speaks text",
                self.directory.display()
            );
        }
        let config = dir.config();
        let (class, parameters) = (config.architecture.class(), dir.parameters());
        let (vocabulary, context) = (config.vocab_size, config.context);
        let tokenizer = if dir.speaks() { "with" } else { "without" };
        println!(
            "{class}, {parameters} parameters, {vocabulary} tokens, context {context}, {tokenizer} a tokenizer"
        );
        Ok(())
    }
}
