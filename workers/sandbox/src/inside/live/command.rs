//! One command of a long-lived sandbox, from its start until it has been heard to the end.

use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use millrace_sandbox::End;
use millrace_sandbox::live::wire::{FromInit, Stream};
use millrace_sandbox::live::{Exec, TerminalSize};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::tend::Tend;
use super::terminal::{END_OF_INPUT, Screen};
use super::{HOME, program, tree};

/// What every command sees of an environment, unless it is told otherwise.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", HOME),
    ("USER", "user"),
    ("LOGNAME", "user"),
    ("SHELL", "/bin/bash"),
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
];
/// Between two looks whether a process that is to get a signal is there.
const LOOK: Duration = Duration::from_millis(2);
/// Bytes that are read of a pipe at once.
const PIECE: usize = 64 * 1024;
/// Messages to a command that wait: input above all, of which the owner sends the next piece when
/// it likes.
type Asked = mpsc::UnboundedReceiver<Ask>;

/// What a command is asked while it runs.
pub(crate) enum Ask {
    Input(Vec<u8>),
    Resize(TerminalSize),
    Signal(i32),
    End(End),
}

/// The way to a running command.
pub(crate) struct Way(mpsc::UnboundedSender<Ask>);

impl Way {
    pub(crate) fn new() -> (Self, Asked) {
        let (ask, asked) = mpsc::unbounded_channel();
        (Self(ask), asked)
    }

    pub(crate) fn input(&self, bytes: Vec<u8>) {
        let _ = self.0.send(Ask::Input(bytes));
    }

    pub(crate) fn resize(&self, size: TerminalSize) {
        let _ = self.0.send(Ask::Resize(size));
    }

    pub(crate) fn signal(&self, signal: i32) {
        let _ = self.0.send(Ask::Signal(signal));
    }

    pub(crate) fn end(&self, end: End) {
        let _ = self.0.send(Ask::End(end));
    }
}

/// Runs a command and tells the owner.
pub(crate) async fn run(tend: Rc<Tend>, id: u64, exec: Exec, asked: Asked) {
    let began = Instant::now();
    let message = match start(&tend, &exec) {
        Err(error) => FromInit::Refused { id, reason: format!("{error:#}") },
        Ok(Started { child, input, pipes, screen }) => {
            let pid = child.id().cast_signed();
            // Before anything else runs: it may have ended by then, or would pass for a stray.
            let ending = tend.ending_of(pid);
            let _ = tend.say.send(FromInit::Started { id }).await;
            let left = exec.output_bytes;
            let mut running = Running { tend: &tend, id, pid, pipes, input, screen, left };
            let end = running.watch(ending, asked, exec.timeout_ms).await;
            let end = running.rest(end).await;
            let wall_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            FromInit::Ended { id, end, wall_ms }
        }
    };
    tend.forget(id);
    let _ = tend.say.send(message).await;
}

/// A command that runs, and what leads to it.
struct Started {
    child: Child,
    input: mpsc::UnboundedSender<Vec<u8>>,
    pipes: [Pipe; 2],
    screen: Option<Screen>,
}

/// Starts it under a supervisor, which keeps its descendants together.
fn start(tend: &Tend, exec: &Exec) -> anyhow::Result<Started> {
    let screen = exec.terminal.map(Screen::open).transpose()?;
    let mut command = program();
    match &screen {
        None => command.arg(crate::SUPERVISE),
        Some(screen) => command.arg(crate::SUPERVISE_TERMINAL).arg(&screen.path),
    };
    let mut child = command
        .args(&exec.argv)
        .env_clear()
        .envs(ENVIRONMENT)
        .envs(&tend.build.spec.env)
        .envs(&exec.env)
        .current_dir(exec.cwd.as_deref().unwrap_or(HOME))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start a command in {}", exec.cwd.as_deref().unwrap_or(HOME)))?;
    let out = OwnedFd::from(child.stdout.take().context("its output is not there")?);
    let err = OwnedFd::from(child.stderr.take().context("its standard error is not there")?);
    let input = OwnedFd::from(child.stdin.take().context("its input is not there")?);
    let (to, end, out) = match &screen {
        None => (pipe::Sender::from_owned_fd(input)?, None, pipe::Receiver::from_owned_fd(out)?),
        Some(Screen { outer, .. }) => (
            pipe::Sender::from_owned_fd_unchecked(outer.try_clone()?)?,
            Some(END_OF_INPUT),
            pipe::Receiver::from_owned_fd_unchecked(outer.try_clone()?)?,
        ),
    };
    let pipes = [Pipe::of(out, Stream::Out), Pipe::of(pipe::Receiver::from_owned_fd(err)?, Stream::Err)];
    let (input, given) = mpsc::unbounded_channel();
    tokio::task::spawn_local(feed(to, given, end));
    Ok(Started { child, input, pipes, screen })
}

