//! The way from a sandbox to hosts that are on a list: a proxy of ours, on this side of the walls, for
//! `CONNECT` and for plain `http://`. [`Spec::forward`](crate::live::Spec) leads a port of the sandbox
//! to its socket. In the order of a connection: `request` reads what it asks for, `dial` finds the
//! host's addresses, checks all of them and connects to one that it checked, `relay` carries bytes,
//! `refusal` says what is not done, and what to do about it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millrace_egress::{Private, Rule, Rules};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::live::Forward;

mod dial;
mod refusal;
mod relay;
mod request;

pub use dial::{Resolve, SystemResolver};
pub use millrace_egress as rules;
use refusal::Refusal;

/// Headers that are for one connection alone, in lower case.
const HOP_BY_HOP: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
];
/// The port of a sandbox's loopback at which its way out begins.
const PORT: u16 = 4181;
/// Connections of all sandboxes of a machine at once. Each has four open files in this process.
const MACHINE_CONNECTIONS: usize = 512;
/// Names of all sandboxes that are looked up at once, each on a thread of the runtime's 512.
const MACHINE_LOOKUPS: usize = 256;
/// Names of a sandbox that are looked up at once: one that hangs leaves room for others.
const LOOKUPS: usize = 16;
/// Between two tries to accept, where there are no open files left.
const PAUSE: Duration = Duration::from_millis(50);

/// Headers of a request that are for one connection alone, in lower case: no proxy passes them on. `connection`
/// has the values of its `Connection` headers, which name some of them.
pub fn hop_by_hop<'v>(connection: impl IntoIterator<Item = &'v [u8]>) -> Vec<String> {
    let named = connection.into_iter().flat_map(|value| value.split(|byte| *byte == b','));
    let named = named.map(|name| String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase());
    HOP_BY_HOP.into_iter().map(str::to_owned).chain(named).collect()
}

/// Bounds of the proxy, for each sandbox.
#[derive(Debug, Clone, Copy)]
pub struct EgressBounds {
    /// Connections at once; more are refused.
    pub connections: usize,
    /// Time from a connection to the end of its request's head.
    pub head: Duration,
    /// Time to find and connect to a host.
    pub reach: Duration,
    /// Time to connect to one of its addresses.
    pub connect: Duration,
    /// A connection ends between once and twice this time after its last byte.
    pub idle: Duration,
}

impl Default for EgressBounds {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        let (head, reach, connect, idle) = (seconds(10), seconds(30), seconds(10), seconds(300));
        Self { connections: 64, head, reach, connect, idle }
    }
}

/// What a machine's operator decides.
#[derive(Debug)]
pub struct EgressSettings {
    /// What its sandboxes may ask for.
    pub allowed: Rules,
    /// Private addresses that these rules may lead to.
    pub private: Vec<Private>,
    /// The operator's setting for `allowed`, which refusals name; `FLAG-private` is that for `private`.
    pub flag: &'static str,
    /// Finds the addresses of a name.
    pub resolver: Arc<dyn Resolve>,
    /// Bounds.
    pub bounds: EgressBounds,
}

impl EgressSettings {
    /// These rules, with the system's resolver and the usual bounds.
    #[must_use]
    pub fn new(allowed: Rules, private: Vec<Private>, flag: &'static str) -> Self {
        let (resolver, bounds) = (Arc::new(SystemResolver), EgressBounds::default());
        Self { allowed, private, flag, resolver, bounds }
    }
}

/// Why a sandbox gets no way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// It asks for more than its machine allows.
    #[error("{0} is not on this machine's list")]
    Beyond(Rule),
    /// Its socket cannot be listened on.
    #[error("failed to listen for a sandbox's connections: {0}")]
    Listen(String),
}

/// The ways out of a machine's sandboxes. A clone is the same.
#[derive(Debug, Clone)]
pub struct Egress(Arc<Machine>);

#[derive(Debug)]
struct Machine {
    settings: EgressSettings,
    private: Vec<SocketAddr>,
    room: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
}

/// The way out of one sandbox. It is closed, and all its connections with it, when it is dropped.
#[derive(Debug)]
pub struct Gate {
    socket: PathBuf,
    task: AbortHandle,
}

/// What the connections of one sandbox share.
#[derive(Debug)]
struct Way {
    machine: Arc<Machine>,
    rules: Rules,
    room: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
}

