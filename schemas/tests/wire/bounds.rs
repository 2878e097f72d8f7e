//! What a run file may ask for in all, and what is said of one that is very wrong.

use millrace_schemas::submit::{RunFileError, from_json, from_toml};

#[test]
fn products_that_nobody_could_hold_are_refused() {
    let text = |model: &str, rollout: &str| {
        format!(
            r#"{{"name": "x", "steps": 1, "model": {model}, "environment": {{"name": "counter", "turns": 1}}, "weights": {{"newest": 99}}, "rollout": {rollout}}}"#
        )
    };
    let scripted = r#"{"kind": "scripted"}"#;
    let decoder = r#"{"kind": "decoder", "vocabulary": 1048576, "layers": 1000, "width": 8192, "feed_forward": 1048576}"#;
    for (model, rollout, field) in [
        (
            scripted,
            r#"{"groups_per_step": 65536, "group_size": 1024, "alpha": 64}"#,
            "rollout.groups_per_step",
        ),
        (
            scripted,
            r#"{"groups_per_step": 1024, "group_size": 128, "max_new_tokens": 1048576}"#,
            "rollout.max_new_tokens",
        ),
        (decoder, "{}", "model.layers"),
    ] {
        let error = from_json(text(model, rollout).as_bytes()).unwrap_err();
        let RunFileError::Refused(refusals) = &error else { panic!("{error}") };
        assert!(refusals.iter().any(|refusal| refusal.field == field), "{field}: {error}");
    }
}

#[test]
fn a_list_is_not_taken_for_a_table() {
    let sound = serde_json::json!({ "name": "x", "steps": 1, "model": { "kind": "scripted" },
        "environment": { "name": "counter", "turns": 1 } });
    for (field, value) in [
        ("rollout", serde_json::json!([9, 3])),
        ("evaluate", serde_json::json!([9, 3, 0.5])),
        ("gang", serde_json::json!([1])),
        ("model", serde_json::json!(["scripted"])),
        ("rollout", serde_json::json!({ "stored_turns": [0.0, 64, 0.5] })),
        ("rewards", serde_json::json!([["env_return", 1.0]])),
    ] {
        let mut body = sound.clone();
        body[field] = value;
        let error = from_json(body.to_string().as_bytes()).unwrap_err();
        assert!(matches!(error, RunFileError::Shape { .. }), "{body}: {error}");
        assert!(error.to_string().contains(field), "{error}");
    }
    let text = "name = \"x\"\nsteps = 1\nmodel = { kind = \"scripted\" }\nenvironment = { name = \"counter\", turns = 1 }\n";
    from_toml(text).unwrap();
    let error = from_toml(&format!("{text}rollout = [9, 3]\n")).unwrap_err();
    assert!(error.to_string().contains("rollout") && error.to_string().contains("list"), "{error}");
}

#[test]
fn what_is_wrong_and_long_is_neither_compared_nor_returned_whole() {
    let long = "a".repeat(240 * 1024);
    let sound = |more: &str| {
        format!(
            r#"{{"name": "x", "steps": 1, "model": {{"kind": "scripted"}}, "environment": {{"name": "counter", "turns": 1}}{more}}}"#
        )
    };
    for more in [
        format!(r#", "{long}": 1"#),
        format!(r#", "seed": "{long}""#),
        format!(r#", "rollout": {{"order": "{long}"}}"#),
        format!(r#", "rewards": [{{"rule": "custom", "pool": "{long}"}}]"#),
        format!(r#", "rewards": [{{"rule": "env_return", "settings": {{"{long}": 1}}}}]"#),
    ] {
        let error = from_json(sound(&more).as_bytes()).unwrap_err().to_string();
        assert!(error.len() < 16_384, "{} bytes", error.len());
    }
    let toml = format!("name = \"x\"\n{long} = 1\n");
    assert!(from_toml(&toml).unwrap_err().to_string().len() < 16_384);
}
