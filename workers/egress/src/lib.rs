//! Which hosts the programs of a sandbox may reach. `address` has the addresses that no rule opens,
//! `rule` the rules that a run and an operator write. Neither connects to anything: the sandbox's
//! proxy does, `millrace_sandbox::egress`; the run file is checked by the same rules.

pub mod address;
pub mod rule;

pub use address::{Reach, reach};
pub use rule::{Host, Private, Rule, RuleError, Rules, Target};
