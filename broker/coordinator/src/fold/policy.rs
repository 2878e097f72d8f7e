//! The run's policy key, which workers follow.

use millrace_schemas::policy::Policy;

use crate::fold::command::{Command, Commands};
use crate::fold::state::Run;

/// Makes `policy` the current one and publishes it.
pub(crate) fn set(run: &mut Run, policy: Policy, out: &mut Commands) {
    run.policy = Some(policy.clone());
    out.push(Command::SetPolicy { run: run.spec.name.clone(), policy });
}
