//! Checks of an environment's settings.

use super::{Checks, agent, dataset};
use crate::env_step::{self, EnvironmentSpec, FrozenLakeSpec, SokobanSpec};
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
    match environment {
        EnvironmentSpec::FrozenLake(lake) => check_lake(lake, field, checks),
        EnvironmentSpec::Sokoban(sokoban) => check_sokoban(sokoban, field, checks),
        EnvironmentSpec::Counter { latency, .. } => {
            // Far below the time limit of a task.
            checks.number(&field("latency.mean_ms"), latency.mean_ms, 0.0, 60_000.0);
            checks.number(&field("latency.deviation_ms"), latency.deviation_ms, 0.0, 10_000.0);
        }
        EnvironmentSpec::Arithmetic { operations, largest, .. } => {
            let count = operations.len();
            checks.require(count > 0, &field("operations"), count, "name one or more, [\"add\"]");
            checks.count(&field("largest"), u64::from(*largest), 9, 1_000_000_000);
        }
        EnvironmentSpec::Dataset(rows) => {
            dataset::check(rows, (at, domain.rewards, prompts), checks);
        }
        EnvironmentSpec::Agent(spec) => {
            agent::check(spec, at, checks);
            dataset::check_rows(&spec.rows, (&field("rows"), prompts), checks);
        }
        EnvironmentSpec::Custom { pool, .. } => {
            checks.require(
                !env_step::BUILT_IN.contains(&pool.as_str()) && pool.as_str() != env_step::AGENT,
                &field("pool"),
                pool,
                "an environment that comes with Millrace has this name; give yours another",
            );
        }
    }
}

fn check_lake(lake: &FrozenLakeSpec, field: impl Fn(&str) -> String, checks: &mut Checks) {
    let FrozenLakeSpec { size, frozen, detours, .. } = *lake;
    checks.count(&field("size"), u64::from(size), 2, 8);
    checks.number(&field("frozen"), frozen, 0.0, 1.0);
    let Some(share) = detours else { return };
    checks.number(&field("detours"), share, 0.0, 1.0);
    checks.require(
        share == 0.0 || size >= 5,
        &field("detours"),
        share,
        "on maps of fewer than 5 cells a side no shortest path is a detour; choose environment.size = 5 or more",
    );
}

fn check_sokoban(sokoban: &SokobanSpec, field: impl Fn(&str) -> String, checks: &mut Checks) {
    let SokobanSpec { size, scramble, least_turns, max_turns, walls } = *sokoban;
    checks.count(&field("size"), u64::from(size), 5, 10);
    checks.count(&field("scramble"), u64::from(scramble), 1, 1_000);
    // No level takes more turns than it was made with, nor than an episode has.
    let most = scramble.min(max_turns);
    checks.count(&field("least_turns"), u64::from(least_turns), 0, u64::from(most));
    checks.count(&field("walls"), u64::from(walls), 0, 4);
}
