//! What a run file may tell its rewards, and how data sets write tests of code.

use millrace_schemas::reward::RewardRule;
use millrace_schemas::reward::code::{CodeTest, tests_of};
use millrace_schemas::submit::RunFileError;
use serde_json::{Value, json};

use crate::run_file::{read, with};

/// A run whose environment speaks text, with one reward.
fn of(reward: &Value) -> Value {
    let mut file = with("model", json!({ "kind": "hugging_face", "path": "m" }));
    file["environment"] = json!({ "name": "arithmetic" });
    file["algorithm"]["learning_rate"] = json!(1e-5);
    file["rewards"] = json!([reward]);
    file
}

/// Rewards that can work.
fn sound() -> Vec<Value> {
    vec![
        json!({ "rule": "math" }),
        json!({ "rule": "judge", "settings": { "model": "m" } }),
        json!({ "rule": "judge", "settings": { "model": "m", "template": "{right} or {answer}? Grade:", "score_after": "Grade:", "low": 1, "high": 5 } }),
        json!({ "rule": "format", "settings": { "tags": ["think", "answer"], "opened": true } }),
        json!({ "rule": "instructions", "settings": { "instructions_field": "asked", "loose": true } }),
        json!({ "rule": "instructions", "settings": { "instructions": [{ "kind": "words", "count": { "at_most": 9 } }, { "kind": "json" }] } }),
        json!({ "rule": "math", "settings": { "answer_field": "solution", "boxed": true } }),
        json!({ "rule": "code", "settings": { "tests_field": "tests" } }),
        json!({ "rule": "code", "settings": { "tests": [{ "stdin": "1", "stdout": "1" }, { "code": "assert f(1)" }], "partial": true } }),
        json!({ "rule": "code", "settings": { "tests_field": "tests", "wall_ms": 100, "may_lack": ["landlock"] } }),
    ]
}

#[test]
fn settings_that_can_work_are_taken() {
    for reward in sound() {
        let spec = read(&of(&reward)).unwrap_or_else(|error| panic!("{reward}: {error}"));
        let again = serde_json::to_value(&spec).expect("a run file can be written as JSON");
        assert_eq!(read(&again).expect("it is valid"), spec, "{reward}");
    }
}

/// A reward, the field that is named, and a word of the remedy.
fn nonsense() -> Vec<(Value, &'static str, &'static str)> {
    let code = |settings: Value| json!({ "rule": "code", "settings": settings });
    let asked = |one: Value| json!({ "rule": "instructions", "settings": { "instructions": [one] } });
    let judge = |settings: Value| json!({ "rule": "judge", "settings": settings });
    let format = |settings: Value| json!({ "rule": "format", "settings": settings });
    vec![
        (judge(json!({})), "rewards[0].settings.model", "v1/models"),
        (judge(json!({ "model": "m", "template": "Score: ?" })), "rewards[0].settings.template", "{answer}"),
        (judge(json!({ "model": "m", "template": "{answer}?" })), "rewards[0].settings.score_after", "ask"),
        (judge(json!({ "model": "m", "low": 10 })), "rewards[0].settings.high", "above low"),
        (judge(json!({ "model": "m", "timeout_ms": 0 })), "rewards[0].settings.timeout_ms", "from 1"),
        (
            judge(json!({ "model": "m", "temprature": 0 })),
            "rewards[0].settings.temprature",
            "did you mean `temperature`?",
        ),
        (
            asked(json!({ "kind": "word" })),
            "rewards[0].settings.instructions[0].kind",
            "did you mean `words`?",
        ),
        (asked(json!({ "kind": "words", "count": {} })), "rewards[0].settings.instructions[0]", "how many"),
        (
            asked(json!({ "kind": "words", "count": { "at_least": 3, "at_most": 2 } })),
            "rewards[0].settings.instructions[0]",
            "how many",
        ),
        (asked(json!({ "kind": "keywords", "words": [""] })), "rewards[0].settings.instructions[0]", "words"),
        (asked(json!({ "kind": "starts_with", "text": "" })), "rewards[0].settings.instructions[0]", "text"),
        (json!({ "rule": "instructions" }), "rewards[0].settings.instructions", "instructions_field"),
        (format(json!({ "tags": ["<think>"] })), "rewards[0].settings.tags[0]", "think"),
        (format(json!({ "tags": ["a", "a"] })), "rewards[0].settings.tags[1]", "once"),
        (format(json!({ "loose": true })), "rewards[0].settings.loose", "name them"),
        (format(json!({ "tag": ["a"] })), "rewards[0].settings.tag", "did you mean `tags`?"),
        (code(json!({})), "rewards[0].settings.tests", "tests_field"),
        (
            code(json!({ "tests_field": "t", "tests": [{ "code": "" }] })),
            "rewards[0].settings.tests",
            "either",
        ),
        (code(json!({ "test_field": "t" })), "rewards[0].settings.test_field", "did you mean `tests_field`?"),
        (code(json!({ "tests_field": 3 })), "rewards[0].settings.tests_field", "string"),
        (
            code(json!({ "tests_field": "t", "language": "pyton" })),
            "rewards[0].settings.language",
            "did you mean `python`?",
        ),
        (code(json!({ "tests_field": "t", "wall_ms": 1 })), "rewards[0].settings.wall_ms", "from 10"),
        (code(json!({ "tests_field": "t", "memory_mib": 1 })), "rewards[0].settings.memory_mib", "from 64"),
        (
            code(json!({ "tests_field": "t", "may_lack": ["namespaces"] })),
            "rewards[0].settings.may_lack[0]",
            "landlock",
        ),
        (code(json!({ "tests": [{ "stdin": "1" }] })), "rewards[0].settings.tests[0]", "stdout"),
        (
            code(json!({ "tests": [{ "stdot": "1" }] })),
            "rewards[0].settings.tests[0].stdot",
            "did you mean `stdout`?",
        ),
        (
            json!({ "rule": "math", "settings": { "anser": "3" } }),
            "rewards[0].settings.anser",
            "did you mean `answer`?",
        ),
        (json!({ "rule": "math", "settings": { "answer": " " } }), "rewards[0].settings.answer", "right"),
        (json!({ "rule": "math", "settings": { "boxed": 1 } }), "rewards[0].settings.boxed", "boolean"),
        (json!({ "rule": "success", "settings": { "x": 1 } }), "rewards[0].settings", "no settings"),
    ]
}

