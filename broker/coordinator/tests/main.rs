//! The crate seen from outside, in one program: each further one would compile its libraries again.

#[cfg(test)]
mod fold;
#[cfg(test)]
mod fence;
#[cfg(test)]
mod progress;
#[cfg(test)]
mod collect;
#[cfg(test)]
mod power_loss;
