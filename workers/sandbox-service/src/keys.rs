//! Who may ask: bearer keys. Each is an owner of its own, whose sandboxes no other key sees.

use std::collections::HashSet;

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// Bytes of a key at least: shorter ones can be guessed.
const LEAST: usize = 16;
/// Where clients put a key: the usual place, ROCK's, and E2B's.
const HEADERS: [&str; 4] = ["authorization", "xrl-authorization", "x-key", "x-api-key"];

/// The owner of a sandbox: the digest of a key. No key itself is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner([u8; 32]);

impl Owner {
    /// A name that this owner gets for this text, each time the same, and no other owner.
    pub(crate) fn name_of(self, text: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(text);
        hex::encode(&hash.finalize()[..16])
    }
}

/// What opens one sandbox: 32 random bytes as text.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self(hex::encode(bytes)))
    }

    /// For those who may know it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Digests are compared, so that no comparison tells how much was right.
    pub(crate) fn is(&self, other: &str) -> bool {
        owner(&self.0) == owner(other)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("Secret")
    }
}

/// Keys that are known.
#[derive(Debug, Clone, Default)]
pub struct Keys(HashSet<Owner>);

/// Why keys cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// There is none.
    #[error("failed to read keys: the file has none; write one a line")]
    None,
    /// One is too short.
    #[error("failed to read keys: the key in line {0} has less than 16 characters")]
    Short(usize),
}

impl Keys {
    /// Keys as a file has them, one a line; empty lines and those with `#` are left out.
    ///
    /// # Errors
    /// There is none, or one can be guessed.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let lines = text.lines().map(str::trim).zip(1..);
        let keys = lines.filter(|(key, _)| !key.is_empty() && !key.starts_with('#'));
        let owners = keys.map(|(key, line)| match key.len() {
            0..LEAST => Err(KeysError::Short(line)),
            _ => Ok(owner(key)),
        });
        let owners = owners.collect::<Result<HashSet<Owner>, _>>()?;
        if owners.is_empty() { Err(KeysError::None) } else { Ok(Self(owners)) }
    }

    /// Who asks. Digests are compared, so that no comparison tells how much of a key was right.
    #[must_use]
    pub fn owner(&self, headers: &HeaderMap) -> Option<Owner> {
        HEADERS.iter().find_map(|name| self.owner_by(headers, name))
    }

    fn owner_by(&self, headers: &HeaderMap, name: &str) -> Option<Owner> {
        let key = key_of(headers.get(name)?.to_str().ok()?)?;
        Some(owner(key.trim())).filter(|owner| self.0.contains(owner))
    }

    /// Takes the headers away that hold a known key.
    pub(crate) fn take_from(&self, headers: &mut HeaderMap) {
        for name in HEADERS {
            if self.owner_by(headers, name).is_some() {
                headers.remove(name);
            }
        }
    }
}

/// The key in a header. `Basic` is how clients send what their address has as `user:KEY@`.
fn key_of(value: &str) -> Option<String> {
    let Some(basic) = value.strip_prefix("Basic ") else {
        return Some(value.strip_prefix("Bearer ").unwrap_or(value).to_owned());
    };
    let text = String::from_utf8(STANDARD.decode(basic.trim()).ok()?).ok()?;
    text.split_once(':').map(|(_, key)| key.to_owned())
}

fn owner(key: &str) -> Owner {
    Owner(Sha256::digest(key).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_by_all_of_it() {
        let keys = Keys::parse("# ours\n0123456789abcdef\n\nfedcba9876543210\n").unwrap();
        let asked = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            keys.owner(&headers)
        };
        let first = asked("authorization", "Bearer 0123456789abcdef");
        assert!(first.is_some() && first == asked("x-api-key", "0123456789abcdef"));
        assert!(
            asked("xrl-authorization", "Bearer fedcba9876543210").is_some_and(|owner| Some(owner) != first)
        );
        let basic = |text: &str| asked("authorization", &format!("Basic {}", STANDARD.encode(text)));
        assert!(basic("gem:0123456789abcdef") == first && basic("0123456789abcdef").is_none());
        assert!(basic("0123456789abcdef:").is_none() && asked("authorization", "Basic ?").is_none());
        for wrong in ["", "Bearer", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "# ours"] {
            assert_eq!(asked("authorization", wrong), None, "{wrong}");
        }
        assert_eq!(keys.owner(&HeaderMap::new()), None);
        assert_eq!(Keys::parse("\n# none\n").unwrap_err(), KeysError::None);
        assert_eq!(Keys::parse("\nshort\n").unwrap_err(), KeysError::Short(2));
    }
}
