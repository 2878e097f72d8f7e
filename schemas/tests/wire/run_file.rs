//! A run file is checked before anything starts, and what is wrong with it is said so that it can
//! be mended: the field, its value and what to write instead.

use millrace_schemas::submit::{ModelSpec, Precision, RunFileError, RunSpec, from_json, from_toml};
use millrace_schemas::{api::FieldError, limits};
use serde_json::{Value, json};

use crate::samples::run_spec;

/// A run file with all its defaults written out.
fn whole() -> Value {
    serde_json::to_value(run_spec()).expect("a run file can be written as JSON")
}

/// `whole()` with the value at `path` (`a.b`) set.
pub(crate) fn with(path: &str, value: Value) -> Value {
    let mut file = whole();
    let (table, field) = path.rsplit_once('.').unwrap_or(("", path));
    let pointer = if table.is_empty() { String::new() } else { format!("/{}", table.replace('.', "/")) };
    file.pointer_mut(&pointer).unwrap_or_else(|| panic!("{path} is no field of a run file"))[field] = value;
    file
}

pub(crate) fn read(file: &Value) -> Result<RunSpec, RunFileError> {
    from_json(&serde_json::to_vec(file).expect("a value can be written"))
}

/// Path of the field that is set, the value, the field that is named, and a word of the remedy.
type WrongValue = (&'static str, Value, &'static str, &'static str);

/// What is computed of a value that is refused must not overflow.
fn huge_values() -> Vec<WrongValue> {
    const MOST: u32 = u32::MAX;
    let game = |name, field: &str, number: u32| json!({ "name": name, field: number });
    let sum = json!({ "name": "arithmetic", "max_turns": MOST, "prompt_tokens": MOST });
    vec![
        ("environment", game("frozen_lake", "size", 70_000), "environment.size", "2 to 8"),
        ("environment", game("frozen_lake", "size", MOST), "environment.size", "2 to 8"),
        ("environment", game("sokoban", "size", MOST), "environment.size", "5 to 10"),
        ("environment", game("sokoban", "walls", MOST), "environment.walls", "0 to 4"),
        ("environment", sum, "environment.max_turns", "from 1"),
        ("model.heads", json!(1_u32 << 31), "model.heads", "from 1"),
        ("model.heads", json!(MOST), "model.heads", "from 1"),
    ]
}

fn wrong_values() -> Vec<WrongValue> {
    let sokoban = |size: u32| json!({ "name": "sokoban", "size": size, "scramble": 6, "max_turns": 12 });
    let with_least = |turns| {
        let mut level = sokoban(6);
        level["least_turns"] = json!(turns);
        level
    };
    let with = |name, field: &str, number: u32| json!({ "name": name, field: number });
    let lake = |size: u32, frozen, max_turns| json!({ "name": "frozen_lake", "size": size, "frozen": frozen, "max_turns": max_turns });
    vec![
        ("name", json!("all"), "name", "another"),
        ("steps", json!(0), "steps", "from 1"),
        ("steps", json!(limits::MAX_STEPS + 1), "steps", "from 1"),
        ("model.vocabulary", json!(67), "model.vocabulary", "68"),
        ("model.layers", json!(0), "model.layers", "from 1"),
        ("model.width", json!(65), "model.width", "multiple of 2 x model.heads = 8"),
        ("model.width", json!(0), "model.width", "from 2"),
        ("model.heads", json!(0), "model.heads", "from 1"),
        ("model.feed_forward", json!(0), "model.feed_forward", "from 1"),
        ("model.context", json!(75), "model.context", "76"),
        ("model.init_std", json!(0.0), "model.init_std", "number"),
        ("environment", lake(1, 0.8, 10), "environment.size", "2 to 8"),
        ("environment", lake(9, 0.8, 10), "environment.size", "2 to 8"),
        ("environment", lake(4, 1.5, 10), "environment.frozen", "0 to 1"),
        ("environment", lake(4, 0.8, 0), "environment.max_turns", "from 1"),
        ("environment", sokoban(4), "environment.size", "5 to 10"),
        ("environment", with_least(7), "environment.least_turns", "0 to 6"),
        ("environment", with("sokoban", "walls", 5), "environment.walls", "0 to 4"),
        ("environment", with("frozen_lake", "detours", 1), "environment.detours", "size = 5"),
        ("environment", json!({ "name": "frozen_lake", "view": "centred_rows" }), "model.vocabulary", "516"),
        ("environment", json!({ "name": "counter", "turns": 0 }), "environment.turns", "from 1"),
        ("rewards", json!([]), "rewards", "1 to"),
        ("rewards", json!([{ "rule": "success", "weight": 0.0 }]), "rewards", "weight"),
        ("rewards", json!([{ "rule": "success", "weight": 1e9 }]), "rewards[0].weight", "number"),
        ("rollout.groups_per_step", json!(0), "rollout.groups_per_step", "from 1"),
        ("rollout.group_size", json!(0), "rollout.group_size", "from 1"),
        ("rollout.group_size", json!(1), "rollout.group_size", "2 or more"),
        ("rollout.alpha", json!(-0.5), "rollout.alpha", "from 0"),
        ("rollout.alpha", json!(65), "rollout.alpha", "from 0 to 64"),
        ("rollout.max_replacements", json!(101), "rollout.max_replacements", "100"),
        ("rollout.max_new_tokens", json!(0), "rollout.max_new_tokens", "from 1"),
        ("rollout.temperature", json!(0.0), "rollout.temperature", "0.01"),
        ("algorithm.clip_low", json!(1.5), "algorithm.clip_low", "0 to 1"),
        ("algorithm.clip_high", json!(-1.0), "algorithm.clip_high", "from 0"),
        ("algorithm.epochs", json!(0), "algorithm.epochs", "from 1"),
        ("algorithm.minibatches", json!(0), "algorithm.minibatches", "from 1"),
        ("algorithm.learning_rate", json!(0.0), "algorithm.learning_rate", "above 0"),
        ("algorithm.learning_rate", json!(-1.0), "algorithm.learning_rate", "number"),
        ("algorithm.adam_beta1", json!(1.0), "algorithm.adam_beta1", "number"),
        ("algorithm.adam_beta2", json!(1.0), "algorithm.adam_beta2", "number"),
        ("algorithm.weight_decay", json!(-0.1), "algorithm.weight_decay", "number"),
        ("algorithm.max_grad_norm", json!(0.0), "algorithm.max_grad_norm", "number"),
        ("algorithm.entropy", json!(-0.1), "algorithm.entropy", "number"),
        ("algorithm.tokens_per_microbatch", json!(0), "algorithm.tokens_per_microbatch", "from 1"),
        ("rollout.top_p", json!(0.0), "rollout.top_p", "to 1"),
        ("rollout.top_p", json!(1.1), "rollout.top_p", "to 1"),
        ("rollout.top_k", json!(limits::MAX_MODEL_DIMENSION + 1), "rollout.top_k", "from 0"),
        ("rollout.min_p", json!(-0.1), "rollout.min_p", "from 0 to 1"),
        ("rollout.stop_strings", json!(["x"]), "rollout.stop_strings", "tokenizer"),
        ("rollout.stop_strings", json!([""]), "rollout.stop_strings[0]", "1 to 256 bytes"),
        ("rollout.stop_strings", json!(vec!["x"; 17]), "rollout.stop_strings", "at most 16"),
        ("evaluate.prompts", json!(limits::MAX_EVALUATE_PROMPTS + 1), "evaluate.prompts", "65536"),
        ("evaluate.temperature", json!(-1.0), "evaluate.temperature", "from 0"),
        ("evaluate.temperatures", json!([0.0, -1.0]), "evaluate.temperatures[1]", "from 0"),
        ("evaluate.temperatures", json!([0, 1, 2, 3, 4]), "evaluate.temperatures", "4 at most"),
        ("evaluate.samples", json!(0), "evaluate.samples", "from 1"),
        ("evaluate.every", json!(u64::MAX), "evaluate.every", "from 0 to 10000000"),
        ("weights.newest", json!(1), "weights.newest", "at least 2"),
        ("weights.newest", json!(u64::MAX), "weights.newest", "at most 10000000"),
        ("weights.every", json!(u64::MAX), "weights.every", "from 0 to 10000000"),
    ]
}

#[test]
fn config_is_checked_first() {
    for (path, value, field, remedy) in wrong_values().into_iter().chain(huge_values()) {
        let refusals = match read(&with(path, value.clone())) {
            Err(RunFileError::Refused(refusals)) => refusals,
            other => panic!("{path} = {value} is not refused by its value: {other:?}"),
        };
        let refusal = refusals
            .iter()
            .find(|refusal| refusal.field == field && refusal.remedy.contains(remedy))
            .unwrap_or_else(|| {
                panic!("{path} = {value}: no refusal of {field} says {remedy:?}: {refusals:?}")
            });
        assert!(!refusal.value.is_empty(), "{refusal:?} does not show the value");
        // The API gives the same error.
        let error = FieldError::from(refusal.clone());
        assert_eq!(
            (error.field.as_str(), error.value, error.remedy),
            (field, refusal.value.clone(), refusal.remedy.clone())
        );
    }
}

#[test]
fn a_model_of_the_hub_is_named_by_its_directory() {
    let with = |model: Value| {
        let mut file = with("model", model);
        file["environment"] = json!({ "name": "arithmetic", "prompt_tokens": 80 });
        file["algorithm"]["learning_rate"] = json!(1e-5);
        file
    };
    let spec = read(&with(json!({ "kind": "hugging_face", "path": "models/smollm2" }))).expect("it is whole");
    let model =
        ModelSpec::HuggingFace { path: "models/smollm2".into(), context: 1024, precision: Precision::F32 };
    assert_eq!(spec.model, model);
    let half = json!({ "kind": "hugging_face", "path": "m", "context": 200, "precision": "bf16" });
    let model = ModelSpec::HuggingFace { path: "m".into(), context: 200, precision: Precision::Bf16 };
    assert_eq!(read(&with(half)).expect("it is whole").model, model);
    for (field, value, remedy) in [
        ("path", json!(""), "directory"),
        ("path", json!("x".repeat(5000)), "directory"),
        ("context", json!(80), "81"),
        ("context", json!(1), "from 2"),
    ] {
        let mut model = json!({ "kind": "hugging_face", "path": "m" });
        model[field] = value;
        let error = read(&with(model)).expect_err("it cannot work").to_string();
        assert!(error.contains(&format!("model.{field} = ")) && error.contains(remedy), "{error}");
    }
    let mut file = with(json!({ "kind": "hugging_face", "path": "m" }));
    file["algorithm"]["learning_rate"] = json!(2e-3);
    let error = read(&file).expect_err("it would forget everything").to_string();
    assert!(error.contains("algorithm.learning_rate = 0.002") && error.contains("1e-5"), "{error}");
    let half = json!({ "kind": "hugging_face", "path": "m", "precision": "f16" });
    let error = read(&with(half)).expect_err("it is not computed").to_string();
    assert!(error.contains("bf16"), "{error}");
}

#[test]
fn text_needs_a_model_that_speaks_and_a_game_of_tokens_one_that_does_not() {
    for (model, environment, remedy) in [
        (json!({ "kind": "scripted" }), json!({ "name": "arithmetic" }), "hugging_face"),
        (
            json!({ "kind": "hugging_face", "path": "m" }),
            json!({ "name": "counter", "turns": 2 }),
            "arithmetic",
        ),
    ] {
        let mut file = with("model", model);
        file["environment"] = environment;
        file["algorithm"]["learning_rate"] = json!(1e-5);
        let error = read(&file).expect_err("they do not speak one language").to_string();
        assert!(error.contains("environment.name = ") && error.contains(remedy), "{error}");
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let mut file = with("steps", json!(0));
    file["rollout"]["alpha"] = json!(-1);
    let Err(RunFileError::Refused(refusals)) = read(&file) else { panic!("two wrong fields are taken") };
    let fields: Vec<&str> = refusals.iter().map(|refusal| refusal.field.as_str()).collect();
    assert_eq!(fields, ["steps", "rollout.alpha"]);
}

#[test]
fn five_mistakes_of_every_kind_get_five_answers() {
    let mut file = with("steps", json!("many"));
    file["rollout"]["gropu_size"] = json!(4);
    file["rollout"]["alpha"] = json!(-1);
    file["evaluate"]["prompts"] = json!([8]);
    file["algorithm"]["loss"] = json!("reinforce");
    let Err(RunFileError::Refused(mut found)) = read(&file) else { panic!("five mistakes are taken") };
    found.sort_by(|a, b| a.field.cmp(&b.field));
    let told: Vec<(&str, &str)> = found.iter().map(|r| (r.field.as_str(), r.value.as_str())).collect();
    assert_eq!(
        told,
        [
            ("algorithm.loss", "\"reinforce\""),
            ("evaluate.prompts", "[8]"),
            ("rollout.alpha", "-1"),
            ("rollout.gropu_size", "4"),
            ("steps", "\"many\""),
        ]
    );
    assert!(found[3].remedy.contains("did you mean `group_size`?"), "{}", found[3].remedy);
    assert!(found.iter().all(|refusal| !refusal.remedy.is_empty()));
}

#[test]
fn a_file_of_nothing_but_mistakes_is_answered() {
    let mut file = whole();
    for number in 0..1_000 {
        file["rollout"][format!("wrong_{number}")] = json!(number);
    }
    let Err(RunFileError::Refused(refusals)) = read(&file) else { panic!("it is taken") };
    assert_eq!(refusals.len(), 32);
}

#[test]
fn versions_that_rollouts_may_lag_behind_are_kept() {
    let mut file = with("rollout.alpha", json!(5.5));
    let error = read(&file).expect_err("four versions do not cover a lag of six").to_string();
    assert!(error.contains("weights.newest = 4") && error.contains("at least 7"), "{error}");
    file["weights"]["newest"] = json!(7);
    assert!(read(&file).is_ok());
}

#[test]
fn numbers_that_are_none_are_refused() {
    for bad in ["nan", "inf", "-inf"] {
        for (section, key) in [
            ("rollout", "alpha"),
            ("algorithm", "learning_rate"),
            ("algorithm", "entropy"),
            ("evaluate", "temperature"),
        ] {
            let text = format!(
                "name = \"x\"\nsteps = 1\nmodel = {{ kind = \"scripted\" }}\nenvironment = {{ name = \"counter\", turns = 1 }}\n[{section}]\n{key} = {bad}\n"
            );
            let error = from_toml(&text).expect_err("not a number").to_string();
            assert!(error.contains(&format!("{section}.{key}")), "{error}");
        }
    }
}

#[test]
fn an_unknown_field_is_refused_with_its_path() {
    for (at, path) in [
        ("", "stepz"),
        ("/rollout", "alfa"),
        ("/algorithm", "lr"),
        ("/evaluate", "n"),
        ("/weights", "keep"),
        ("/rewards/0", "w"),
        ("/model", "depth"),
        ("/environment", "glassy"),
    ] {
        let mut file = whole();
        file.pointer_mut(at).expect("a table")[path] = json!(1);
        let error = read(&file).expect_err(path);
        let RunFileError::Shape { field, reason } = &error else { panic!("{path}: {error}") };
        // An enum with settings is read as a whole first, so its path ends at the table.
        let place = at.trim_start_matches('/').replace("/0", "[0]");
        assert!(field.starts_with(&place), "{error} does not say where {path} is");
        assert!(reason.contains(path), "{error} does not say that {path} is unknown");
    }
}

#[test]
fn a_value_of_another_type_is_refused_with_its_path() {
    for (path, value) in [
        ("steps", json!("many")),
        ("rollout.group_size", json!(-1)),
        ("algorithm.loss", json!("reinforce")),
        ("name", json!("A run")),
    ] {
        let error = read(&with(path, value)).expect_err(path);
        let RunFileError::Shape { field, .. } = &error else { panic!("{path}: {error}") };
        assert_eq!(field, path, "{error}");
    }
}

#[test]
fn a_missing_field_is_named() {
    let without = |field: &str| {
        let mut file = whole();
        file.as_object_mut().expect("a table").remove(field);
        read(&file).expect_err(field).to_string()
    };
    for field in ["name", "steps", "model"] {
        let error = without(field);
        assert!(error.contains(field) && error.contains("missing"), "{error}");
    }
    let error = without("environment");
    assert!(error.contains("environment = none: name one environment, or several [[domains]]"), "{error}");
}

#[test]
fn toml_and_json_say_the_same() {
    let text = toml::to_string(&run_spec()).expect("a run file can be written as TOML");
    assert_eq!(from_toml(&text).expect("it is valid"), read(&whole()).expect("it is valid"));
    assert_eq!(run_spec().hash(), from_toml(&text).expect("it is valid").hash());
}

#[test]
fn what_follows_the_document_is_refused() {
    let mut bytes = serde_json::to_vec(&whole()).expect("a value can be written");
    bytes.extend(b"{}");
    assert!(from_json(&bytes).is_err());
    assert!(from_json(b"").is_err());
    assert!(
        from_json(&vec![b' '; limits::MAX_REQUEST_BYTES + 1])
            .is_err_and(|e| matches!(e, RunFileError::TooLong(_)))
    );
}

#[test]
fn a_deeply_nested_file_is_refused_and_does_not_overflow_the_stack() {
    assert!(from_json(&b"[".repeat(limits::MAX_REQUEST_BYTES)).is_err());
    assert!(from_toml(&format!("name = {}", "[".repeat(200_000))).is_err());
}

#[test]
fn the_window_and_the_bound_follow_from_alpha() {
    for (alpha, window, bound) in [(0.0, 32, 0), (0.5, 48, 1), (1.0, 64, 1), (1.99, 95, 2), (3.0, 128, 3)] {
        let mut spec = run_spec();
        spec.rollout.alpha = alpha;
        assert_eq!((spec.window_groups(), spec.max_staleness()), (window, bound), "alpha {alpha}");
    }
}
