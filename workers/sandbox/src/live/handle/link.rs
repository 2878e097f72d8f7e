//! The connection to the first process within: many commands and questions over one stream.
//!
//! One task reads, as long as the connection is there, and never waits for who takes the words: the
//! bytes of a command are bounded by its `output_bytes`, and are freed with its `Process`.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::groups::Group;
use crate::job::End;
use crate::live::process::{Event, Process};
use crate::live::spec::{Exec, LiveError};
use crate::live::wire::{self, Fault, FileAnswer, FileAsk, FromInit, PATH_BYTES, ToInit};

#[derive(Debug)]
pub(crate) struct Link {
    to: tokio::sync::Mutex<OwnedWriteHalf>,
    /// The same connection, to close it from anywhere.
    raw: Option<std::os::unix::net::UnixStream>,
    open: AtomicBool,
    next: AtomicU64,
    busy: Notify,
    waiting: Mutex<Waiting>,
    group: Option<Group>,
    /// Kills for want of memory that commands were told of.
    told_kills: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    starts: HashMap<u64, oneshot::Sender<Result<(), LiveError>>>,
    commands: HashMap<u64, mpsc::UnboundedSender<Event>>,
    files: HashMap<u64, oneshot::Sender<Result<FileAnswer, Fault>>>,
}

impl Link {
    pub(crate) fn over(stream: UnixStream, group: Option<Group>) -> Arc<Self> {
        let raw = stream.as_fd().try_clone_to_owned().ok().map(Into::into);
        let (from, to) = stream.into_split();
        let link = Arc::new(Self {
            to: tokio::sync::Mutex::new(to),
            raw,
            open: AtomicBool::new(true),
            next: AtomicU64::new(0),
            busy: Notify::new(),
            waiting: Mutex::default(),
            group,
            told_kills: AtomicU64::new(0),
        });
        tokio::spawn(read(from, Arc::clone(&link)));
        link
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Whether a command runs.
    pub(crate) fn is_busy(&self) -> bool {
        !self.waiting().commands.is_empty()
    }

    /// Whether a command ever ran: before that there is nothing to look at.
    pub(crate) fn has_started(&self) -> bool {
        self.next.load(Ordering::Relaxed) > 0
    }

    /// Processes of it that the kernel killed, because there was no more memory.
    pub(crate) fn kills(&self) -> u64 {
        self.group.as_ref().map_or(0, Group::kills)
    }

    /// The number of the running command that began last.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.waiting().commands.keys().max().copied()
    }

    /// Whether a command that ended was told of so many kills.
    pub(crate) fn has_told(&self, kills: u64) -> bool {
        self.told_kills.load(Ordering::Relaxed) >= kills
    }

    /// How a command ended whose sandbox says `end`: the kernel kills without a word.
    fn end(&self, end: End) -> End {
        let kills = self.kills();
        if kills > self.told_kills.swap(kills, Ordering::Relaxed) { End::Memory } else { end }
    }

    /// Waits until the next command starts.
    pub(crate) async fn busy(&self) {
        self.busy.notified().await;
    }

    /// Closes the connection. All who wait hear of it.
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::Release);
        if let Some(raw) = &self.raw {
            let _ = raw.shutdown(std::net::Shutdown::Both);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message. Once begun it is written to its end, also where the caller no longer waits.
    pub(crate) async fn send(self: &Arc<Self>, message: &ToInit) -> Result<(), LiveError> {
        if !self.is_open() {
            return Err(LiveError::Ended);
        }
        let bytes = wire::encode(message).map_err(|error| LiveError::Failed(error.to_string()))?;
        let link = Arc::clone(self);
        let written = tokio::spawn(async move {
            let mut to = link.to.lock().await;
            tokio::io::AsyncWriteExt::write_all(&mut *to, &bytes).await
        });
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(LiveError::Ended),
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts a command.
    pub(crate) async fn start(self: &Arc<Self>, exec: Exec) -> Result<Process, LiveError> {
        exec.check()?;
        let id = self.number();
        let (tell, told) = oneshot::channel();
        let (say, events) = mpsc::unbounded_channel();
        {
            let mut waiting = self.waiting();
            waiting.starts.insert(id, tell);
            waiting.commands.insert(id, say);
        }
        // From here on, dropping it kills the command.
        let process = Process { id, link: Arc::downgrade(self), events, is_over: false };
        self.send(&ToInit::Start { id, exec }).await?;
        self.busy.notify_one();
        match told.await {
            Ok(Ok(())) => Ok(process),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(LiveError::Ended),
        }
    }

    /// Asks something about files.
    pub(crate) async fn file(self: &Arc<Self>, ask: FileAsk) -> Result<FileAnswer, LiveError> {
        ask.paths().into_iter().try_for_each(is_short)?;
        let id = self.number();
        let (tell, told) = oneshot::channel();
        self.waiting().files.insert(id, tell);
        self.send(&ToInit::File { id, ask }).await?;
        Ok(told.await.map_err(|_| LiveError::Ended)??)
    }

    fn take(&self, said: FromInit) {
        // Before the lock: it reads a file.
        let said = match said {
            FromInit::Ended { id, end, wall_ms } => FromInit::Ended { id, end: self.end(end), wall_ms },
            said => said,
        };
        let mut waiting = self.waiting();
        match said {
            FromInit::Started { id } => {
                if let Some(tell) = waiting.starts.remove(&id) {
                    let _ = tell.send(Ok(()));
                }
            }
            FromInit::Refused { id, reason } => {
                waiting.commands.remove(&id);
                if let Some(tell) = waiting.starts.remove(&id) {
                    let _ = tell.send(Err(LiveError::Failed(reason)));
                }
            }
            FromInit::Wrote { id, stream, bytes } => {
                if let Some(say) = waiting.commands.get(&id) {
                    let _ = say.send(Event::wrote(stream, bytes));
                }
            }
            FromInit::Ended { id, end, wall_ms } => {
                if let Some(say) = waiting.commands.remove(&id) {
                    let _ = say.send(Event::Ended { end, wall_ms });
                }
            }
            FromInit::File { id, answer } => {
                if let Some(tell) = waiting.files.remove(&id) {
                    let _ = tell.send(answer);
                }
            }
            // Of a sandbox that is being made; this one is.
            FromInit::Warm | FromInit::Ready { .. } | FromInit::Failed(_) => {}
        }
    }
}

/// A path that the kernel may know. A longer one would not fit into a frame at some length.
fn is_short(path: &str) -> Result<(), Fault> {
    if path.len() <= PATH_BYTES {
        return Ok(());
    }
    let (what, shown) = ("take".to_owned(), path.chars().take(80).chain(['…']).collect());
    let reason = format!("it has {} bytes; a path has at most {PATH_BYTES}", path.len());
    Err(Fault { what, path: shown, reason, missing: false })
}

/// Takes what the sandbox says until the connection ends; then all who wait hear of the end.
async fn read(mut from: OwnedReadHalf, link: Arc<Link>) {
    while let Ok(said) = wire::receive(&mut from).await {
        link.take(said);
    }
    link.close();
    let waiting = std::mem::take(&mut *link.waiting());
    for say in waiting.commands.into_values() {
        let _ = say.send(Event::Ended { end: End::Broke, wall_ms: 0 });
    }
}
