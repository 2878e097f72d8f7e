//! A command that runs in a long-lived sandbox.

use std::sync::Weak;

use tokio::sync::mpsc;

use crate::job::End;
use crate::live::handle::Link;
use crate::live::spec::{Exec, LiveError, TerminalSize};
use crate::live::wire::{PIECE_BYTES, Stream, ToInit};

/// What a command says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It wrote to its standard output.
    Out(Vec<u8>),
    /// It wrote to its standard error.
    Err(Vec<u8>),
    /// It has ended; the last event. What it left in the background lives on, unless it was killed.
    Ended {
        /// How.
        end: End,
        /// Milliseconds from start to end.
        wall_ms: u64,
    },
}

/// A running command. Dropping it kills the command and all that came of it.
#[derive(Debug)]
pub struct Process {
    pub(crate) id: u64,
    pub(crate) link: Weak<Link>,
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
    pub(crate) is_over: bool,
}

impl Process {
    /// The next event. After `Ended`, and where the sandbox itself ended, an end with
    /// [`End::Broke`].
    pub async fn next(&mut self) -> Event {
        let event = self.events.recv().await.unwrap_or(Event::Ended { end: End::Broke, wall_ms: 0 });
        self.is_over |= matches!(event, Event::Ended { .. });
        event
    }

    /// Starts another command in the same sandbox.
    ///
    /// # Errors
    /// As for [`LiveSandbox::spawn`](super::LiveSandbox::spawn).
    pub async fn spawn_beside(&self, exec: Exec) -> Result<Self, LiveError> {
        self.link.upgrade().ok_or(LiveError::Ended)?.start(exec).await
    }

    /// Writes to its standard input, or types into its terminal. Returns before the command has read
    /// it. A terminal that reads by lines takes 4,095 bytes of one.
    ///
    /// # Errors
    /// The sandbox has ended.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), LiveError> {
        for piece in bytes.chunks(PIECE_BYTES) {
            self.send(ToInit::Input { id: self.id, bytes: piece.to_vec() }).await?;
        }
        Ok(())
    }

    /// Ends its standard input; types ^D into a terminal.
    ///
    /// # Errors
    /// The sandbox has ended.
    pub async fn close_input(&self) -> Result<(), LiveError> {
        self.send(ToInit::Input { id: self.id, bytes: Vec::new() }).await
    }

    /// Gives its terminal another size, of which the program in its foreground is told. A command
    /// without one has none to change.
    ///
    /// # Errors
    /// The sandbox has ended.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), LiveError> {
        self.send(ToInit::Resize { id: self.id, size }).await
    }

    /// Sends a signal to the command's own process.
    ///
    /// # Errors
    /// The sandbox has ended.
    pub async fn signal(&self, signal: i32) -> Result<(), LiveError> {
        self.send(ToInit::Signal { id: self.id, signal }).await
    }

    /// Kills it and all that came of it. `Ended` follows.
    ///
    /// # Errors
    /// The sandbox has ended.
    pub async fn kill(&self) -> Result<(), LiveError> {
        self.send(ToInit::Kill { id: self.id }).await
    }

    async fn send(&self, message: ToInit) -> Result<(), LiveError> {
        self.link.upgrade().ok_or(LiveError::Ended)?.send(&message).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let (id, link) = (self.id, self.link.clone());
        if self.is_over || link.strong_count() == 0 {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Some(link) = link.upgrade() {
                    let _ = link.send(&ToInit::Kill { id }).await;
                }
            });
        }
    }
}

impl Event {
    pub(crate) fn wrote(stream: Stream, bytes: Vec<u8>) -> Self {
        match stream {
            Stream::Out => Self::Out(bytes),
            Stream::Err => Self::Err(bytes),
        }
    }
}
