//! The worker's own program, which checks before a run begins what only workers can read or try.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// The worker's program.
///
/// # Errors
/// It is in neither place.
pub(super) fn find() -> Result<PathBuf> {
    find_program("millrace-worker")
}

/// A program of this build: beside this one, or on the path.
///
/// # Errors
/// It is in neither place.
pub(super) fn find_program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("failed to find this program")?;
    let beside = own.with_file_name(name);
    if beside.is_file() {
        return Ok(beside);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file());
    on_path.with_context(|| {
        format!("there is no {name} beside {} nor on the path; `make build` makes both", own.display())
    })
}

/// Has the program at `path` check something, which it reads from its input. What it says of it:
/// `Ok` that it is sound, or `Err` of what is wrong.
///
/// # Errors
/// The program cannot be run.
pub(super) async fn check(
    path: &Path,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    input: &[u8],
) -> Result<Result<String, String>> {
    let mut command = Command::new(path);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let fail = || format!("failed to run {} for a check", path.display());
    let mut child = command.spawn().with_context(fail)?;
    let mut pipe = child.stdin.take().context("a pipe was asked for")?;
    // A program that has found a mistake stops reading; its message is used.
    let (_, ran) = tokio::join!(
        async move {
            let _ = pipe.write_all(input).await;
        },
        child.wait_with_output()
    );
    let ran = ran.with_context(fail)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    Ok(if ran.status.success() { Ok(text(&ran.stdout)) } else { Err(text(&ran.stderr)) })
}
