//! `millrace check`: whether run files are sound, as `millrace submit` and `up` find out. It starts no
//! part of a run, and writes nothing.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use millrace_schemas::RunSpec;
use millrace_schemas::submit::ModelSpec;

use super::submit::parse;
use super::term::{remark, say};
use super::up::model;
use super::{data, worker};

mod summary;

/// Arguments of `millrace check`.
#[derive(Debug, clap::Args)]
pub(super) struct CheckArgs {
    /// The run files, TOML or JSON
    #[arg(required = true, value_name = "RUN_FILE")]
    run_files: Vec<PathBuf>,
}

impl CheckArgs {
    pub(super) async fn run(self) -> Result<ExitCode> {
        let mut code = ExitCode::SUCCESS;
        for path in &self.run_files {
            match check(path).await {
                Ok(spec) => {
                    say(format_args!("{}: sound", path.display()));
                    summary::lines(&spec).iter().for_each(say);
                }
                Err(error) => {
                    remark(format_args!("{}: {error:#}", path.display()));
                    code = ExitCode::FAILURE;
                }
            }
        }
        Ok(code)
    }
}

/// Reads a run file and its rows, and checks both, and the model's directory where it is at hand.
async fn check(path: &Path) -> Result<RunSpec> {
    let mut spec = parse(path)?;
    let contents = data::read(&mut spec, path)?;
    if let ModelSpec::HuggingFace { path, .. } = &spec.model {
        if !Path::new(path).is_dir() {
            remark(format_args!("model.path = {path:?} is not checked: {}", model::absent(path)));
        } else if worker::find().is_err() {
            remark(format_args!("model.path = {path:?} is not checked: `make build` makes millrace-worker"));
        } else {
            model::check(&spec).await?;
            data::check_prompts(&spec, &contents, &[]).await?;
        }
    }
    Ok(spec)
}
