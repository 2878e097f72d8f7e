//! Rewards that need more than the task: a sandbox, and a server whose model judges.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use clap::Parser;
use millrace_schemas::env_step::{Settings, Speaker, Utterance};
use millrace_schemas::reward::{RewardRule, RewardTask, TurnResult};
use millrace_schemas::{PolicyVersion, Task, TaskBody};
use millrace_workers::rewards::Tools;
use millrace_workers::rewards::tools::ToolArgs;
use serde_json::Value;

mod code;
mod judge;
#[path = "../server/process.rs"]
mod server;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    tools: ToolArgs,
}

/// What a worker has that is started with these arguments.
fn tools(arguments: &[&str]) -> Tools {
    let words = ["worker"].iter().chain(arguments);
    Arguments::parse_from(words).tools.tools().unwrap()
}

/// Scores an answer by a rule.
fn task(rule: RewardRule, settings: Value, row: Value, (question, answer): (&str, &str)) -> Task {
    let say = |speaker, text: &str| Utterance { speaker, text: text.to_owned() };
    let table = |value| -> Settings { serde_json::from_value(value).unwrap() };
    Task {
        run: "own".parse().unwrap(),
        key: "g1r0a0-w0".parse().unwrap(),
        pool: rule.name().parse().unwrap(),
        version: PolicyVersion(1),
        evaluate: false,
        body: TaskBody::Reward(RewardTask {
            settings: table(settings),
            conversation: vec![say(Speaker::Environment, question), say(Speaker::Policy, answer)],
            row: table(row),
            ..RewardTask::new(rule, vec![TurnResult { reward: 0.0, valid: true, tokens: 3 }], false)
        }),
    }
}
