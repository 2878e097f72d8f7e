//! From a target to a connection: a name is looked up once, all its addresses are checked, and the
//! connection goes to one of those. There is no second look, whose answer might be another.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use millrace_egress::{Host, Reach, Target, reach};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Way;
use super::refusal::Refusal;

/// Finds the addresses of a name.
pub trait Resolve: Send + Sync + 'static {
    /// All addresses of `name`, in the order in which to try them. May block.
    ///
    /// # Errors
    /// There is no such name, or nobody who knows.
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

impl fmt::Debug for dyn Resolve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolve")
    }
}

/// The system's resolver, with its hosts file and its search list.
#[derive(Debug, Clone, Copy)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
    }
}

impl<F: Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static> Resolve for F {
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self(name)
    }
}

impl Way {
    /// Connects to a target that a rule allows.
    ///
    /// # Errors
    /// No rule allows it, one of its addresses may not be reached, or none answers in time.
    pub(super) async fn reach(&self, target: &Target) -> Result<TcpStream, Refusal> {
        let flag = self.machine.settings.flag;
        if !self.rules.allow(target) {
            return Err(Refusal::forbidden(format_args!(
                "{target} is not on the list of this sandbox; its owner may ask for it, within the operator's {flag}"
            )));
        }
        let late =
            |_| Refusal::unreachable(format_args!("{target} does not answer in time; try again later"));
        timeout(self.bounds().reach, self.dial(target)).await.map_err(late)?
    }

    async fn dial(&self, target: &Target) -> Result<TcpStream, Refusal> {
        let addresses = self.addresses(target).await?;
        for address in &addresses {
            self.check(target, *address)?;
        }
        let mut why = "it has no address".to_owned();
        for address in addresses {
            match timeout(self.bounds().connect, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    self.check_elsewhere(target, address, &stream)?;
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => why = error.to_string(),
                Err(_) => "no answer in time".clone_into(&mut why),
            }
        }
        Err(Refusal::unreachable(format_args!("{target} cannot be reached: {why}; try again later")))
    }

    /// Addresses of a target, with its port. Those of IPv4 are written as such.
    async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, Refusal> {
        let found = match target.host() {
            Host::Address(address) => vec![*address],
            Host::Name(name) | Host::Below(name) => {
                let unknown = |error: io::Error| {
                    Refusal::unreachable(format_args!(
                        "{target} cannot be looked up: {error}; check its name"
                    ))
                };
                self.look_up(name.clone()).await.map_err(unknown)?
            }
        };
        Ok(found.into_iter().map(|ip| SocketAddr::new(ip.to_canonical(), target.port())).collect())
    }

    async fn look_up(&self, name: String) -> io::Result<Vec<IpAddr>> {
        let room = |of: &Arc<Semaphore>| Arc::clone(of).acquire_owned();
        let rooms = (room(&self.lookups).await, room(&self.machine.lookups).await);
        let resolver = Arc::clone(&self.machine.settings.resolver);
        // Who waits may leave; the thread cannot, and keeps its room until the resolver is done.
        let looked = tokio::task::spawn_blocking(move || {
            let _rooms = rooms;
            resolver.resolve(&name)
        });
        looked.await.map_err(io::Error::other)?
    }

    fn is_permitted(&self, address: SocketAddr) -> bool {
        self.machine.private.contains(&address)
    }

    fn check(&self, target: &Target, address: SocketAddr) -> Result<(), Refusal> {
        let ip = address.ip();
        match reach(ip) {
            Reach::Public => Ok(()),
            Reach::Private(_) if self.is_permitted(address) => Ok(()),
            Reach::Private(what) => Err(Refusal::forbidden(format_args!(
                "{target} leads to {ip}, an address {what}; the operator may permit it by {}-private {address}",
                self.machine.settings.flag
            ))),
            Reach::Never(what) => Err(Refusal::forbidden(format_args!(
                "{target} leads to {ip}, an address {what}, which no sandbox reaches; use another host"
            ))),
        }
    }

    /// This machine may have public addresses, at which it serves more than it serves to others.
    fn check_elsewhere(
        &self,
        target: &Target,
        address: SocketAddr,
        stream: &TcpStream,
    ) -> Result<(), Refusal> {
        let is_here = stream.local_addr().map_or(true, |local| local.ip().to_canonical() == address.ip());
        if !is_here || self.is_permitted(address) {
            return Ok(());
        }
        Err(Refusal::forbidden(format_args!(
            "{target} leads to the machine of the sandbox; use another host"
        )))
    }
}
