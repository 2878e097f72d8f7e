//! Gangs: collectives, steps of several members, the sources of their state, and the loss of a
//! member.

mod books;
mod collectives;
mod half;
mod history;
mod joins;
mod processes;
mod ranks;
mod sharded;
mod shares;
mod steps;
