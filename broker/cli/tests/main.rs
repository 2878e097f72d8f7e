//! Tests of the crate's public interface, in one program: each further program would link the
//! libraries a second time.

#[cfg(test)]
mod plain_nats;
#[cfg(test)]
mod cli;
