//! The first process within: puts up the last walls, for itself and all that it starts, then runs
//! the program. When it ends the kernel kills all that is left.

use anyhow::{Context, bail};
use millrace_sandbox::{Job, Limits, Line, Protection};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;

use super::{child, fence, filter, root};
use crate::say;

/// Open files of a process at most.
const OPEN_FILES: u64 = 256;
/// Bytes of a thread's stack, unless it asks for more: as most systems have it. More would be
/// memory that threads only reserve.
const STACK: u64 = 8 * 1024 * 1024;

/// Runs the job.
///
/// # Errors
/// The machine lacks a protection that is asked for.
pub(crate) fn run(job: &Job) -> anyhow::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("failed to bind this life to its parent's")?;
    prctl::set_no_new_privs().context("failed to refuse new rights")?;
    bound(job).context("failed to set limits")?;
    let mut lacks = Vec::new();
    for (protection, stands) in
        [(Protection::Landlock, fence::put_up(&job.read)), (Protection::Seccomp, filter::put_up())]
    {
        let Err(error) = stands else { continue };
        if !job.may_lack.contains(&protection) {
            bail!("{protection:?} does not stand: {error:#}; a run may do without by `may_lack`");
        }
        lacks.push(protection);
    }
    let run = job.runs.first().context("a job needs a run")?;
    say(&Line::Ready(lacks));
    let started = || say(&Line::Started);
    say(&Line::Ran(child::run((run, &job.files), &job.limits, root::FOLDER.as_ref(), started)?));
    Ok(())
}

/// Bounds of each process, which those that it starts inherit.
fn bound(job: &Job) -> nix::Result<()> {
    let limits: &Limits = &job.limits;
    // What the job brings is written by this process, under the same bound.
    let file_bytes = limits.disk_bytes.max(job.longest_text());
    let seconds = limits.cpu_ms.div_ceil(1_000).max(1);
    for (resource, soft, hard) in [
        (Resource::RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
        (Resource::RLIMIT_STACK, STACK, limits.memory_bytes.max(STACK)),
        (Resource::RLIMIT_CPU, seconds, seconds + 1),
        (Resource::RLIMIT_FSIZE, file_bytes, file_bytes),
        // This process and the one outside count as well.
        (Resource::RLIMIT_NPROC, limits.processes + 2, limits.processes + 2),
        (Resource::RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (Resource::RLIMIT_CORE, 0, 0),
        (Resource::RLIMIT_MEMLOCK, 0, 0),
        (Resource::RLIMIT_MSGQUEUE, 0, 0),
    ] {
        setrlimit(resource, soft, hard)?;
    }
    Ok(())
}
