//! Tests of the crate from outside, in one program: each further one would compile the NATS client
//! again.

#[cfg(test)]
mod conformance_memory;
#[cfg(test)]
mod conformance_jetstream;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod service;
#[cfg(test)]
mod server;
#[cfg(test)]
mod restart;
#[cfg(test)]
mod cut;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod roles;
