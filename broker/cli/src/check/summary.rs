//! What a run will do and what it needs, by its run file.

use std::collections::BTreeSet;

use millrace_schemas::RunSpec;
use millrace_schemas::dataset::ToolRef;
use millrace_schemas::env_step::{AGENT, EnvironmentSpec};
use millrace_schemas::reward::RewardRule;
use millrace_schemas::submit::ModelSpec;

use crate::term::thousands;

/// The summary of a sound run file.
pub(super) fn lines(spec: &RunSpec) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |label: &str, words: String| lines.push(format!("  {label:<10} {words}"));
    let (groups, size) = (spec.rollout.groups_per_step, spec.rollout.group_size);
    let each_step = u64::from(groups) * u64::from(size);
    let in_flight = thousands(spec.rollouts_in_flight());
    line(
        "rollouts",
        format!("{} a step: {groups} groups of {size}; {in_flight} in flight at most", thousands(each_step)),
    );
    let longest = spec.parts().map(|domain| domain.longest_rollout()).max().unwrap_or(0);
    let context =
        spec.model.context().map_or_else(String::new, |most| format!(", of model.context = {most}"));
    line("tokens", format!("{} of a rollout at most{context}", thousands(longest)));
    let (bound, alpha) = (spec.max_staleness(), spec.rollout.alpha);
    let versions = if bound == 1 { "version" } else { "versions" };
    line("staleness", format!("{bound} {versions} at most (rollout.alpha = {alpha})"));
    line("steps", format!("{}{}", thousands(spec.steps), evaluations(spec)));
    line("workers", workers(spec));
    let warmup = spec.algorithm.warmup_steps;
    if warmup >= spec.steps {
        line("note", format!("the learning rate still rises at the end: algorithm.warmup_steps = {warmup}"));
    }
    lines
}

fn evaluations(spec: &RunSpec) -> String {
    match (spec.evaluate.prompts, spec.evaluate.every) {
        (0, _) => "; nothing is evaluated".to_owned(),
        (prompts, 0) => format!("; {prompts} held-out prompts before the first and after the last"),
        (prompts, every) => {
            format!("; {prompts} held-out prompts before the first, after every {every} and the last")
        }
    }
}

/// What its workers must have.
fn workers(spec: &RunSpec) -> String {
    let mut needs = Vec::new();
    if spec.model != ModelSpec::Scripted {
        needs.push("torch".to_owned());
    }
    if spec.gang.ranks > 1 {
        needs.push(format!("{} that train together", spec.gang.ranks));
    }
    let own: BTreeSet<String> = spec
        .parts()
        .flat_map(|domain| {
            let environment = match domain.environment {
                EnvironmentSpec::Custom { pool, .. } => Some(format!("environment {pool}")),
                _ => None,
            };
            let rewards = domain.rewards.iter().filter(|reward| reward.rule == RewardRule::Custom);
            environment.into_iter().chain(rewards.map(|reward| format!("reward {}", reward.pool())))
        })
        .collect();
    if !own.is_empty() {
        let own: Vec<String> = own.into_iter().collect();
        needs.push(format!("--exec COMMAND for {}", own.join(", ")));
    }
    let datasets = spec.parts().filter_map(|domain| domain.environment.dataset());
    let servers: BTreeSet<String> = datasets
        .flat_map(|dataset| &dataset.tools)
        .filter_map(|tool| tool.parse::<ToolRef>().ok())
        .map(|tool| tool.server.to_string())
        .collect();
    needs.extend(servers.iter().map(|server| format!("--mcp {server}=COMMAND")));
    if spec.parts().any(|domain| domain.environment.pool() == AGENT) {
        needs.push("agents (millrace-worker --agents; `up` has them)".to_owned());
    }
    let has = |rule| spec.parts().any(|domain| domain.rewards.iter().any(|reward| reward.rule == rule));
    if has(RewardRule::Code) {
        needs.push("a sandbox, for the reward code".to_owned());
    }
    if has(RewardRule::Judge) {
        needs.push("--judge-url URL, for the reward judge".to_owned());
    }
    if needs.is_empty() { "any".to_owned() } else { needs.join("; ") }
}
