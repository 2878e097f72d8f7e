//! A child process that ends with its parent, however the parent ends.
//!
//! A shell is between the two. It holds the read end of a pipe whose write end is the parent's, and
//! ends the child when the pipe closes. So the child survives neither a drop nor a `kill -9` of the
//! parent.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;

/// How often we look whether it is gone.
const LOOK: Duration = Duration::from_millis(5);

/// Runs the program given as arguments and prints its process id. Ends it when standard input
/// closes or the shell gets a signal to end. A hang-up, which may come to the whole process group,
/// ends neither.
const SHELL: &str = r#"
exec 3<&0
trap '' HUP
"$@" </dev/null >&2 3<&- &
child=$!
trap 'kill -TERM $child 2>/dev/null' INT TERM
echo $child
exec >/dev/null
{ trap - INT TERM; read -r _ <&3; kill -TERM $child 2>/dev/null; } &
watcher=$!
while :; do
  wait $child
  code=$?
  kill -0 $child 2>/dev/null || break
done
kill $watcher 2>/dev/null
exit $code
"#;

/// A child process. Dropping it ends it.
#[derive(Debug)]
pub struct Guarded {
    shell: Child,
    /// Closing it ends the child.
    alive: Option<ChildStdin>,
    pid: Pid,
}

impl Guarded {
    /// Starts the program of `command` with its arguments and environment; its output goes to
    /// `log`.
    pub fn spawn(command: &Command, log: &Path) -> io::Result<Self> {
        let mut guarded = Command::new("/bin/sh");
        guarded.arg("-c").arg(SHELL).arg("guard").arg(command.get_program()).args(command.get_args());
        guarded.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        guarded
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(log)?)
            // Ctrl-C is for us: what still runs needs the child while it drains.
            .process_group(0);
        let mut shell = guarded.spawn()?;
        let missing = |what| io::Error::other(format!("the shell gave no {what}"));
        let alive = shell.stdin.take().ok_or_else(|| missing("standard input"))?;
        let said = shell.stdout.take().ok_or_else(|| missing("standard output"))?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let pid = line.trim().parse().map_err(|_| missing("process id"))?;
        Ok(Self { shell, alive: Some(alive), pid: Pid::from_raw(pid) })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Whether it has not exited.
    pub fn is_running(&mut self) -> bool {
        matches!(self.shell.try_wait(), Ok(None))
    }

    /// Suspends it, as a machine that hangs: it keeps its connections and answers nothing.
    pub fn suspend(&self) -> io::Result<()> {
        Ok(kill(self.pid, Signal::SIGSTOP)?)
    }

    /// Lets it go on after [`Self::suspend`].
    pub fn resume(&self) -> io::Result<()> {
        Ok(kill(self.pid, Signal::SIGCONT)?)
    }

    /// Asks it to end and waits until it has; after `patience` it is killed.
    pub async fn stop(mut self, patience: Duration) {
        self.alive = None;
        let give_up = Instant::now() + patience;
        while self.is_running() && Instant::now() < give_up {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Kills it and waits until it is gone.
    pub async fn kill(mut self) {
        // It may have gone by itself.
        let _ = kill(self.pid, Signal::SIGKILL);
        while self.is_running() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if self.is_running() {
            let _ = kill(self.pid, Signal::SIGKILL);
        }
        self.alive = None;
        // The shell ends with its child, so this does not take long.
        let _ = self.shell.wait();
    }
}
