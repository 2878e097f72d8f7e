//! Collectives among the members of a formation. Every wait ends: with the other members, with the
//! timeout, or when this member is cancelled. After a failure the formation is not used again.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tch::{Device, Tensor};

use super::bridge::{Connections, Listen, Reducer, Work};
use super::{GangError, RankAssignment};

/// Pause between two polls of a collective: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(10), Duration::from_millis(1));
/// Between two polls while a formation connects.
const FORMING: Duration = Duration::from_millis(20);
/// For how long a complete formation that is no longer needed stays connected: another member may
/// still read what this one sent.
const LINGER: Duration = Duration::from_secs(2);

/// What was said about where to listen.
#[derive(Debug)]
enum Place {
    At(Listen),
    /// On the way to this server.
    Towards(String),
}

static PLACE: OnceLock<Place> = OnceLock::new();

/// Sets where this process listens to the other members, before the first formation. The default is
/// the loopback: all members are on this machine.
pub fn listen(at: Listen) {
    let _ = PLACE.set(Place::At(at));
}

/// As [`listen`], at the address of [`Listen::towards`]. A name is looked up by each formation, which can
/// be abandoned, and not now.
pub fn listen_towards(url: &str) {
    let _ = PLACE.set(Place::Towards(url.to_owned()));
}

impl Listen {
    /// Parses an address, or else takes it for the name of an interface.
    #[must_use]
    pub fn at(word: &str) -> Self {
        match word.parse::<std::net::IpAddr>() {
            Ok(_) => Self::Address(word.to_owned()),
            Err(_) => Self::Interface(word.to_owned()),
        }
    }

    /// The address of this machine that packets to a server (`nats://host:port`) leave from:
    /// members on other machines that reach the same server find this one there. Waits for the name
    /// service.
    #[must_use]
    pub fn towards(url: &str) -> Option<Self> {
        let first = url.split(',').next()?;
        let server = first.rsplit("//").next()?.rsplit('@').next()?.trim_end_matches('/');
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
        // Nothing is sent: this only looks up the route.
        socket.connect(server).ok()?;
        Some(Self::Address(socket.local_addr().ok()?.ip().to_string()))
    }
}

fn listens_at() -> Listen {
    let place = match PLACE.get() {
        Some(Place::At(at)) => Some(at.clone()),
        Some(Place::Towards(url)) => Listen::towards(url),
        None => None,
    };
    place.unwrap_or_else(|| Listen::Address("127.0.0.1".to_owned()))
}

/// A member's view of its formation. All members make the same calls in the same order, from one
/// thread each.
#[derive(Debug)]
pub struct Group {
    /// Taken by [`Drop`].
    connections: Option<Connections>,
    assignment: RankAssignment,
    /// A collective failed, so the members no longer agree on where they are.
    broken: Cell<bool>,
}

