//! What a nats-server with authentication needs: keys for the roles, certificates, and its configuration.

mod guarded;

pub use guarded::{AuthError, AuthFile, Guarded, write};
