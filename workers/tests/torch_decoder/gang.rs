//! Gangs: collectives, steps that several members make, where their state comes from, and what
//! happens when one of them is lost.

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
#[path = "gang/steps.rs"]
mod steps;
