//! Gangs: collectives, steps of several members, the sources of their state, and the loss of a
//! member.

#[path = "gang/books.rs"]
mod books;
#[path = "gang/collectives.rs"]
mod collectives;
#[path = "gang/half.rs"]
mod half;
#[path = "gang/history.rs"]
mod history;
#[path = "gang/joins.rs"]
mod joins;
#[path = "gang/processes.rs"]
mod processes;
#[path = "gang/ranks.rs"]
mod ranks;
#[path = "gang/shares.rs"]
mod shares;
#[path = "gang/steps.rs"]
mod steps;
