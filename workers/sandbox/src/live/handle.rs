//! A long-lived sandbox, for the process that owns it: `link.rs` is the connection to it, `files.rs`
//! its files, `packing.rs` writes them down, `ports.rs` connects to its servers, `forwards.rs` is the
//! outer end of its own connections, `watch.rs` bounds its memory.

mod files;
mod ports;
mod packing;
mod forwards;
mod watch;
mod link;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::process::Child;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::job::End;
use crate::live::host::{Host, Warm, hear};
use crate::live::keeper::Layer;
use crate::live::layers::Snapshot;
use crate::live::process::{Event, Process};
use crate::live::spec::{Exec, LiveError, MAX_LAYERS, Output, Spec, Wall};
use crate::live::wire::{self, Build, FromInit, ToInit};
use crate::memory;
use forwards::Forwards;
pub(crate) use forwards::sweep;
pub(crate) use link::Link;

/// For how long a sandbox may take to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The signal that kills.
const KILLED: i32 = 9;

/// A sandbox. Dropping it kills everything in it; [`end`](Self::end) waits until that is done.
#[derive(Debug)]
pub struct LiveSandbox {
    host: Host,
    spec: Spec,
    /// Below what it writes.
    below: Snapshot,
    body: Body,
    /// [`stop`](Self::stop) took its files.
    stopped: AtomicBool,
    /// Connections to its ports that are being made at once; more wait.
    dialling: Semaphore,
}

/// A sandbox that was stopped: its files, without anything that ran. They go with this value.
#[derive(Debug)]
pub struct Stopped {
    host: Host,
    below: Snapshot,
    upper: Arc<Layer>,
}

/// What of a sandbox is made again at each snapshot and rollback.
#[derive(Debug)]
struct Body {
    upper: Arc<Layer>,
    lacks: Vec<Wall>,
    link: Arc<Link>,
    /// The outer process. Killed with this value.
    child: Mutex<Child>,
    pid: u32,
    watch: JoinHandle<()>,
    /// Bytes of memory at the last look.
    memory: Arc<AtomicU64>,
    _forwards: Forwards,
}

impl Drop for Body {
    fn drop(&mut self) {
        self.link.close();
        self.watch.abort();
    }
}

impl LiveSandbox {
    pub(crate) async fn make(host: Host, below: Snapshot, spec: Spec) -> Result<Self, LiveError> {
        let body = Body::over(&host, &below, &spec).await?;
        Ok(Self::of(host, below, spec, body))
    }

    fn of(host: Host, below: Snapshot, spec: Spec, body: Body) -> Self {
        let (stopped, dialling) = (AtomicBool::new(false), Semaphore::new(ports::DIALLING));
        Self { host, spec, below, body, stopped, dialling }
    }

    /// The walls that this machine lacks. None of them is among the `needs` of its [`Spec`].
    #[must_use]
    pub fn lacks(&self) -> &[Wall] {
        &self.body.lacks
    }

    /// How it was made.
    #[must_use]
    pub const fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Whether it can still be used.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.body.link.is_open()
    }

    /// Bytes of memory that its processes had at the last look, as its bound counts them; 0 before its first
    /// command.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        if self.is_alive() { self.body.memory.load(Ordering::Relaxed) } else { 0 }
    }

    /// Starts a command.
    ///
    /// # Errors
    /// The command is wrong or cannot be started in its folder, or the sandbox has ended.
    pub async fn spawn(&self, exec: Exec) -> Result<Process, LiveError> {
        self.body.link.start(exec).await
    }

    /// Runs a command with this standard input, and collects what it writes. Dropping the future
    /// kills the command.
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn).
    pub async fn exec(&self, exec: Exec, stdin: &[u8]) -> Result<Output, LiveError> {
        let mut process = self.spawn(exec).await?;
        process.write(stdin).await?;
        process.close_input().await?;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match process.next().await {
                Event::Out(bytes) => stdout.extend(bytes),
                Event::Err(bytes) => stderr.extend(bytes),
                Event::Ended { end, wall_ms } => return Ok(Output { end, stdout, stderr, wall_ms }),
            }
        }
    }

    /// Kills all its processes, also what commands left in the background: none of them does anything
    /// any more. Its files stay.
    ///
    /// # Errors
    /// It has ended.
    pub async fn kill_all(&self) -> Result<(), LiveError> {
        self.body.link.send(&ToInit::KillAll { end: End::Signal(KILLED) }).await?;
        // Words are taken in their order: this answer comes behind the kill.
        self.look("/").await.map(|_| ())
    }

    /// Keeps the files as they are now. All processes are killed first; it costs the same for any
    /// number of files.
    ///
    /// # Errors
    /// It has too many layers, or the machine lacks something; then the sandbox has ended.
    pub async fn snapshot(&mut self) -> Result<Snapshot, LiveError> {
        if self.below.depth() + 1 >= MAX_LAYERS {
            return Err(LiveError::Invalid {
                field: "snapshot",
                value: format!("layer {}", self.below.depth() + 1),
                remedy: "a file system has at most 200 layers",
            });
        }
        if self.stopped.load(Ordering::Acquire) {
            return Err(LiveError::Ended);
        }
        self.body.end().await;
        let kept = self.below.with(Arc::clone(&self.body.upper));
        self.body = Body::over(&self.host, &kept, &self.spec).await?;
        self.below = kept.clone();
        Ok(kept)
    }

    /// Goes back to the files of a snapshot of the same host. All processes are killed.
    ///
    /// # Errors
    /// The machine lacks something; then the sandbox has ended.
    pub async fn rollback(&mut self, to: &Snapshot) -> Result<(), LiveError> {
        // Nothing of the one before is below the next.
        let ((), made) = tokio::join!(self.body.end(), Body::over(&self.host, to, &self.spec));
        self.body = made?;
        self.below = to.clone();
        Ok(())
    }

    /// Ends it. Afterwards all its processes and mounts are gone; its files go when it is dropped.
    /// Whatever still waits for it hears that it has ended.
    pub async fn end(&self) {
        self.body.end().await;
    }

    /// Ends it as [`end`](Self::end) does, and keeps its files to start it again. `None`: it had ended
    /// already.
    pub async fn stop(&self) -> Option<Stopped> {
        // Two sandboxes over the same files would break each other's.
        let first = self.is_alive() && !self.stopped.swap(true, Ordering::AcqRel);
        self.body.end().await;
        let (host, below) = (self.host.clone(), self.below.clone());
        first.then(|| Stopped { host, below, upper: Arc::clone(&self.body.upper) })
    }
}

