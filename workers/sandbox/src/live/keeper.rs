//! The way to the keeper of layers, one process for all sandboxes of an owner.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::{OnceCell, mpsc, oneshot};

use crate::live::spec::{Bounds, LiveError};
use crate::live::store::Digest;
use crate::live::wire::{FromKeeper, ToKeeper};
use crate::run::piped;

/// The keeper. It ends with this value, and its layers with it.
#[derive(Debug)]
pub(crate) struct Keeper {
    pid: u32,
    next: AtomicU64,
    ask: mpsc::UnboundedSender<Asked>,
}

/// Something for the keeper to do.
#[derive(Debug)]
struct Asked {
    what: ToKeeper,
    tell: oneshot::Sender<Result<(), LiveError>>,
}

/// A layer of the keeper's. It goes when this value does.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) number: u64,
    /// The name of its packed bytes, once it was packed. A layer that is packed is not written to.
    pub(crate) digest: OnceCell<Digest>,
    ask: mpsc::WeakUnboundedSender<Asked>,
    /// Keeps what the layer shows in its place.
    kept: Option<File>,
}

impl Layer {
    /// The same; `file` is open as long as it is there.
    pub(crate) fn keeping(mut self, file: File) -> Self {
        self.kept = Some(file);
        self
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        if let Some(ask) = self.ask.upgrade() {
            let (tell, _) = oneshot::channel();
            let _ = ask.send(Asked { what: ToKeeper::Drop { layer: self.number }, tell });
        }
    }
}

impl Keeper {
    pub(crate) async fn start(program: &Path) -> Result<Self, LiveError> {
        let fail = |error: std::io::Error| LiveError::start(program, &error);
        let mut child = piped(program).arg("keep").spawn().map_err(fail)?;
        let (Some(to), Some(from), Some(pid)) = (child.stdin.take(), child.stdout.take(), child.id()) else {
            return Err(LiveError::start(program, &"its input and output are not there"));
        };
        let mut pipes = Pipes { _child: child, to, from: BufReader::new(from) };
        pipes.answer().await?;
        let (ask, asked) = mpsc::unbounded_channel();
        tokio::spawn(serve(pipes, asked));
        Ok(Self { pid, next: AtomicU64::new(1), ask })
    }

    /// Its number, by which sandboxes find its namespaces.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Makes an empty layer. Where the future is dropped, the layer goes, too.
    pub(crate) async fn layer(&self, bounds: &Bounds) -> Result<Layer, LiveError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.ask(number, ToKeeper::Make { layer: number, bytes: bounds.disk_bytes, files: bounds.files })
            .await
    }

    /// Shows a folder of the machine as a layer, to read. It must be open to all users.
    pub(crate) async fn show(&self, folder: &Path) -> Result<Layer, LiveError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.ask(number, ToKeeper::Show { layer: number, folder: folder.to_owned() }).await
    }

    async fn ask(&self, number: u64, what: ToKeeper) -> Result<Layer, LiveError> {
        let (tell, told) = oneshot::channel();
        self.ask.send(Asked { what, tell }).map_err(broken)?;
        let layer = Layer { number, digest: OnceCell::new(), ask: self.ask.downgrade(), kept: None };
        told.await.map_err(broken)??;
        Ok(layer)
    }
}

#[derive(Debug)]
struct Pipes {
    /// Killed with this value.
    _child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// Passes on one request after the other. Ends when the [`Keeper`] is dropped, and the keeper with
/// it; a keeper that has ended fails each.
async fn serve(mut pipes: Pipes, mut asked: mpsc::UnboundedReceiver<Asked>) {
    while let Some(Asked { what, tell }) = asked.recv().await {
        let _ = tell.send(pipes.ask(&what).await);
    }
}

impl Pipes {
    async fn ask(&mut self, asked: &ToKeeper) -> Result<(), LiveError> {
        let mut line = serde_json::to_vec(asked).map_err(broken)?;
        line.push(b'\n');
        self.to.write_all(&line).await.map_err(broken)?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<(), LiveError> {
        let mut line = String::new();
        self.from.read_line(&mut line).await.map_err(broken)?;
        match serde_json::from_str(&line).map_err(broken)? {
            FromKeeper::Done => Ok(()),
            FromKeeper::Failed(reason) => Err(LiveError::Refused(reason)),
        }
    }
}

fn broken(error: impl std::fmt::Display) -> LiveError {
    LiveError::Refused(format!("the keeper of layers has ended: {error}"))
}
