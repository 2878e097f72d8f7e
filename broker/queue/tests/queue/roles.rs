//! What each role can and can not do, on a real nats-server with the configuration that `millrace init-auth`
//! makes, over TLS.

mod guarded;

mod refused;
mod forbidden;
mod replies;
mod letters;
mod deputies;
mod floods;
mod trimmed;
