//! The agents of one worker: started at a reset, ended when they are not needed, each with a key of
//! its own for the gateway.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_policy::text_codec::Codec;
use millrace_schemas::dataset::Row;
use millrace_schemas::env_step::AgentSpec;
use millrace_schemas::limits::AGENTS_PER_WORKER;
use millrace_schemas::{PolicyVersion, RolloutId, RunId};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::conversation::Conversation;
use crate::process::{Gateway, Walls};
use crate::server;
use crate::session::{Phase, Session};

mod life;

/// How long the result of an ended agent is kept for a step that is repeated.
const KEPT: Duration = Duration::from_secs(900);
/// Why an agent is ended before its time.
const UNNEEDED: &str = "the run no longer needs it";

/// Settings of a host.
#[derive(Debug)]
pub struct AgentsSettings {
    /// Where the gateway listens; port 0 for any.
    pub listen: SocketAddr,
    /// Agents at once.
    pub most: usize,
    /// What they run in.
    pub walls: Arc<dyn Walls>,
}

impl AgentsSettings {
    /// The defaults: this machine alone can reach the gateway.
    #[must_use]
    pub fn new(walls: Arc<dyn Walls>) -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 0)), most: AGENTS_PER_WORKER, walls }
    }
}

/// The name of a session: one for each attempt at a rollout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionName {
    /// The run.
    pub run: RunId,
    /// The rollout.
    pub rollout: RolloutId,
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run, self.rollout)
    }
}

/// What a reset starts.
#[derive(Debug)]
pub struct Start<'a> {
    /// Its name.
    pub name: SessionName,
    /// The version that its staleness counts from so far.
    pub version: PolicyVersion,
    /// It is evaluated and not trained on.
    pub evaluate: bool,
    /// The settings.
    pub spec: &'a AgentSpec,
    /// Its task.
    pub row: Row,
    /// The text codec of the run's model.
    pub codec: Arc<Codec>,
}

/// Why no agent is started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// This worker has as many as it may.
    #[error("this worker hosts {0} agents already")]
    Full(usize),
    /// The row is no task.
    #[error("{0}")]
    Row(String),
}

/// The agents of a worker. They end when it is dropped.
pub struct Agents {
    gateway: Gateway,
    settings: AgentsSettings,
    /// Keys of sessions follow from it; nobody can guess it.
    secret: String,
    table: Mutex<Table>,
    /// Told when an agent has ended.
    ended: Notify,
    stop: CancellationToken,
    _stop: DropGuard,
}

#[derive(Default)]
struct Table {
    by_name: BTreeMap<SessionName, Hosted>,
    by_key: BTreeMap<String, SessionName>,
}

impl Table {
    fn running(&self) -> usize {
        self.by_name.values().filter(|hosted| !hosted.session.is_over()).count()
    }

    /// Ends earlier attempts at a rollout: they are of no use any more, and may be in this one's place.
    fn supersede(&self, name: &SessionName) {
        for (other, hosted) in &self.by_name {
            if other.run == name.run
                && other.rollout.attempt < name.rollout.attempt
                && (other.rollout.group, other.rollout.index) == (name.rollout.group, name.rollout.index)
            {
                hosted.cancel.cancel();
            }
        }
    }
}

struct Hosted {
    session: Arc<Session>,
    version: PolicyVersion,
    evaluate: bool,
    key: String,
    cancel: CancellationToken,
}

impl Agents {
    /// Starts the gateway.
    ///
    /// # Errors
    /// Its address cannot be listened on.
    pub async fn start(settings: AgentsSettings) -> io::Result<Arc<Self>> {
        let listener = TcpListener::bind(settings.listen).await?;
        let address = listener.local_addr()?;
        // An abstract name: it is gone with this process, however that ends.
        let socket = PathBuf::from(format!("\0millrace-agents-{}", uuid::Uuid::now_v7().simple()));
        let inner = UnixListener::bind(&socket)?;
        let secret = [uuid::Uuid::now_v7(), uuid::Uuid::now_v7()].map(|id| id.simple().to_string()).concat();
        let stop = CancellationToken::new();
        let _stop = stop.clone().drop_guard();
        let agents = Arc::new(Self {
            gateway: Gateway { address, socket },
            settings,
            secret,
            table: Mutex::default(),
            ended: Notify::new(),
            stop,
            _stop,
        });
        server::serve(listener, Arc::downgrade(&agents), agents.stop.clone());
        server::serve(inner, Arc::downgrade(&agents), agents.stop.clone());
        tracing::info!(%address, "serving agents");
        Ok(agents)
    }

    /// Where the gateway listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.gateway.address
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic cannot leave the table half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session of this name.
    #[must_use]
    pub fn session(&self, name: &SessionName) -> Option<Arc<Session>> {
        self.table().by_name.get(name).map(|hosted| hosted.session.clone())
    }

    /// The session whose agent has this key, and its run.
    pub(crate) fn by_key(&self, key: &str) -> Option<(RunId, Arc<Session>)> {
        let table = self.table();
        let name = table.by_key.get(key)?;
        Some((name.run.clone(), table.by_name.get(name)?.session.clone()))
    }