/// Writes the standard input, as fast as the command takes it. `end` is what says its end, where to
/// close it does not.
async fn feed(mut to: pipe::Sender, mut given: mpsc::UnboundedReceiver<Vec<u8>>, end: Option<u8>) {
    use tokio::io::AsyncWriteExt;
    while let Some(bytes) = given.recv().await {
        // No bytes are the end. A command that no longer reads needs none.
        if bytes.is_empty() {
            let _ = to.write_all(end.as_slice()).await;
            return;
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// One of the two streams.
struct Pipe {
    from: Option<pipe::Receiver>,
    stream: Stream,
}

impl Pipe {
    const fn of(from: pipe::Receiver, stream: Stream) -> Self {
        Self { from: Some(from), stream }
    }

    /// Waits until there is something to read; for ever, where nothing comes any more.
    async fn readable(&self) {
        match &self.from {
            Some(from) => drop(from.readable().await),
            None => std::future::pending().await,
        }
    }

    /// What is there. `None`: nothing now, or nothing any more.
    fn take(&mut self) -> Option<Vec<u8>> {
        self.read(|from, piece| from.try_read(piece))
    }

    /// What is there, asked of the system itself: the runtime may not have heard yet of what a
    /// command wrote before it ended.
    fn take_rest(&mut self) -> Option<Vec<u8>> {
        self.read(|from, piece| Ok(nix::unistd::read(from, piece)?))
    }

    fn read(
        &mut self,
        read: impl FnOnce(&pipe::Receiver, &mut [u8]) -> std::io::Result<usize>,
    ) -> Option<Vec<u8>> {
        let mut piece = vec![0; PIECE];
        match read(self.from.as_ref()?, &mut piece) {
            Ok(0) => self.from = None,
            Ok(n) => {
                piece.truncate(n);
                return Some(piece);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.from = None,
        }
        None
    }
}

struct Running<'t> {
    tend: &'t Rc<Tend>,
    id: u64,
    pid: i32,
    pipes: [Pipe; 2],
    input: mpsc::UnboundedSender<Vec<u8>>,
    screen: Option<Screen>,
    /// Bytes that it may still write.
    left: u64,
}

impl Running<'_> {
    /// Passes on what it writes until it ends, or must.
    async fn watch(
        &mut self,
        mut ending: oneshot::Receiver<WaitStatus>,
        mut asked: Asked,
        timeout_ms: Option<u64>,
    ) -> End {
        let late = async move {
            match timeout_ms {
                Some(ms) => sleep(Duration::from_millis(ms)).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(late);
        // Signals for a process that its supervisor is about to start.
        let mut early: Vec<i32> = Vec::new();
        let end = loop {
            tokio::select! {
                status = &mut ending => return self.how(status.ok()),
                () = &mut late => break End::Wall,
                Some(ask) = asked.recv() => match ask {
                    Ask::Input(bytes) => drop(self.input.send(bytes)),
                    Ask::Resize(size) => if let Some(screen) = &self.screen {
                        let _ = screen.resize(size);
                    },
                    Ask::Signal(signal) => early.push(signal),
                    Ask::End(end) => break end,
                },
                () = sleep(LOOK), if !early.is_empty() => early.retain(|signal| !self.signal(*signal)),
                () = self.pipes[0].readable() => if !self.pass(0).await { break End::Output },
                () = self.pipes[1].readable() => if !self.pass(1).await { break End::Output },
            }
        };
        self.tend.kill_tree(self.pid);
        let _ = ending.await;
        end
    }

    /// Passes on what one stream has. Returns whether it is within its bound.
    async fn pass(&mut self, which: usize) -> bool {
        let bytes = self.pipes[which].take();
        self.pass_on(which, bytes).await
    }

    async fn pass_on(&mut self, which: usize, bytes: Option<Vec<u8>>) -> bool {
        let Some(mut bytes) = bytes else { return true };
        let stream = self.pipes[which].stream;
        let within = bytes.len() as u64 <= self.left;
        bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len()));
        self.left -= bytes.len() as u64;
        if !bytes.is_empty() {
            let _ = self.tend.say.send(FromInit::Wrote { id: self.id, stream, bytes }).await;
        }
        within
    }

    /// Passes on what is left in the pipes, which what it left in the background may keep open.
    async fn rest(&mut self, end: End) -> End {
        let most = self.left.div_ceil(PIECE as u64) + 2;
        for which in 0..self.pipes.len() {
            for _ in 0..most {
                let open = self.pipes[which].from.is_some();
                let before = self.left;
                let bytes = self.pipes[which].take_rest();
                if !self.pass_on(which, bytes).await {
                    return End::Output;
                }
                if !open || self.left == before {
                    break;
                }
            }
        }
        end
    }

    fn how(&self, status: Option<WaitStatus>) -> End {
        match status {
            Some(WaitStatus::Exited(_, code)) => End::Exit(code),
            // The supervisor itself does not end by a signal: something within killed it, and what
            // it held together goes with it.
            Some(WaitStatus::Signaled(_, signal, _)) => {
                self.tend.kill_strays();
                End::Signal(signal as i32)
            }
            Some(_) | None => End::Broke,
        }
    }

    /// Sends a signal to the command's own process, the supervisor's first child. Returns whether
    /// that is there.
    fn signal(&self, signal: i32) -> bool {
        let Ok(signal) = Signal::try_from(signal) else { return true };
        let own = tree::children(self.pid).first().copied();
        own.is_some_and(|own| kill(Pid::from_raw(own), signal).is_ok())
    }
}

/// Says why a program does not start, as shells do.
pub(crate) fn not_started(program: &str, error: &std::io::Error) -> i32 {
    let _ = writeln!(std::io::stderr(), "failed to start {program}: {error}");
    if error.kind() == ErrorKind::NotFound { 127 } else { 126 }
}
