//! A run file with a dataset: invalid values are refused by field, and so is a dataset that was not
//! submitted.

use millrace_schemas::submit::{RunFileError, RunSpec};
use serde_json::{Value, json};

use crate::run_file::{read, with};

/// A run file of a model of the hub that asks rows.
fn asks(environment: &Value, rewards: &Value, prompts: u64) -> Result<RunSpec, RunFileError> {
    let mut file = with("model", json!({ "kind": "hugging_face", "path": "m" }));
    file["environment"] = json!({ "name": "dataset", "path": "rows.jsonl", "check": "number" });
    file["environment"]
        .as_object_mut()
        .expect("a table")
        .extend(environment.as_object().expect("a table").clone());
    file["rewards"] = rewards.clone();
    file["evaluate"]["prompts"] = json!(prompts);
    file["algorithm"]["learning_rate"] = json!(1e-5);
    read(&file)
}

fn content(train: u64, held_out: u64) -> Value {
    json!({ "blob": { "sha256": "0".repeat(64), "bytes": 10 }, "train": train, "held_out": held_out })
}

#[test]
fn a_run_that_asks_rows_is_checked_first() {
    let env_return = json!([{ "rule": "env_return" }]);
    let own = json!([{ "rule": "custom", "pool": "own" }]);
    assert!(asks(&json!({}), &env_return, 8).is_ok());
    assert!(asks(&json!({ "check": "by_reward" }), &own, 8).is_ok());
    for (environment, rewards, field, remedy) in [
        (json!({ "path": " " }), &env_return, "environment.path", "name the file"),
        (json!({ "prompt": "" }), &env_return, "environment.prompt", "the field that holds the prompt"),
        (json!({ "prompt": "answer" }), &env_return, "environment.prompt", "another than environment.answer"),
        (json!({ "answer": "" }), &env_return, "environment.answer", "nothing to check"),
        (json!({ "held_out": 1.0 }), &env_return, "environment.held_out", "from 0 to 0.9"),
        (json!({ "held_out": 0.0 }), &env_return, "environment.held_out", "evaluate.prompts = 0"),
        (json!({ "max_turns": 0 }), &env_return, "environment.max_turns", "from 1"),
        (json!({ "prompt_tokens": 0 }), &env_return, "environment.prompt_tokens", "from 1"),
        (json!({ "check": "by_reward", "max_turns": 2 }), &own, "environment.max_turns", "choose 1"),
        (json!({ "check": "by_reward" }), &env_return, "environment.check", "the reward env_return"),
        (
            json!({ "content": content(0, 9) }),
            &env_return,
            "environment.content.train",
            "nothing to train on",
        ),
        (json!({ "content": content(9, 7) }), &env_return, "evaluate.prompts", "only rows=7 are held out"),
        (json!({ "prompt_tokens": 1_024 }), &env_return, "model.context", "1025"),
        (json!({ "tools": ["files"] }), &env_return, "environment.max_turns", "2 turns or more"),
        (json!({ "tools": ["../x"], "max_turns": 2 }), &env_return, "environment.tools", "--mcp"),
        (json!({ "tools": ["a", "a"], "max_turns": 2 }), &env_return, "environment.tools", "named twice"),
        (
            json!({ "tools": ["a"], "max_turns": 2, "tool_ms": 0 }),
            &env_return,
            "environment.tool_ms",
            "from 1 to 100000",
        ),
        (
            json!({ "tools": ["a"], "max_turns": 2, "tool_result_tokens": 513 }),
            &env_return,
            "environment.tool_result_tokens",
            "from 1 to 512",
        ),
    ] {
        let Err(RunFileError::Refused(refusals)) = asks(&environment, rewards, 8) else {
            panic!("{environment} is not refused by its value");
        };
        let said = refusals.iter().any(|refusal| refusal.field == field && refusal.remedy.contains(remedy));
        assert!(said, "{environment}: no refusal of {field} says {remedy:?}: {refusals:?}");
    }
    assert!(asks(&json!({ "held_out": 0.0 }), &env_return, 0).is_ok());
}

#[test]
fn only_a_run_that_names_its_rows_by_hash_is_handed_in() {
    let rewards = json!([{ "rule": "env_return" }]);
    let spec = asks(&json!({}), &rewards, 7).expect("it is whole");
    assert_eq!(spec.missing_at_submit()[0].field, "environment.content");
    let submitted = asks(&json!({ "content": content(9, 7) }), &rewards, 7).expect("it is whole");
    assert!(submitted.missing_at_submit().is_empty());
    assert_ne!(spec.hash(), submitted.hash(), "the rows are part of what the run is");
    let text = serde_json::to_string(&submitted).expect("a run file is JSON");
    assert_eq!(millrace_schemas::submit::from_json(text.as_bytes()), Ok(submitted));
}

#[test]
fn rows_with_tools_are_served_by_workers_that_have_some() {
    let own = json!([{ "rule": "custom", "pool": "own" }]);
    let more = json!({ "check": "by_reward", "max_turns": 3, "prompt_tokens": 200, "tool_result_tokens": 64,
                       "tools": ["calculator", "files/read"] });
    let spec = asks(&more, &own, 8).expect("it is whole");
    assert_eq!(spec.parts().next().expect("one part").environment.pool(), "dataset_tools");
    let plain = asks(&json!({ "check": "by_reward" }), &own, 8).expect("it is whole");
    assert_eq!(plain.parts().next().expect("one part").environment.pool(), "dataset");
    let written = serde_json::to_string(&plain).expect("a run file is JSON");
    assert!(!written.contains("tool"), "runs without tools keep their bytes and their hash: {written}");
}
