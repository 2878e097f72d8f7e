//! `millrace schema`: JSON Schema of everything that travels or that people write.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use millrace_schemas::schema;

use super::term::say;

/// Arguments of `millrace schema`.
#[derive(Debug, clap::Args)]
pub(super) struct SchemaArgs {
    /// Document whose schema to print; without it, the names are listed
    name: Option<String>,
    /// Write all schemas into this folder, one file each
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    write: Option<PathBuf>,
}

impl SchemaArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        match (self.name, self.write) {
            (Some(name), _) => print(&name)?,
            (None, Some(folder)) => write(&folder)?,
            (None, None) => schema::all().iter().for_each(|(name, _)| say(name)),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The text as it is committed.
fn text(schema: &impl serde::Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(schema)? + "\n")
}

fn print(name: &str) -> Result<()> {
    let all = schema::all();
    let Some((_, found)) = all.iter().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        bail!("unknown document name={name:?}; known: {}", names.join(", "));
    };
    say(text(found)?.trim_end());
    Ok(())
}

fn write(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("failed to make folder={}", folder.display()))?;
    for (name, schema) in schema::all() {
        let path = folder.join(format!("{name}.json"));
        std::fs::write(&path, text(&schema)?)
            .with_context(|| format!("failed to write path={}", path.display()))?;
        say(path.display());
    }
    Ok(())
}
