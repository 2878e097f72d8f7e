//! What comes with Millrace is listed, for a worker serves the pools of a list by default. Each list is
//! compared with the variants that the JSON schema has, so that none is forgotten.

use std::collections::BTreeSet;

use millrace_schemas::env_step::{self, EnvironmentSpec};
use millrace_schemas::reward::RewardRule;
use millrace_schemas::submit::Loss;
use schemars::{JsonSchema, schema_for};
use serde_json::Value;

/// Served by a user's own program, not by default.
const OF_USERS: &str = "custom";

/// The name of each variant: a constant, that of its tag `name`, or one of an enumeration.
fn variants<T: JsonSchema>() -> BTreeSet<String> {
    let schema = schema_for!(T).to_value();
    let plain = schema["enum"].as_array().into_iter().flatten();
    let each = schema["oneOf"].as_array().into_iter().flatten();
    let names = each.flat_map(|one| {
        let constant = [&one["const"], &one["properties"]["name"]["const"]];
        constant.into_iter().chain(one["enum"].as_array().into_iter().flatten())
    });
    let names: BTreeSet<String> = plain.chain(names).filter_map(Value::as_str).map(str::to_owned).collect();
    assert!(names.len() > 3, "the variants are not where they are looked for: {schema}");
    names
}

fn listed(names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    names.into_iter().chain([OF_USERS.to_owned()]).collect()
}

#[test]
fn every_environment_is_built_in_or_a_users_own() {
    // Agents are served where a worker is asked to host them.
    let built_in = env_step::BUILT_IN.into_iter().chain([env_step::AGENT]);
    let listed = listed(built_in.map(str::to_owned));
    assert_eq!(variants::<EnvironmentSpec>(), listed, "env_step::BUILT_IN lacks a variant, or has too many");
}

#[test]
fn every_reward_rule_is_built_in_or_a_users_own() {
    let listed = listed(RewardRule::BUILT_IN.map(|rule| rule.name().to_owned()));
    assert_eq!(variants::<RewardRule>(), listed, "RewardRule::BUILT_IN lacks a variant, or has too many");
}

#[test]
fn every_loss_is_in_the_list_of_all() {
    let name = |loss: Loss| serde_json::to_value(loss).expect("a name").as_str().map(str::to_owned);
    let all: BTreeSet<String> = Loss::ALL.into_iter().filter_map(name).collect();
    assert_eq!(variants::<Loss>(), all, "Loss::ALL lacks a variant");
}
