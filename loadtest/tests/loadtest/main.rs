//! Tests of the crate from outside, in one program: each further one would compile the whole system
//! again.

#[cfg(test)]
mod bench;
#[cfg(test)]
mod headlines;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod chaos;