impl Stopped {
    /// Starts it again. What it wrote before counts for the bounds of its files, which it keeps.
    ///
    /// # Errors
    /// It left something where each sandbox has a folder of its own, or the machine lacks something.
    /// The files are still there.
    pub async fn start(self, spec: Spec) -> Result<LiveSandbox, (Self, LiveError)> {
        if let Err(error) = spec.check() {
            return Err((self, error));
        }
        match Body::make(&self.host, &self.below, Arc::clone(&self.upper), &spec).await {
            Ok(body) => {
                let Self { host, below, .. } = self;
                Ok(LiveSandbox::of(host, below, spec, body))
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl Body {
    /// One that writes to an empty layer.
    async fn over(host: &Host, below: &Snapshot, spec: &Spec) -> Result<Self, LiveError> {
        let upper = Arc::new(host.keeper().layer(&spec.bounds).await?);
        Self::make(host, below, upper, spec).await
    }

    async fn make(host: &Host, below: &Snapshot, upper: Arc<Layer>, spec: &Spec) -> Result<Self, LiveError> {
        let mut forwards = Forwards::listen(&spec.forward)?;
        let Warm { child, mut stream, group } = host.take().await?;
        if let Some(group) = &group {
            // What it writes, and what it has in /dev/shm.
            let files = spec.bounds.disk_bytes.saturating_mul(2);
            let bounded = group.bound(spec.bounds.memory_bytes, files, false);
            bounded.map_err(|error| LiveError::Refused(format!("its group: {error}")))?;
        }
        let build = Build {
            spec: spec.clone(),
            lower: below.numbers(),
            upper: upper.number,
            sockets: forwards.paths.clone(),
        };
        // The same for both stages within.
        let twice = wire::encode(&build).map_err(|error| LiveError::Refused(error.to_string()))?.repeat(2);
        let ended = |_| LiveError::Refused("it ended without a word".to_owned());
        tokio::io::AsyncWriteExt::write_all(&mut stream, &twice).await.map_err(ended)?;
        let FromInit::Ready { lacks } = hear(&mut stream).await? else {
            return Err(LiveError::Refused("its words are out of order".to_owned()));
        };
        forwards.mounted();
        let link = Link::over(stream, group);
        let pid = child.id().unwrap_or_default();
        let (most, memory) = (spec.bounds.memory_bytes, Arc::default());
        let watch = watch::watch(memory::looks(pid), most, Arc::clone(&link), Arc::clone(&memory));
        let (child, watch) = (Mutex::new(child), tokio::spawn(watch));
        Ok(Self { upper, lacks, link, child, pid, watch, memory, _forwards: forwards })
    }

    /// Closes the connection, on which the outer process kills the first one within and waits until
    /// the kernel has ended everything else.
    async fn end(&self) {
        self.watch.abort();
        self.link.close();
        let mut child = self.child.lock().await;
        if timeout(PATIENCE, child.wait()).await.is_err() {
            let _ = child.kill().await;
        }
    }
}