/// The same, of times that end after the attempt at a score.
fn too_long() -> Vec<(Value, &'static str, &'static str)> {
    let timed = |rule: &str, settings: Value| json!({ "rule": rule, "settings": settings });
    let tests = |name: &str| json!({ "tests_field": "t", name: 120_000 });
    vec![
        (timed("code", tests("wall_ms")), "rewards[0].settings.wall_ms", "ends after"),
        (timed("code", tests("total_ms")), "rewards[0].settings.total_ms", "ends after"),
        (
            timed("judge", json!({ "model": "m", "timeout_ms": 120_000 })),
            "rewards[0].settings.timeout_ms",
            "ends after",
        ),
    ]
}

#[test]
fn settings_that_cannot_work_are_refused_with_their_remedy() {
    for (reward, field, remedy) in nonsense().into_iter().chain(too_long()) {
        let refusals = match read(&of(&reward)) {
            Err(RunFileError::Refused(refusals)) => refusals,
            other => panic!("{reward} is not refused by its value: {other:?}"),
        };
        let named =
            refusals.iter().any(|r| r.field == field && r.remedy.contains(remedy) && !r.value.is_empty());
        assert!(named, "{reward}: no refusal of {field} says {remedy:?}: {refusals:?}");
    }
}

#[test]
fn a_rule_that_reads_words_needs_an_environment_that_speaks_them() {
    for reward in sound() {
        let error = read(&with("rewards", json!([reward]))).expect_err("the lake speaks tokens").to_string();
        assert!(error.contains("rewards[0].rule") && error.contains("uses text"), "{error}");
    }
}

#[test]
fn every_rule_that_comes_with_millrace_is_chosen_by_its_name() {
    let names = RewardRule::BUILT_IN.map(RewardRule::name);
    for (rule, name) in RewardRule::BUILT_IN.into_iter().zip(names) {
        assert_eq!(serde_json::to_value(rule).expect("a name"), json!(name));
    }
}

#[test]
fn tests_are_read_as_data_sets_write_them() {
    let pair = |stdin: &str, stdout: &str| CodeTest {
        stdin: stdin.into(),
        stdout: Some(stdout.into()),
        ..CodeTest::default()
    };
    let code = |code: &str| CodeTest { code: Some(code.into()), ..CodeTest::default() };
    let pairs = vec![pair("1\n", "2"), pair("3", "")];
    let written = json!([{ "stdin": "1\n", "stdout": "2" }, { "stdin": "3", "stdout": "" }]);
    let columns = json!({ "inputs": ["1\n", "3"], "outputs": ["2", ""] });
    for value in [written.clone(), json!(written.to_string()), columns.clone(), json!(columns.to_string())] {
        assert_eq!(tests_of(&value).as_ref(), Ok(&pairs), "{value}");
    }
    let lines = json!(["assert f(1) == 2", "assert f(2) == 3"]);
    assert_eq!(tests_of(&lines), Ok(vec![code("assert f(1) == 2"), code("assert f(2) == 3")]));
    let text = "def check(f):\n    assert f(1) == 2\ncheck(f)";
    assert_eq!(tests_of(&json!(text)), Ok(vec![code(text)]));
    for wrong in [
        json!(null),
        json!(3),
        json!([]),
        json!([3]),
        json!([{ "stdin": "1" }]),
        json!([{ "input": "1", "output": "2" }]),
        json!({ "inputs": ["1"], "outputs": [] }),
        json!({ "inputs": [1], "outputs": [1] }),
        json!({ "in": [] }),
        json!(vec!["x"; 257]),
    ] {
        assert!(tests_of(&wrong).is_err(), "{wrong}");
    }
}
