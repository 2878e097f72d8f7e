//! The repository's own rules, which no lint knows: sizes, one vocabulary of stages, names built in
//! one place, what the folders hold, what READMEs cite, and which crate may depend on what.

mod tree;

mod alone;
mod citations;
mod conformance;
mod cycles;
mod dependencies;
mod folders;
mod names;
mod purity;
mod rooms;
mod sizes;
mod stages;
mod test_layout;
mod words;