impl Group {
    /// Connects the members, and waits until all have come.
    ///
    /// # Errors
    /// Not all members came within the timeout, or this member was cancelled.
    pub fn form(assignment: &RankAssignment, device: Device) -> Result<Self, GangError> {
        // Connecting cannot be interrupted, so it has a thread that can be abandoned.
        let (send, receive) = channel();
        let theirs = assignment.clone();
        let connect = move || {
            let connected = match device {
                Device::Cuda(at) if Connections::has_nccl() => Connections::nccl(&theirs, at),
                _ => Connections::gloo(&theirs, &listens_at()),
            };
            // The receiver may be gone.
            if let Err(unwanted) = send.send(connected)
                && let Ok(connections) = unwanted.0
            {
                connections.close();
            }
        };
        spawn("gang-forming", connect);
        let deadline = Instant::now() + assignment.timeout;
        loop {
            match receive.recv_timeout(FORMING) {
                Ok(connected) => {
                    let connections = Some(connected?);
                    return Ok(Self {
                        connections,
                        assignment: assignment.clone(),
                        broken: Cell::new(false),
                    });
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(GangError::Lost("connecting ended without a result".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) if assignment.cancel.is_cancelled() => {
                    return Err(GangError::Cancelled);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                    let (gang, world) = (&assignment.gang, assignment.world);
                    return Err(GangError::Lost(format!("not all {world} members of {gang} came")));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// This member's rank and timeout.
    #[must_use]
    pub const fn assignment(&self) -> &RankAssignment {
        &self.assignment
    }

    /// Takes the assignment of a later task in the same formation: the same rank, another
    /// cancellation.
    pub fn reassign(&mut self, assignment: &RankAssignment) {
        self.assignment = assignment.clone();
    }

    /// Whether a collective failed. The formation cannot be used then.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Leaves a formation that is not used again. The other members notice at once.
    pub fn leave(self) {
        self.broken.set(true);
    }

    /// Fails if this member was cancelled.
    ///
    /// # Errors
    /// It was cancelled.
    pub fn check(&self) -> Result<(), GangError> {
        if self.assignment.cancel.is_cancelled() { self.failed(GangError::Cancelled) } else { Ok(()) }
    }

    /// Replaces `tensor` on every member by the sum over all members.
    ///
    /// # Errors
    /// As for every call here: a member is lost, or this one was cancelled.
    pub fn all_reduce(&self, tensor: &Tensor) -> Result<(), GangError> {
        self.wait(self.connections().all_reduce(tensor))
    }

    /// Joins the `input` `[n]` of all members in `output` `[world * n]`, by rank.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<(), GangError> {
        self.wait(self.connections().all_gather(output, input))
    }

    /// Starts what [`Self::all_gather`] does.
    pub(crate) fn start_all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Work, GangError> {
        self.connections().all_gather(output, input)
    }

    /// Replaces `tensor` on every member by that of `root`.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<(), GangError> {
        self.wait(self.connections().broadcast(tensor, root))
    }

    /// A reducer that starts reductions while backward runs. With `accumulate` they add to their
    /// outputs.
    pub(crate) fn reducer(&self, accumulate: bool) -> Reducer {
        self.connections().reducer(accumulate)
    }

    /// Waits for a collective. Unblocked by its end, by the timeout, or by cancellation.
    #[expect(clippy::disallowed_methods, reason = "the trainer's thread waits here; there is no runtime")]
    pub(crate) fn wait(&self, work: Result<Work, GangError>) -> Result<(), GangError> {
        let work = match work {
            Ok(work) => work,
            Err(error) => return self.failed(error),
        };
        let deadline = Instant::now() + self.assignment.timeout;
        let mut pause = PAUSES.0;
        while !work.done() {
            self.check()?;
            if Instant::now() >= deadline {
                let silent = self.assignment.timeout.as_millis();
                return self.failed(GangError::Lost(format!("nothing came for silent_ms={silent}")));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
        work.finish().or_else(|error| self.failed(error))
    }

    fn failed(&self, error: GangError) -> Result<(), GangError> {
        self.broken.set(true);
        Err(error)
    }

    fn connections(&self) -> &Connections {
        self.connections.as_ref().expect("only dropping takes them")
    }
}

impl Drop for Group {
    /// To drop a formation joins its threads, which may take the timeout, so another thread does
    /// it.
    fn drop(&mut self) {
        let Some(connections) = self.connections.take() else { return };
        if self.is_broken() {
            connections.close();
            spawn("gang-reaper", move || drop(connections));
        } else {
            spawn("gang-reaper", move || linger(connections));
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a thread of its own waits here; there is no runtime")]
fn linger(connections: Connections) {
    std::thread::sleep(LINGER);
    drop(connections);
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.expect("the system has room for a thread");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_a_server_says_where_to_listen() {
        let here = Some(Listen::Address("127.0.0.1".to_owned()));
        for url in ["nats://127.0.0.1:4222", "tls://name:word@127.0.0.1:4222/,nats://elsewhere:4222"] {
            assert_eq!(Listen::towards(url), here, "{url}");
        }
        assert_eq!(Listen::towards("nonsense"), None);
        assert_eq!(Listen::at("10.0.0.1"), Listen::Address("10.0.0.1".to_owned()));
        assert_eq!(Listen::at("eth0"), Listen::Interface("eth0".to_owned()));
    }
}