    /// Agents that have not ended.
    #[must_use]
    pub fn running(&self) -> usize {
        self.table().running()
    }

    /// Waits until no agent runs.
    pub async fn all_ended(&self) {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.running() == 0 {
                return;
            }
            ended.await;
        }
    }

    /// Ends all agents.
    pub fn end_all(&self) {
        self.retain(|_, _, _| false);
    }

    /// The session of this name; started if there is none.
    ///
    /// # Errors
    /// There are too many, or the row is no task.
    pub fn begin(self: &Arc<Self>, start: Start<'_>) -> Result<Arc<Session>, BeginError> {
        if let Some(session) = self.session(&start.name) {
            return Ok(session);
        }
        let Start { name, version, evaluate, spec, row, codec } = start;
        let task = life::Task::of(spec, row).map_err(BeginError::Row)?;
        let digest = Sha256::new().chain_update(&self.secret).chain_update(name.to_string()).finalize();
        let key = format!("mr-{}", hex::encode(digest));
        let conversation = Conversation::new(codec, spec);
        let session = Arc::new(Session::new(spec, conversation));
        let cancel = self.stop.child_token();
        {
            let mut table = self.table();
            if let Some(hosted) = table.by_name.get(&name) {
                return Ok(hosted.session.clone());
            }
            table.supersede(&name);
            let running = table.running();
            if running >= self.settings.most {
                return Err(BeginError::Full(running));
            }
            let hosted = Hosted {
                session: session.clone(),
                version,
                evaluate,
                key: key.clone(),
                cancel: cancel.clone(),
            };
            table.by_key.insert(key.clone(), name.clone());
            table.by_name.insert(name.clone(), hosted);
        }
        let life = life::Life {
            session: session.clone(),
            spec: spec.clone(),
            task,
            key,
            gateway: self.gateway.clone(),
            model: name.run.to_string(),
            walls: self.settings.walls.clone(),
            cancel: cancel.clone(),
        };
        let (agents, ended) = (Arc::downgrade(self), session.clone());
        tokio::spawn(async move {
            life.run(&name).await;
            if let Some(agents) = agents.upgrade() {
                agents.ended.notify_waiters();
            }
            // Its result stays for a step that comes again.
            let _ = tokio::time::timeout(KEPT, cancel.cancelled()).await;
            if let Some(agents) = agents.upgrade() {
                agents.forget(&name, &ended);
            }
        });
        Ok(session)
    }

    /// Forgets a session, and not another one that has its name since.
    fn forget(&self, name: &SessionName, session: &Arc<Session>) {
        let mut table = self.table();
        if table.by_name.get(name).is_some_and(|hosted| Arc::ptr_eq(&hosted.session, session))
            && let Some(hosted) = table.by_name.remove(name)
        {
            table.by_key.remove(&hosted.key);
            hosted.cancel.cancel();
        }
    }

    /// Whether what the agent was to run in broke before its first call: there is nothing of it yet, and another worker
    /// may start it. Such a session is forgotten.
    pub fn forget_broken(&self, name: &SessionName, session: &Arc<Session>) -> bool {
        let is_broken = {
            let board = session.watch();
            let board = board.borrow();
            board.calls() == 0 && matches!(&board.phase, Phase::Lost(reason) if reason != UNNEEDED)
        };
        if is_broken {
            self.forget(name, session);
        }
        is_broken
    }

    /// Ends the agents of earlier attempts at a rollout, of which this attempt has begun on another worker.
    pub fn supersede(&self, name: &SessionName) {
        self.table().supersede(name);
    }

    /// The sessions here that take the place of an earlier attempt, and have not ended.
    #[must_use]
    pub fn restarted(&self) -> Vec<SessionName> {
        let table = self.table();
        let running = table.by_name.iter().filter(|(_, hosted)| !hosted.session.is_over());
        running.map(|(name, _)| name).filter(|name| name.rollout.attempt > 0).cloned().collect()
    }

    /// Notes the version that a session's staleness counts from now on.
    pub fn note(&self, name: &SessionName, version: PolicyVersion) {
        if let Some(hosted) = self.table().by_name.get_mut(name) {
            hosted.version = hosted.version.max(version);
        }
    }

    /// Ends the agents for which `needed` is false: their run is over, or they are too old. It gets the version that an
    /// agent's staleness counts from, and whether it cannot be too old: it is evaluated, or it has no turn yet, so that
    /// the version of its first turn will count.
    pub fn retain(&self, needed: impl Fn(&SessionName, PolicyVersion, bool) -> bool) {
        for (name, hosted) in &self.table().by_name {
            let is_unbound = hosted.evaluate || !hosted.session.watch().borrow().has_turn();
            if !needed(name, hosted.version, is_unbound) {
                hosted.session.end(Phase::Lost(UNNEEDED.to_owned()));
                hosted.cancel.cancel();
            }
        }
    }
}
