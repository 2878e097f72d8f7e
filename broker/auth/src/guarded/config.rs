//! The nats-server's configuration, from the template in `infra/nats`.

use millrace_schemas::role::{Allowance, Rights};

use super::{AuthError, Guarded, accounts};

const TEMPLATE: &str = include_str!("../../../../infra/nats/nats-server.conf.template");

/// A user as the server knows it.
pub(super) struct User {
    pub(super) name: String,
    /// The public half of its nkey.
    pub(super) public: String,
    pub(super) rights: Rights,
    /// `None` for no bound.
    pub(super) allowance: Option<Allowance>,
}

/// Fills the template in.
pub(super) fn render(guarded: &Guarded, users: &[User]) -> Result<String, AuthError> {
    let Guarded { listen, sync, place, .. } = guarded;
    let place = place.to_string_lossy();
    for (field, value) in [("--listen", listen.as_str()), ("--place", &place), ("--sync", sync)] {
        if value.contains(['"', '\\', '@', '\n', '\r']) {
            return Err(AuthError::Config { field, value: value.to_owned() });
        }
    }
    // What comes last may hold what looks like a mark.
    Ok(TEMPLATE
        .replace("@LISTEN@", listen)
        .replace("@FOLDER@", &place)
        .replace("@SYNC@", sync)
        .replace("@ACCOUNTS@", &accounts::render(users)))
}
