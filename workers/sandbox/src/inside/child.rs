//! One program, from its start until nothing of it is left.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use millrace_sandbox::{End, File, Limits, Ran, Run};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

/// Milliseconds between two looks whether it has ended.
const LOOK: u16 = 2;
/// Bytes of the standard error that are told.
const TOLD: usize = 2_048;
/// What it sees of an environment. Libraries that compute would start a thread for each processor.
const ENVIRONMENT: [(&str, &str); 6] = [
    ("PATH", "/usr/bin:/bin"),
    ("LANG", "C.UTF-8"),
    // Each thread would reserve 64 MiB for itself otherwise.
    ("MALLOC_ARENA_MAX", "1"),
    ("PYTHONHASHSEED", "0"),
    ("OMP_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
];

/// Runs a program in `folder`, and kills whatever it leaves behind. Calls `started` once the
/// program runs.
///
/// # Errors
/// Before `started`: the program cannot be started, which is not its fault. Later: what it did is
/// the cause.
pub(crate) fn run(
    (run, files): (&Run, &[File]),
    limits: &Limits,
    folder: &Path,
    started: impl FnOnce(),
) -> anyhow::Result<Ran> {
    let input = folder.join(".input");
    for file in files {
        fs::write(folder.join(&file.name), &file.text).context("failed to write a file of a run")?;
    }
    fs::write(&input, &run.stdin).context("failed to write the input of a run")?;
    let opened = fs::File::open(&input)?;
    fs::remove_file(&input)?;
    let (path, arguments) = run.command.split_first().context("a run needs a command")?;
    let before = cpu_ms();
    let began = Instant::now();
    let mut child = Command::new(path)
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .envs(ENVIRONMENT)
        .env("HOME", folder)
        .env("TMPDIR", folder)
        .stdin(opened)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start {path}"))?;
    started();
    let mut output = Output::of(&mut child, limits.output_bytes)?;
    let end = watch(&mut child, &mut output, began + Duration::from_millis(limits.wall_ms))?;
    let wall_ms = u64::try_from(began.elapsed().as_millis())?;
    kill_all();
    output.read();
    let end = if output.over() { End::Output } else { end };
    Ok(Ran {
        end,
        stdout: output.stdout.text(),
        stderr: output.stderr.text(),
        wall_ms,
        cpu_ms: cpu_ms() - before,
    })
}

/// Reads what the program writes until it ends, or must.
fn watch(child: &mut Child, output: &mut Output, until: Instant) -> anyhow::Result<End> {
    loop {
        output.wait()?;
        output.read();
        if let Some(status) = child.try_wait().context("failed to wait for a program")? {
            return Ok(how(status));
        }
        let late = Instant::now() >= until;
        if late || output.over() {
            child.kill().context("failed to kill a program")?;
            child.wait().context("failed to wait for a program")?;
            return Ok(if late { End::Wall } else { End::Output });
        }
    }
}

fn how(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exit(code),
        (None, Some(signal)) if signal == Signal::SIGXCPU as i32 => End::Cpu,
        (None, signal) => End::Signal(signal.unwrap_or(0)),
    }
}

/// Kills everything within but this process, which is the first, and waits until it is gone.
fn kill_all() {
    loop {
        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        if waitpid(Pid::from_raw(-1), None) == Err(Errno::ECHILD) {
            return;
        }
    }
}

/// Processor time of all that ended here.
fn cpu_ms() -> u64 {
    getrusage(UsageWho::RUSAGE_CHILDREN)
        .map_or(0, |usage| (usage.user_time() + usage.system_time()).num_milliseconds().unsigned_abs())
}

/// What a program writes.
struct Output {
    stdout: Stream,
    stderr: Stream,
    most: u64,
}

/// One of its two streams, and what is kept of it: the beginning of the one, the end of the other.
struct Stream {
    pipe: Option<Box<dyn Pipe>>,
    kept: Vec<u8>,
    read: u64,
    keep_end: bool,
}

trait Pipe: Read + AsFd {}
impl<T: Read + AsFd> Pipe for T {}

impl Output {
    fn of(child: &mut Child, most: u64) -> anyhow::Result<Self> {
        let stdout = child.stdout.take().context("its output is not there")?;
        let stderr = child.stderr.take().context("its standard error is not there")?;
        Ok(Self { stdout: Stream::of(stdout, false)?, stderr: Stream::of(stderr, true)?, most })
    }

    /// Waits for words, for a moment.
    fn wait(&self) -> anyhow::Result<()> {
        let pipes = [&self.stdout, &self.stderr].into_iter().filter_map(|stream| stream.pipe.as_ref());
        let mut ends: Vec<_> = pipes.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)).collect();
        match poll(&mut ends, PollTimeout::from(LOOK)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&mut self) {
        let most = self.most;
        self.stdout.read(most);
        self.stderr.read(most);
    }

    fn over(&self) -> bool {
        self.stdout.read + self.stderr.read > self.most
    }
}

impl Stream {
    fn of(pipe: impl Pipe + 'static, keep_end: bool) -> anyhow::Result<Self> {
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self { pipe: Some(Box::new(pipe)), kept: Vec::new(), read: 0, keep_end })
    }

    /// Reads what is there, up to `most` bytes and a little.
    fn read(&mut self, most: u64) {
        let mut piece = [0; 16 * 1024];
        while self.read <= most {
            let Some(pipe) = &mut self.pipe else { return };
            match pipe.read(&mut piece) {
                Ok(0) => self.pipe = None,
                Ok(n) => {
                    self.read += n as u64;
                    self.kept.extend_from_slice(&piece[..n]);
                    if self.keep_end {
                        self.kept.drain(..self.kept.len().saturating_sub(TOLD));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }
}
