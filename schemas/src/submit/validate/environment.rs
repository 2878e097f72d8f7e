//! Checks of the environments of a run.

use super::{Checks, agent, dataset};
use crate::env_step::EnvironmentSpec;
use crate::limits;
use crate::submit::{Domain, RunSpec, mix};

/// Checks the environment of each domain.
pub(super) fn check(spec: &RunSpec, checks: &mut Checks) {
    // More of either are refused elsewhere, and counting them would take long.
    let shares: Vec<u64> = spec.shares().into_iter().take(limits::MAX_DOMAINS).collect();
    let prompts = mix::counts(&shares, u64::from(spec.evaluate.prompts.min(limits::MAX_EVALUATE_PROMPTS)));
    for ((i, domain), prompts) in spec.parts().enumerate().zip(prompts) {
        check_one(&domain, &spec.path_of(i, "environment"), prompts, checks);
    }
}

fn check_one(domain: &Domain<'_>, at: &str, prompts: u64, checks: &mut Checks) {
    let environment = domain.environment;
    let field = |name: &str| format!("{at}.{name}");
    let turns = match environment {
        EnvironmentSpec::Counter { .. } => "turns",
        _ => "max_turns",
    };
    checks.count(&field(turns), u64::from(environment.max_turns()), 1, u64::from(limits::MAX_TURNS));
    if let Some(prompt) = environment.prompt_tokens() {
        let most = limits::MAX_CONTEXT_TOKENS as u64;
        checks.count(&field("prompt_tokens"), u64::from(prompt), 1, most);
    }
    environment.check_settings(&field, checks);
    match environment {
        EnvironmentSpec::Dataset(rows) => dataset::check(rows, (at, domain.rewards, prompts), checks),
        EnvironmentSpec::Agent(spec) => {
            agent::check(spec, at, checks);
            dataset::check_rows(&spec.rows, (&field("rows"), prompts), checks);
        }
        _ => {}
    }
}
