//! Starts long-lived sandboxes: the keeper of layers, and a pool of sandboxes whose namespaces are
//! there already.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::groups::{self, Group};
use crate::live::handle::{LiveSandbox, sweep};
use crate::live::keeper::Keeper;
use crate::live::layers::Snapshot;
use crate::live::spec::{LiveError, Spec};
use crate::live::wire::{self, FromInit};

/// For how long the parts of a sandbox may be silent while it is made. A loaded machine takes
/// seconds; beyond it there is a fault.
const PATIENCE: Duration = Duration::from_secs(60);

/// Processes at once that connect to ports of sandboxes.
const DIALLING: usize = 16;

/// How long-lived sandboxes are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The program `millrace-sandbox`.
    pub program: PathBuf,
    /// Sandboxes that wait with their namespaces made. 0: each is made when it is asked for.
    pub warm: usize,
    /// Sandboxes that are being made at once; more wait.
    pub at_once: usize,
}

impl Settings {
    /// Eight warm ones, eight made at once.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), warm: 8, at_once: 8 }
    }
}

/// Where long-lived sandboxes come from. Cheap to clone. When the last clone and the last sandbox
/// are gone, or this process ends, however it ends, nothing of them is left.
#[derive(Debug, Clone)]
pub struct Host(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    keeper: Keeper,
    making: Semaphore,
    /// Connections to ports of sandboxes that are being made at once; more wait.
    dialling: Semaphore,
    warm: Mutex<VecDeque<Warm>>,
    /// Sandboxes that shall wait.
    most_warm: AtomicUsize,
}

/// A sandbox that waits for what it shall be.
#[derive(Debug)]
pub(crate) struct Warm {
    pub(crate) child: Child,
    pub(crate) stream: UnixStream,
    pub(crate) group: Option<Group>,
}

impl Host {
    /// Starts the keeper of layers, and begins to fill the pool.
    ///
    /// # Errors
    /// The program is not there, or the machine lacks something.
    pub async fn open(settings: Settings) -> Result<Self, LiveError> {
        sweep(&std::env::temp_dir());
        groups::sweep();
        let keeper = timeout(PATIENCE, Keeper::start(&settings.program)).await.map_err(|_| late())??;
        let making = Semaphore::new(settings.at_once.max(1));
        let host = Self(Arc::new(Inner {
            settings,
            keeper,
            making,
            dialling: Semaphore::new(DIALLING),
            warm: Mutex::default(),
            most_warm: AtomicUsize::new(0),
        }));
        host.hold(host.0.settings.warm);
        Ok(host)
    }

    /// Holds so many ready, unless it is more already. Whatever their files will be, they are the same.
    pub fn hold(&self, warm: usize) {
        let before = self.0.most_warm.fetch_max(warm, Ordering::Relaxed);
        for _ in before..warm {
            self.refill();
        }
    }

    /// Makes a sandbox with an empty file system besides what `spec` shows.
    ///
    /// # Errors
    /// `spec` is wrong, or the machine lacks something.
    pub async fn create(&self, spec: Spec) -> Result<LiveSandbox, LiveError> {
        self.fork(&Snapshot::default(), spec).await
    }

    /// Makes a sandbox with the files of a snapshot of this host. What it writes is its own.
    ///
    /// # Errors
    /// `spec` is wrong, or the machine lacks something.
    pub async fn fork(&self, from: &Snapshot, spec: Spec) -> Result<LiveSandbox, LiveError> {
        spec.check()?;
        LiveSandbox::make(self.clone(), from.clone(), spec).await
    }

    /// Sandboxes that wait with their namespaces made.
    #[must_use]
    pub fn warm(&self) -> usize {
        self.0.pool().len()
    }

    pub(crate) fn dialling(&self) -> &Semaphore {
        &self.0.dialling
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn keeper(&self) -> &Keeper {
        &self.0.keeper
    }

    /// One that waits, from the pool if there is one.
    pub(crate) async fn take(&self) -> Result<Warm, LiveError> {
        let waiting = self.0.pool().pop_front();
        if self.0.most_warm.load(Ordering::Relaxed) > 0 {
            self.refill();
        }
        match waiting {
            Some(warm) => Ok(warm),
            None => self.0.make().await,
        }
    }

    /// Makes one for the pool, in a task of its own. It is not waited for, and one that fails is
    /// made, and its failure told, when it is needed.
    fn refill(&self) {
        let inner: Weak<Inner> = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            let Some(inner) = inner.upgrade() else { return };
            if let Ok(warm) = inner.make().await {
                let mut pool = inner.pool();
                if pool.len() < inner.most_warm.load(Ordering::Relaxed) {
                    pool.push_back(warm);
                }
            }
        });
    }
}

impl Inner {
    fn pool(&self) -> std::sync::MutexGuard<'_, VecDeque<Warm>> {
        self.warm.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn make(&self) -> Result<Warm, LiveError> {
        let _room = self.making.acquire().await.map_err(|_| LiveError::Ended)?;
        let fail = |error: std::io::Error| LiveError::start(&self.settings.program, &error);
        let (ours, its) = std::os::unix::net::UnixStream::pair().map_err(fail)?;
        ours.set_nonblocking(true).map_err(fail)?;
        let group = Group::make().map_err(|error| LiveError::Refused(format!("its group: {error}")))?;
        let child = Command::new(&self.settings.program)
            .args(group.iter().flat_map(Group::words))
            .args(["enter", &self.keeper.pid().to_string()])
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(its)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(fail)?;
        let mut stream = UnixStream::from_std(ours).map_err(fail)?;
        match hear(&mut stream).await? {
            FromInit::Warm => Ok(Warm { child, stream, group }),
            _ => Err(LiveError::Refused("its first words are out of order".to_owned())),
        }
    }
}

fn late() -> LiveError {
    LiveError::Refused("it did not answer in time".to_owned())
}

/// The next words of a sandbox that is being made.
pub(crate) async fn hear(stream: &mut UnixStream) -> Result<FromInit, LiveError> {
    match timeout(PATIENCE, wire::receive(stream)).await.map_err(|_| late())? {
        Ok(FromInit::Failed(reason)) => Err(LiveError::Refused(reason)),
        Ok(said) => Ok(said),
        Err(error) => Err(LiveError::Refused(format!("it ended without a word: {error}"))),
    }
}