impl Egress {
    /// Ways out by these settings.
    #[must_use]
    pub fn new(settings: EgressSettings) -> Self {
        let private = settings.private.iter().map(|private| private.0).collect();
        let (room, lookups) = (MACHINE_CONNECTIONS, MACHINE_LOOKUPS);
        let [room, lookups] = [room, lookups].map(|most| Arc::new(Semaphore::new(most)));
        Self(Arc::new(Machine { settings, private, room, lookups }))
    }

    /// What sandboxes may ask for.
    #[must_use]
    pub fn allowed(&self) -> &Rules {
        &self.0.settings.allowed
    }

    /// Opens the way for a sandbox that asks for these rules. Needs a runtime.
    ///
    /// # Errors
    /// It asks for more than the machine allows, or its socket cannot be listened on.
    pub fn open(&self, asked: Rules) -> Result<Gate, EgressError> {
        let machine = Arc::clone(&self.0);
        if let Some(beyond) = asked.first_beyond(&machine.settings.allowed) {
            return Err(EgressError::Beyond(beyond.clone()));
        }
        // An abstract name: it is gone with this process, however that ends.
        let socket = PathBuf::from(format!("\0millrace-egress-{}", uuid::Uuid::now_v7().simple()));
        let listener = UnixListener::bind(&socket).map_err(|error| EgressError::Listen(error.to_string()))?;
        let most = [machine.settings.bounds.connections, LOOKUPS];
        let [room, lookups] = most.map(|most| Arc::new(Semaphore::new(most)));
        let way = Arc::new(Way { machine, rules: asked, room, lookups });
        let task = tokio::spawn(serve(listener, way)).abort_handle();
        Ok(Gate { socket, task })
    }
}

impl Gate {
    /// The socket to lead a port to. Nobody but this process is served there.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The port of the sandbox that leads there.
    #[must_use]
    pub fn forward(&self) -> Forward {
        Forward { port: PORT, to: self.socket.clone() }
    }

    /// The variables by which programs find the proxy at [`Self::forward`], and which keep them from asking
    /// it for what is on their loopback.
    #[must_use]
    pub fn variables(&self) -> BTreeMap<String, String> {
        let (proxy, own) = (format!("http://127.0.0.1:{PORT}"), "127.0.0.1,localhost".to_owned());
        let proxies =
            ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"].map(|name| (name, proxy.clone()));
        let others = ["NO_PROXY", "no_proxy"].map(|name| (name, own.clone()));
        proxies.into_iter().chain(others).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Closes it.
    pub fn close(&self) {
        self.task.abort();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.close();
    }
}

/// Consumes the connections of one sandbox. Waits for the next one, while there are no more than twice as
/// many as have room: the others are being refused. Where there are no open files, it tries again soon.
/// Ends with its task, and with it all connections.
async fn serve(listener: UnixListener, way: Arc<Way>) {
    let most = way.bounds().connections * 2;
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if open.len() < most => match accepted {
                Ok((client, _)) if is_own(&client) => {
                    let (way, room) = (Arc::clone(&way), way.room());
                    open.spawn(async move { way.connection(client, room).await });
                }
                Ok(_) => {}
                Err(_) => sleep(PAUSE).await,
            },
            Some(_) = open.join_next() => {}
        }
    }
}

/// Whether this process connected: it does for its sandboxes.
fn is_own(client: &UnixStream) -> bool {
    let pid = client.peer_cred().ok().and_then(|peer| peer.pid());
    pid.is_some() && pid == i32::try_from(std::process::id()).ok()
}

/// Room for a connection, in the sandbox's share and in the machine's.
type Room = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Way {
    fn bounds(&self) -> &EgressBounds {
        &self.machine.settings.bounds
    }

    fn room(&self) -> Option<Room> {
        let of = |room: &Arc<Semaphore>| Arc::clone(room).try_acquire_owned().ok();
        Some((of(&self.room)?, of(&self.machine.room)?))
    }

    async fn connection(&self, mut client: UnixStream, room: Option<Room>) {
        let served = match room {
            Some(_) => self.through(&mut client).await,
            None => Err(Refusal::busy()),
        };
        if let Err(refusal) = served {
            refusal.send(client).await;
        }
        drop(room);
    }

    async fn through(&self, client: &mut UnixStream) -> Result<(), Refusal> {
        let read = timeout(self.bounds().head, request::read(client)).await;
        let asked = read.map_err(|_| Refusal::late())??;
        let mut server = self.reach(&asked.target).await?;
        relay::relay(client, &mut server, asked.flow, self.bounds().idle).await;
        Ok(())
    }
}
