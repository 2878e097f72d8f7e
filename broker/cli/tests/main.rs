//! The crate seen from outside, in one program: each further one would compile its libraries again.

#[cfg(test)]
mod plain_nats;
#[cfg(test)]
mod cli;
