//! Checks of the settings of stored turns.

use super::Checks;
use crate::env_step::EnvironmentSpec;
use crate::limits::MAX_STORED_ROLLOUTS;
use crate::submit::RunSpec;

pub(super) fn check(spec: &RunSpec, checks: &mut Checks) {
    let stored = &spec.rollout.stored_turns;
    let field = |name: &str| format!("rollout.stored_turns.{name}");
    checks.number(&field("share"), stored.share, 0.0, 0.95);
    checks.count(&field("keep"), u64::from(stored.keep), 1, u64::from(MAX_STORED_ROLLOUTS));
    checks.number(&field("learnt"), stored.learnt, 0.01, 1.0);
    if !stored.is_on() {
        return;
    }
    checks.require(
        spec.domains.is_empty(),
        &field("share"),
        stored.share,
        "with several domains every group must start at its prompt, or the mix would not be the configured one; choose 0",
    );
    let hosts = spec.parts().any(|domain| matches!(domain.environment, EnvironmentSpec::Agent(_)));
    checks.require(
        !hosts,
        &field("share"),
        stored.share,
        "an agent's process cannot start in the middle of another's episode; choose 0",
    );
    let turns = spec.parts().map(|domain| domain.environment.max_turns()).max().unwrap_or(0);
    checks.require(
        turns > 1,
        &field("share"),
        stored.share,
        "the environment gives one turn, so there is none to start from but the beginning; choose 0",
    );
}
