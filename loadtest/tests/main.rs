//! The crate seen from outside, in one program: each further one would compile the whole system anew.

#[cfg(test)]
mod bench;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod chaos;
