//! Tests of the crate's public interface, in one program: each further program would link the
//! libraries a second time.

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
#[cfg(test)]
mod trim;
