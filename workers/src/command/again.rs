//! Starting this program once more in the same process, as if it had been restarted.

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;

use anyhow::Context;
use nix::unistd::execv;

/// Replaces this process by the same program with the same arguments. Signals that are held back wait until
/// the new one notes them.
///
/// # Errors
/// The program cannot be started. It returns only then.
pub(super) fn again() -> anyhow::Result<()> {
    let program = std::env::current_exe().context("failed to find this program")?;
    let bytes = |text: std::ffi::OsString| CString::new(text.into_vec());
    let program = bytes(program.into_os_string()).context("failed to read this program's path")?;
    let arguments: Result<Vec<_>, _> = std::env::args_os().map(bytes).collect();
    let arguments = arguments.context("failed to read this process's arguments")?;
    execv(&program, &arguments).context("failed to start this program again")?;
    Ok(())
}
