//! What each role can and can not do, on a real nats-server with the configuration that `millrace init-auth`
//! makes, over TLS.

#[cfg(test)]
mod guarded;

#[cfg(test)]
mod refused;
#[cfg(test)]
mod forbidden;
#[cfg(test)]
mod deputies;
