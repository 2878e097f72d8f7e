//! Commands that go on beside requests: each has a number, and any number of requests listens to it.
//!
//! One task owns a command. It consumes what the command writes and what requests ask of it; it
//! waits for the command, and no listener ever keeps it waiting: `listeners.rs` bounds what waits for
//! them.

mod listeners;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_sandbox::End;
use millrace_sandbox::live::{Event, Exec, LiveError, Process, Terminal, TerminalSize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::hosted::{Counts, Using};
use listeners::{Budget, LISTENERS, Mouth, pair};
pub(crate) use listeners::{Heard, Listener};

/// Commands of a sandbox at once.
const COMMANDS: usize = 256;
/// Requests to a command that wait for one another.
const QUEUE: usize = 16;
/// The signal by which a program is asked to end.
const TERMINATE: i32 = 15;

/// The commands of one sandbox that run.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    last: AtomicU32,
    running: Mutex<HashMap<u32, Arc<Command>>>,
    room: Room,
}

/// What the commands of a sandbox share.
#[derive(Debug)]
struct Room {
    /// One permit for each command that runs or is being started.
    commands: Arc<Semaphore>,
    budget: Budget,
}

impl Default for Room {
    fn default() -> Self {
        Self { commands: Arc::new(Semaphore::new(COMMANDS)), budget: Budget::default() }
    }
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
    /// One permit for each listener until its client has gone.
    places: Arc<Semaphore>,
    budget: Budget,
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
    #[error("process.pid={0}: 16 requests listen to this command; end one, or write its output to a file")]
    Listeners(u32),
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

    fn room(&self) -> Result<OwnedSemaphorePermit, CommandError> {
        Arc::clone(&self.room.commands).try_acquire_owned().map_err(|_| CommandError::Full)
    }

    /// Starts a command, with its first listener.
    pub(crate) async fn start(sandbox: Using, what: What) -> Result<(Arc<Command>, Listener), CommandError> {
        let room = sandbox.commands.room()?;
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
        let command = Arc::new(Command::new(pid, what, ask, sandbox.commands.room.budget.clone()));
        let listener = command.listen()?;
        sandbox.commands.running().insert(pid, Arc::clone(&command));
        tokio::spawn(serve((sandbox, room), process, Arc::clone(&command), asked));
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
    fn new(pid: u32, what: What, ask: mpsc::Sender<Ask>, budget: Budget) -> Self {
        let input_is_open = AtomicBool::new(what.has_input);
        let (listeners, places) = (Mutex::new(Some(Vec::new())), Arc::new(Semaphore::new(LISTENERS)));
        Self { pid, what, ask, input_is_open, listeners, places, budget }
    }

    fn listeners(&self) -> MutexGuard<'_, Option<Vec<Mouth>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens from now on.
    pub(crate) fn listen(&self) -> Result<Listener, CommandError> {
        let mut listeners = self.listeners();
        let mouths = listeners.as_mut().ok_or(CommandError::Ended)?;
        let place = Arc::clone(&self.places).try_acquire_owned();
        let (mouth, listener) = pair(&self.budget, place.map_err(|_| CommandError::Listeners(self.pid))?);
        mouths.push(mouth);
        Ok(listener)
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
            mouth.say(Heard::Ended(end));
        }
    }
}

async fn serve(
    (sandbox, room): (Using, OwnedSemaphorePermit),
    mut process: Process,
    command: Arc<Command>,
    mut asked: mpsc::Receiver<Ask>,
) {
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
    // First, so that who hears of the end finds it no more, and has room for another.
    sandbox.commands.running().remove(&command.pid);
    drop(room);
    command.say_last(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(room: &Room) -> Command {
        let what = What {
            cmd: "yes".to_owned(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            tag: None,
            has_input: false,
            timeout_ms: None,
            terminal: None,
        };
        let (ask, _) = mpsc::channel(QUEUE);
        Command::new(7, what, ask, room.budget.clone())
    }

    #[tokio::test]
    async fn a_command_has_no_more_listeners_than_it_may_have() {
        let command = command(&Room::default());
        let mut all: Vec<Listener> = (0..LISTENERS).map(|_| command.listen().unwrap()).collect();
        let refused = command.listen().unwrap_err();
        assert_eq!(refused, CommandError::Listeners(7));
        assert!(refused.to_string().contains("process.pid=7: 16 "), "{refused}");
        // One that is told no more is one until its client has gone.
        command.listeners().as_mut().unwrap().clear();
        assert_eq!(command.listen().unwrap_err(), CommandError::Listeners(7));
        all.pop();
        all.push(command.listen().unwrap());
        all.pop();
        command.say_last(End::Exit(0));
        assert_eq!(command.listen().unwrap_err(), CommandError::Ended);
    }

    #[test]
    fn room_for_a_command_is_taken_before_it_is_started() {
        let commands = Commands::default();
        let mut starting: Vec<_> = (0..COMMANDS).map(|_| commands.room().unwrap()).collect();
        assert_eq!(commands.room().unwrap_err(), CommandError::Full);
        // One that does not start gives its room back.
        starting.pop();
        assert!(commands.room().is_ok());
    }
}
