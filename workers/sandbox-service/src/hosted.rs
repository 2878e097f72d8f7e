//! One sandbox of the service, and what is known of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use millrace_sandbox::egress::Gate;
use millrace_sandbox::live::{LiveError, LiveSandbox, Stopped};

use crate::commands::Commands;
use crate::commits::Commit;
use crate::gem::player::Player;
use crate::images::Image;
use crate::keys::{Owner, Secret};
use crate::service::Wanted;
use crate::sessions::Sessions;

/// A sandbox that can be asked.
#[derive(Debug)]
pub(crate) struct Hosted {
    pub(crate) id: String,
    pub(crate) owner: Owner,
    pub(crate) live: LiveSandbox,
    /// Its way to other hosts, if it has one; no longer open than it lives.
    gate: Option<Gate>,
    /// As its client asked for it.
    pub(crate) wanted: Wanted,
    /// What it began with; `None`: this machine's own programs.
    pub(crate) base: Option<Arc<Image>>,
    last_commit: Mutex<Option<Commit>>,
    pub(crate) made: Instant,
    /// The same moment by the clock of people.
    pub(crate) started: SystemTime,
    pub(crate) counts: Counts,
    /// Opens this sandbox alone, without its owner's key.
    pub(crate) token: Secret,
    pub(crate) commands: Commands,
    /// What plays in it, where it is an environment's.
    pub(crate) player: OnceLock<Player>,
    life: Mutex<Life>,
    /// Since `made`, in milliseconds: when it was last used.
    used_ms: AtomicU64,
    /// Requests that use it now: as long as there are any, it is not idle.
    using: AtomicUsize,
    pub(crate) sessions: Sessions,
}

/// When a sandbox ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// When nobody used it for so long.
    Idle(Duration),
    /// At this moment, used or not.
    Until(Instant),
}

/// What a client says of a sandbox and gets back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Labels {
    pub(crate) user: Option<String>,
    pub(crate) experiment: Option<String>,
    pub(crate) namespace: Option<String>,
    /// E2B's: any names and values.
    pub(crate) metadata: BTreeMap<String, String>,
    /// The hash of the request that made it, where its client may repeat it.
    pub(crate) request: Option<[u8; 32]>,
}

/// What a sandbox did so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) commands: AtomicU64,
    pub(crate) files: AtomicU64,
}

impl Counts {
    pub(crate) fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A request that uses a sandbox, as long as this value is there.
#[derive(Debug)]
pub(crate) struct Using(Arc<Hosted>);

impl Using {
    pub(crate) const fn hosted(&self) -> &Arc<Hosted> {
        &self.0
    }
}

impl std::ops::Deref for Using {
    type Target = Hosted;

    fn deref(&self) -> &Hosted {
        &self.0
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        self.0.touch();
        self.0.using.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Hosted {
    #[expect(
        clippy::disallowed_methods,
        reason = "people are told when it was made; nothing is decided by it"
    )]
    pub(crate) fn new(
        (id, owner): (String, Owner),
        (live, gate): (LiveSandbox, Option<Gate>),
        (wanted, base): (Wanted, Option<Arc<Image>>),
        life: Life,
    ) -> Result<Self, LiveError> {
        Ok(Self {
            id,
            owner,
            live,
            gate,
            wanted,
            base,
            last_commit: Mutex::default(),
            made: Instant::now(),
            started: SystemTime::now(),
            counts: Counts::default(),
            token: Secret::new().map_err(|error| LiveError::Refused(error.to_string()))?,
            commands: Commands::default(),
            player: OnceLock::new(),
            life: Mutex::new(life),
            used_ms: AtomicU64::new(0),
            using: AtomicUsize::new(0),
            sessions: Sessions::default(),
        })
    }

    /// Begins to use it, which puts off its end.
    pub(crate) fn begin(self: &Arc<Self>) -> Using {
        self.using.fetch_add(1, Ordering::AcqRel);
        self.touch();
        Using(Arc::clone(self))
    }

    fn touch(&self) {
        let ms = u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.used_ms.store(ms, Ordering::Release);
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long it may still live, or be unused. Zero: it is over.
    pub(crate) fn left(&self) -> Duration {
        self.left_of(*self.life())
    }

    fn left_of(&self, life: Life) -> Duration {
        match life {
            Life::Until(end) => end.saturating_duration_since(Instant::now()),
            Life::Idle(idle) if self.using.load(Ordering::Acquire) > 0 => idle,
            Life::Idle(idle) => {
                let used = Duration::from_millis(self.used_ms.load(Ordering::Acquire));
                idle.saturating_sub(self.made.elapsed().saturating_sub(used))
            }
        }
    }

    /// Moves its end to `after` from now; from then on no use puts it off. `later`: only where that
    /// is later. Returns whether it was still there: one that is over does not come back.
    pub(crate) fn end_after(&self, after: Duration, later: bool) -> bool {
        let mut life = self.life();
        let left = self.left_of(*life);
        if left.is_zero() {
            return false;
        }
        if !later || after > left {
            *life = Life::Until(Instant::now() + after);
        }
        true
    }

    /// Why it ends by itself.
    pub(crate) fn why_over(&self) -> &'static str {
        match *self.life() {
            _ if !self.live.is_alive() => "its processes ended",
            Life::Until(_) => "its time is over",
            Life::Idle(_) => "nobody used it",
        }
    }

    pub(crate) fn last_commit(&self) -> MutexGuard<'_, Option<Commit>> {
        self.last_commit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it. Its sessions are dropped, and all requests that wait for it fail.
    pub(crate) async fn end(&self) {
        self.close();
        self.live.end().await;
    }

    /// The same, and keeps its files. `None`: its processes had ended by themselves.
    pub(crate) async fn stop(&self) -> Option<Stopped> {
        self.close();
        self.live.stop().await
    }

    fn close(&self) {
        self.sessions.close_all();
        if let Some(gate) = &self.gate {
            gate.close();
        }
    }
}
