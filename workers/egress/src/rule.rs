//! Rules: which host, at which port. An operator writes them for all sandboxes of a machine, a run for
//! its own, and a request to the proxy is read the same way.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::address::{Reach, reach};

#[cfg(test)]
mod tests;

/// Bytes of a host name: DNS has no longer one.
const MAX_NAME_BYTES: usize = 253;
/// Bytes between two dots of it.
const MAX_LABEL_BYTES: usize = 63;

/// A host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// This name: small letters, no dot at the end.
    Name(String),
    /// All names below this one, which is none of them.
    Below(String),
    /// This address. One of IPv4 is never written as one of IPv6.
    Address(IpAddr),
}

/// A host and its port. Read from `pypi.org:443`, `*.pythonhosted.org:443`, `1.1.1.1:443` or
/// `[2606:4700::1111]:443`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// The host.
    pub host: Host,
    /// The port, 1 or more.
    pub port: u16,
}

/// What a request asks for: one host and its port. Its host is never [`Host::Below`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target(Rule);

/// A private address that the operator of a machine opens for rules that lead to it. Read from
/// `10.0.0.5:8081`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Private(pub SocketAddr);

/// What is wrong with a rule, as a remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// No port, or none that there is.
    #[error("write host:port, with a port from 1 to 65535, such as pypi.org:443")]
    Port,
    /// No name of a host.
    #[error("a host is a name of letters, digits, - and _ between dots, such as pypi.org:443")]
    Name,
    /// A `*` elsewhere.
    #[error("a * is the whole beginning of a name of two parts or more, such as *.pythonhosted.org:443")]
    Wildcard,
    /// A number that some programs take for an address.
    #[error(
        "write an address of IPv4 as four numbers, 1.1.1.1:443, and one of IPv6 in brackets, [2606:4700::1111]:443"
    )]
    Number,
    /// An address that is not public.
    #[error("this address is {0}; a rule has names and public addresses")]
    NotPublic(&'static str),
    /// An address that needs no permission, or gets none.
    #[error("name a private address and its port, such as 10.0.0.5:8081; this is none that can be permitted")]
    NotPrivate,
}

impl Host {
    /// Reads a host, in any case, with or without a dot at its end.
    fn read(text: &str) -> Result<Self, RuleError> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(RuleError::Number)?;
            let address: Ipv6Addr = inner.parse().map_err(|_| RuleError::Number)?;
            return Ok(Self::Address(IpAddr::V6(address).to_canonical()));
        }
        if text.contains(':') {
            let is_number = text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':' || byte == b'.');
            return Err(if is_number { RuleError::Number } else { RuleError::Name });
        }
        if let Some(below) = text.strip_prefix("*.") {
            return match Self::read(below)? {
                Self::Name(name) if name.contains('.') => Ok(Self::Below(name)),
                Self::Name(_) | Self::Below(_) | Self::Address(_) => Err(RuleError::Wildcard),
            };
        }
        if text.contains('*') {
            return Err(RuleError::Wildcard);
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.len() > MAX_NAME_BYTES || !name.split('.').all(is_label) {
            return Err(RuleError::Name);
        }
        // Systems take `127.1`, `0x7f000001` and `017700000001` for addresses.
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_hex = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_hexdigit());
        if last.bytes().all(|byte| byte.is_ascii_digit()) || last.strip_prefix("0x").is_some_and(is_hex) {
            let address: Ipv4Addr = name.parse().map_err(|_| RuleError::Number)?;
            return Ok(Self::Address(address.into()));
        }
        Ok(Self::Name(name))
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Below(below), Self::Name(name) | Self::Below(name)) => {
                // Below `*.example.org` are those below `*.b.example.org` and below itself.
                let is_below = name.strip_suffix(below.as_str()).is_some_and(|rest| rest.ends_with('.'));
                is_below || self == other
            }
            (Self::Name(_) | Self::Below(_) | Self::Address(_), _) => self == other,
        }
    }
}

fn is_label(label: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_short = (1..=MAX_LABEL_BYTES).contains(&label.len());
    is_short && label.bytes().all(is_fine) && !label.starts_with('-') && !label.ends_with('-')
}

/// Reads a host and its port, which is `default` where there is none.
fn read(text: &str, default: Option<u16>) -> Result<(Host, u16), RuleError> {
    let end_of_host = if text.starts_with('[') { text.find(']').map_or(text.len(), |at| at + 1) } else { 0 };
    let (host, port) = match text[end_of_host..].rsplit_once(':') {
        Some((before, port)) => (&text[..end_of_host + before.len()], Some(port)),
        None => (text, None),
    };
    let port = match (port, default) {
        (Some(port), _) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().ok(),
        (None, Some(default)) => Some(default),
        (Some(_) | None, _) => None,
    };
    let host = Host::read(host)?;
    Ok((host, port.filter(|port| *port > 0).ok_or(RuleError::Port)?))
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let (host, port) = read(text, None)?;
        match &host {
            Host::Address(address) => match reach(*address) {
                Reach::Public => Ok(Self { host, port }),
                Reach::Private(what) | Reach::Never(what) => Err(RuleError::NotPublic(what)),
            },
            Host::Name(_) | Host::Below(_) => Ok(Self { host, port }),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => write!(f, "{name}:{}", self.port),
            Host::Below(name) => write!(f, "*.{name}:{}", self.port),
            Host::Address(address) => SocketAddr::new(*address, self.port).fmt(f),
        }
    }
}

impl Rule {
    /// Whether all that `other` allows is allowed by this one.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.port == other.port && self.host.covers(&other.host)
    }
}

impl Target {
    /// Reads what a request asks for; its port is `default` where it has none.
    ///
    /// # Errors
    /// It is no host, or its address is not public.
    pub fn read(text: &str, default: Option<u16>) -> Result<Self, RuleError> {
        match read(text, default)? {
            (Host::Below(_), _) => Err(RuleError::Wildcard),
            (Host::Address(address), port) => {
                Rule::from_str(&SocketAddr::new(address, port).to_string()).map(Self)
            }
            (host @ Host::Name(_), port) => Ok(Self(Rule { host, port })),
        }
    }

    /// Its host.
    #[must_use]
    pub const fn host(&self) -> &Host {
        &self.0.host
    }

    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.0.port
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Private {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let address: SocketAddr = text.parse().map_err(|_| RuleError::NotPrivate)?;
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let is_private = matches!(reach(address.ip()), Reach::Private(_)) && address.port() > 0;
        is_private.then_some(Self(address)).ok_or(RuleError::NotPrivate)
    }
}

/// An allow-list. Nothing is on an empty one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Reads a list, one rule an entry.
    ///
    /// # Errors
    /// The first entry that is no rule, and what to write instead.
    pub fn read(entries: &[String]) -> Result<Self, (String, RuleError)> {
        entries.iter().map(|entry| entry.parse().map_err(|error| (entry.clone(), error))).collect()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a rule allows `target`.
    #[must_use]
    pub fn allow(&self, target: &Target) -> bool {
        self.cover(&target.0)
    }

    /// Whether one rule allows all that `other` does.
    #[must_use]
    pub fn cover(&self, other: &Rule) -> bool {
        self.0.iter().any(|rule| rule.covers(other))
    }

    /// The first of these rules that no rule of `others` covers.
    #[must_use]
    pub fn first_beyond(&self, others: &Self) -> Option<&Rule> {
        self.0.iter().find(|rule| !others.cover(rule))
    }
}

impl FromIterator<Rule> for Rules {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        Self(rules.into_iter().collect())
    }
}
