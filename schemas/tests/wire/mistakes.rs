//! What is said of a run file that is wrong: the field, the value, and what to write instead.

use millrace_schemas::submit::{RunFileError, from_json, from_toml};
use serde_json::json;

use crate::run_file::{read, with};

/// A run of a model with a tokenizer, without its `[rollout]`.
const TEXT_RUN: &str = "name = \"x\"\nsteps = 10\nmodel = { kind = \"hugging_face\", path = \"m\" }\n\
                        environment = { name = \"arithmetic\" }\nalgorithm = { learning_rate = 1e-5 }\n";

#[test]
fn a_model_with_a_tokenizer_needs_its_most_tokens_of_a_turn() {
    let error = from_toml(TEXT_RUN).expect_err("each answer would be one token").to_string();
    assert!(error.contains("rollout.max_new_tokens = none") && error.contains("256"), "{error}");
    for one in [1, 256] {
        let text = format!("{TEXT_RUN}rollout = {{ max_new_tokens = {one} }}\n");
        let spec = from_toml(&text).unwrap_or_else(|e| panic!("{one} is given: {e}"));
        // The coordinator reads what `submit` wrote out.
        let sent = serde_json::to_vec(&spec).expect("a run file is JSON");
        assert_eq!(from_json(&sent), Ok(spec));
    }
    let environment = "environment = { name = \"arithmetic\" }";
    let domain = |tokens: &str| {
        format!("[[domains]]\nname = \"a\"\nshare = 1\nenvironment = {{ name = \"arithmetic\" }}\n{tokens}")
    };
    let text = TEXT_RUN.replace(environment, "");
    assert!(from_toml(&format!("{text}{}", domain("max_new_tokens = 9"))).is_ok(), "each domain has its own");
    assert!(from_toml(&format!("{text}{}", domain(""))).is_err());
    let game = TEXT_RUN.replace("kind = \"hugging_face\", path = \"m\"", "kind = \"scripted\"");
    let game = game.replace(environment, "environment = { name = \"counter\", turns = 1 }");
    assert!(from_toml(&game).is_ok(), "an action is one token");
}

#[test]
fn a_value_of_a_wrong_type_is_answered_with_its_field_its_value_and_an_example() {
    let sound = format!("{TEXT_RUN}rollout = {{ max_new_tokens = 9 }}\n");
    for (from, to, said) in [
        (
            "steps = 10",
            "steps = \"10\"",
            "steps = \"10\": give a whole number from 0, without quotes: steps = 10",
        ),
        ("steps = 10", "steps = 1.5", "steps = 1.5: give a whole number from 0"),
        (
            "learning_rate = 1e-5",
            "learning_rate = 1e-5, kl = 0.001",
            "algorithm.kl = 0.001: give a table of named fields: kl = { coefficient = 0.001 }",
        ),
        (
            "path = \"m\"",
            "path = \"m\", precision = \"fp16\"",
            "model.precision = \"fp16\": choose \"f32\" or \"bf16\"",
        ),
        (
            "path = \"m\"",
            "path = \"m\", context = \"512\"",
            "model.context = \"512\": give a whole number from 0 to 4294967295, without quotes: context = 512",
        ),
        ("path = \"m\"", "path = 3", "model.path = 3: give a text in quotes"),
        (
            "model = { kind = \"hugging_face\", path = \"m\" }",
            "",
            "model = none: this field is missing; give a table with a kind, model = { kind = \"decoder\", … }; kind is \
             \"decoder\", \"hugging_face\" or \"scripted\"",
        ),
        (
            "model = { kind = \"hugging_face\", path = \"m\" }",
            "model = \"m\"",
            "model = \"m\": give a table with a kind, model = { kind = \"decoder\", … }",
        ),
        (", path = \"m\"", "", "model.path = none: this field is missing; give a text in quotes"),
        ("{ name = \"arithmetic\" }", "\"arithmetic\"", "give a table with a name, environment = { name ="),
    ] {
        assert!(sound.contains(from), "{from}");
        let text = sound.replace(from, to);
        let error = from_toml(&text).expect_err(to);
        let RunFileError::Shape { field, .. } = &error else { panic!("{to}: {error}") };
        assert!(said.starts_with(field) || said.contains(&format!("{field} = ")), "{to}: field={field}");
        assert!(error.to_string().contains(said), "{to}: {error}");
    }
}

/// With several mistakes, each has its own place: those inside a table with a `kind`, and in lists.
#[test]
fn several_mistakes_of_type_are_all_answered() {
    let text = TEXT_RUN.replace("path = \"m\"", "path = \"m\", precision = \"fp16\", context = \"512\"")
        + "rollout = { max_new_tokens = \"9\" }\nrewards = [{ rule = \"success\", weight = \"1\" }]\n";
    let Err(RunFileError::Refused(found)) = from_toml(&text) else { panic!("four mistakes are taken") };
    let mut fields: Vec<&str> = found.iter().map(|refusal| refusal.field.as_str()).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["model.context", "model.precision", "rewards[0].weight", "rollout.max_new_tokens"]);
    assert!(found.iter().all(|refusal| refusal.remedy.contains("give") || refusal.remedy.contains("choose")));
}

#[test]
fn a_field_that_is_given_twice_is_refused() {
    for (field, text) in [
        (
            "steps",
            r#"{"name": "x", "steps": 1, "steps": 2, "model": {"kind": "scripted"}, "environment": {"name": "counter", "turns": 1}}"#,
        ),
        (
            "rewards[0].settings.words",
            r#"{"name": "x", "steps": 1, "model": {"kind": "scripted"}, "environment": {"name": "counter", "turns": 1},
                "rewards": [{"rule": "custom", "pool": "own", "settings": {"words": 1, "words": 2}}]}"#,
        ),
    ] {
        let error = from_json(text.as_bytes()).expect_err("one of the two would be ignored");
        let RunFileError::Shape { field: named, reason } = &error else { panic!("{error}") };
        assert_eq!(named, field);
        assert!(reason.contains("given twice"), "{error}");
    }
    let error = from_toml(&format!("{TEXT_RUN}steps = 3\n")).expect_err("TOML refuses it too").to_string();
    assert!(error.contains("duplicate key"), "{error}");
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_file() {
    let text = format!("\u{feff}{TEXT_RUN}rollout = {{ max_new_tokens = 9 }}\n");
    let spec = from_toml(&text).expect("editors on Windows write it");
    let json = format!("\u{feff}{}", serde_json::to_string(&spec).expect("a run file is JSON"));
    assert_eq!(from_json(json.as_bytes()), Ok(spec));
}

#[test]
fn samples_that_would_be_equal_are_refused() {
    let evaluate = |evaluate| read(&with("evaluate", evaluate));
    let error = evaluate(json!({ "samples": 4 })).expect_err("one is played").to_string();
    assert!(error.contains("evaluate.samples = 4") && error.contains("evaluate.temperature"), "{error}");
    assert!(evaluate(json!({ "samples": 4, "temperature": 1.0 })).is_ok());
    assert!(evaluate(json!({ "samples": 4, "temperatures": [0.0, 0.7] })).is_ok());
}
