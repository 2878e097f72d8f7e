//! Commands that go on beside requests: each has a number, and any number of requests listens to it.
//!
//! One task owns a command. It consumes what the command writes and what requests ask of it; it
//! waits for the command, and no listener ever keeps it waiting: what a listener has not taken is
//! kept up to a bound. Beyond it that listener is told so and gets no more; the command goes on.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use millrace_sandbox::End;
use millrace_sandbox::live::{Event, Exec, LiveError, Process, Terminal, TerminalSize};
use tokio::sync::{mpsc, oneshot};

use crate::hosted::{Counts, Using};

/// Commands of a sandbox at once.
const COMMANDS: usize = 256;
/// Requests to a command that wait for one another.
const QUEUE: usize = 16;
/// Bytes that wait for one listener at most.
const WAITING_BYTES: usize = 32 * 1024 * 1024;
/// What one piece that waits costs besides its bytes.
const PIECE_COST: usize = 128;
/// The signal by which a program is asked to end.
const TERMINATE: i32 = 15;

/// The commands of one sandbox that run.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    last: AtomicU32,
    running: Mutex<HashMap<u32, Arc<Command>>>,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct What {
    pub(crate) cmd: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: Option<String>,
    /// A name that a client gave it.
    pub(crate) tag: Option<String>,
    /// Whether it has an input; else that is empty.
    pub(crate) has_input: bool,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) terminal: Option<Terminal>,
}

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Command {
    /// Its number: this service's own, not one of the system within.
    pub(crate) pid: u32,
    pub(crate) what: What,
    ask: mpsc::Sender<Ask>,
    input_is_open: AtomicBool,
    /// `None`: it has ended.
    listeners: Mutex<Option<Vec<Mouth>>>,
}

/// What a listener hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    Out(Bytes),
    Err(Bytes),
    /// The last word.
    Ended(End),
    /// The last word: the listener was too slow, and has not heard all.
    Lost,
}

/// One who listens to a command from now on.
#[derive(Debug)]
pub(crate) struct Listener {
    from: mpsc::UnboundedReceiver<Heard>,
    waiting: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Mouth {
    to: mpsc::UnboundedSender<Heard>,
    waiting: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Ask {
    what: Asked,
    tell: oneshot::Sender<Result<(), LiveError>>,
}

#[derive(Debug)]
enum Asked {
    Input(Vec<u8>),
    CloseInput,
    Resize(TerminalSize),
    Terminate,
    Kill,
}

/// Why a command is not started, or does not do what is asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("the sandbox has 256 commands that run; end one")]
    Full,
    #[error("the command has ended")]
    Ended,
    #[error("the command has no input, or that was closed; start it with stdin=true")]
    NoInput,
    #[error("the command has no terminal; start it with one")]
    NoTerminal,
    #[error("{0}")]
    Sandbox(#[from] LiveError),
}

impl Commands {
    fn running(&self) -> MutexGuard<'_, HashMap<u32, Arc<Command>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a command, with its first listener.
    pub(crate) async fn start(sandbox: Using, what: What) -> Result<(Arc<Command>, Listener), CommandError> {
        if sandbox.commands.running().len() >= COMMANDS {
            return Err(CommandError::Full);
        }
        Counts::add(&sandbox.counts.commands);
        let argv = std::iter::once(what.cmd.clone()).chain(what.args.iter().cloned());
        let exec = Exec {
            env: what.env.clone(),
            cwd: what.cwd.clone(),
            timeout_ms: what.timeout_ms,
            // It may write without end: what nobody takes is dropped.
            output_bytes: u64::MAX,
            terminal: what.terminal,
            ..Exec::new(argv)
        };
        let process = sandbox.live.spawn(exec).await?;
        if !what.has_input {
            process.close_input().await?;
        }
        let pid = sandbox.commands.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (ask, asked) = mpsc::channel(QUEUE);
        let (mouth, listener) = pair();
        let input_is_open = AtomicBool::new(what.has_input);
        let listeners = Mutex::new(Some(vec![mouth]));
        let command = Arc::new(Command { pid, what, ask, input_is_open, listeners });
        sandbox.commands.running().insert(pid, Arc::clone(&command));
        tokio::spawn(serve(sandbox, process, Arc::clone(&command), asked));
        Ok((command, listener))
    }

    pub(crate) fn by_pid(&self, pid: u32) -> Option<Arc<Command>> {
        self.running().get(&pid).cloned()
    }

    pub(crate) fn by_tag(&self, tag: &str) -> Option<Arc<Command>> {
        self.running().values().find(|command| command.what.tag.as_deref() == Some(tag)).cloned()
    }

    /// All that run, by number.
    pub(crate) fn all(&self) -> Vec<Arc<Command>> {
        let mut all: Vec<Arc<Command>> = self.running().values().cloned().collect();
        all.sort_by_key(|command| command.pid);
        all
    }
}

impl Command {
    fn listeners(&self) -> MutexGuard<'_, Option<Vec<Mouth>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens from now on. `None`: it has ended.
    pub(crate) fn listen(&self) -> Option<Listener> {
        let (mouth, listener) = pair();
        self.listeners().as_mut()?.push(mouth);
        Some(listener)
    }

    pub(crate) async fn input(&self, bytes: Vec<u8>) -> Result<(), CommandError> {
        if !self.input_is_open.load(Ordering::Acquire) {
            return Err(CommandError::NoInput);
        }
        // No bytes would be the end of the input.
        if bytes.is_empty() { Ok(()) } else { self.ask(Asked::Input(bytes)).await }
    }

    pub(crate) async fn close_input(&self) -> Result<(), CommandError> {
        if !self.input_is_open.swap(false, Ordering::AcqRel) {
            return Err(CommandError::NoInput);
        }
        self.ask(Asked::CloseInput).await
    }

    pub(crate) async fn resize(&self, size: TerminalSize) -> Result<(), CommandError> {
        if self.what.terminal.is_none() {
            return Err(CommandError::NoTerminal);
        }
        self.ask(Asked::Resize(size)).await
    }

    /// Asks its own process to end.
    pub(crate) async fn terminate(&self) -> Result<(), CommandError> {
        self.ask(Asked::Terminate).await
    }

    /// Kills it and all that came of it.
    pub(crate) async fn kill(&self) -> Result<(), CommandError> {
        self.ask(Asked::Kill).await
    }

    async fn ask(&self, what: Asked) -> Result<(), CommandError> {
        let (tell, told) = oneshot::channel();
        self.ask.send(Ask { what, tell }).await.map_err(|_| CommandError::Ended)?;
        Ok(told.await.map_err(|_| CommandError::Ended)??)
    }

    /// Tells all listeners.
    fn say(&self, heard: &Heard) {
        if let Some(mouths) = self.listeners().as_mut() {
            mouths.retain(|mouth| mouth.say(heard.clone()));
        }
    }

    /// Tells all listeners the last word; nobody listens any more.
    fn say_last(&self, end: End) {
        for mouth in self.listeners().take().into_iter().flatten() {
            let _ = mouth.to.send(Heard::Ended(end));
        }
    }
}

fn pair() -> (Mouth, Listener) {
    let (to, from) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (Mouth { to, waiting: Arc::clone(&waiting) }, Listener { from, waiting })
}

impl Heard {
    fn cost(&self) -> usize {
        match self {
            Self::Out(bytes) | Self::Err(bytes) => bytes.len() + PIECE_COST,
            Self::Ended(_) | Self::Lost => 0,
        }
    }
}

impl Mouth {
    /// Returns whether there is somebody to tell more.
    fn say(&self, heard: Heard) -> bool {
        let cost = heard.cost();
        if self.waiting.load(Ordering::Acquire) + cost > WAITING_BYTES {
            let _ = self.to.send(Heard::Lost);
            return false;
        }
        self.waiting.fetch_add(cost, Ordering::AcqRel);
        self.to.send(heard).is_ok()
    }
}

impl Listener {
    /// The next word; `Lost`, where nothing follows the last one.
    pub(crate) async fn next(&mut self) -> Heard {
        let heard = self.from.recv().await.unwrap_or(Heard::Lost);
        self.waiting.fetch_sub(heard.cost(), Ordering::AcqRel);
        heard
    }
}

async fn serve(sandbox: Using, mut process: Process, command: Arc<Command>, mut asked: mpsc::Receiver<Ask>) {
    let end = loop {
        tokio::select! {
            event = process.next() => match event {
                Event::Out(bytes) => command.say(&Heard::Out(bytes.into())),
                Event::Err(bytes) => command.say(&Heard::Err(bytes.into())),
                Event::Ended { end, .. } => break end,
            },
            Some(Ask { what, tell }) = asked.recv() => {
                let _ = tell.send(match what {
                    Asked::Input(bytes) => process.write(&bytes).await,
                    Asked::CloseInput => process.close_input().await,
                    Asked::Resize(size) => process.resize(size).await,
                    Asked::Terminate => process.signal(TERMINATE).await,
                    Asked::Kill => process.kill().await,
                });
            }
        }
    };
    // First, so that who hears of the end finds it no more.
    sandbox.commands.running().remove(&command.pid);
    command.say_last(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_listener_is_told_what_it_misses_and_a_fast_one_misses_nothing() {
        let piece = Bytes::from(vec![0; 1024 * 1024]);
        let ((slow, mut slowly), (fast, mut quickly)) = (pair(), pair());
        let mut told = 0;
        for _ in 0..100 {
            assert!(fast.say(Heard::Out(piece.clone())));
            assert_eq!(quickly.next().await, Heard::Out(piece.clone()));
            if told == 0 && !slow.say(Heard::Out(piece.clone())) {
                told += 1;
            }
        }
        drop(slow);
        let mut heard = 0;
        while let Heard::Out(_) = slowly.next().await {
            heard += 1;
        }
        assert_eq!((heard, told), (WAITING_BYTES / (piece.len() + PIECE_COST), 1));
        drop(quickly);
        assert!(!fast.say(Heard::Out(piece)), "nobody listens");
    }
}
