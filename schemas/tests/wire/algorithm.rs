//! What a run file may ask of training: every algorithm by its name, and nothing that could not
//! work.

use millrace_schemas::submit::{Algorithm, RunFileError, from_toml};
use serde_json::{Value, json};

use crate::run_file::{read, with};

/// A run file whose algorithm has these settings alone.
fn of(settings: &Value) -> Value {
    with("algorithm", settings.clone())
}

/// Settings that can work, one for each name.
fn recipes() -> Vec<Value> {
    let mut recipes: Vec<Value> = [
        "grpo",
        "dr_grpo",
        "rloo",
        "max_rl",
        "reinforce_plus_plus",
        "lite_ppo",
        "reinforce",
        "raft",
        "chunk",
        "gi_gpo",
    ]
    .map(|advantage| json!({ "advantage": advantage }))
    .into();
    let losses = ["ppo_clip", "policy_gradient", "cispo", "topr", "segment", "kimi", "dppo_tv"];
    recipes.extend(losses.map(|loss| json!({ "loss": loss })));
    recipes.extend([
        json!({ "loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "seq_mean_token_mean" }),
        json!({ "loss": "ppo_clip", "clip_high": 0.28, "parameters": { "dual_clip": 3.0 } }),
        json!({ "old": "proximal", "correction": { "weight": "token", "cap": 0.0 } }),
        json!({ "old": "proximal", "correction": { "weight": "sequence", "cap": 3.0, "veto": 1e-4 } }),
        json!({ "old": "proximal", "correction": { "reject": "sequence" } }),
        json!({ "old": "proximal", "correction": { "reject": "geometric", "low": 0.98, "high": 1.02 } }),
        json!({ "old": "proximal", "loss": "segment", "correction": { "reject": "turn" } }),
        json!({ "old": "proximal", "loss": "policy_gradient", "epochs": 1, "correction": { "weight": "token" } }),
        json!({ "old": "current", "loss": "policy_gradient", "epochs": 1 }),
        json!({ "loss": "topr", "ratio": "turn", "old": "proximal", "advantage": "chunk", "imitation": 0.1,
            "reward_norm": { "mean": "group", "std": "group" },
            "correction": { "weight": "turn", "reject": "turn", "low": 0.0, "high": 1.2 } }),
        json!({ "old": "proximal", "correction": { "weight": "token", "cap": 0.0, "reject": "token" } }),
        json!({ "loss": "kimi", "ratio": "token" }),
        json!({ "mask_truncated": true }),
        json!({ "loss": "cispo", "ratio": "rollout" }),
        json!({ "loss": "kimi", "advantage": "gi_gpo", "parameters": { "tau": 0.3, "discount": 0.9, "turn_weight": 2.0 } }),
        json!({ "loss": "dppo_tv", "parameters": { "delta": 0.1, "pull": 0.1 } }),
        json!({ "weight_decay": 0.1, "decay_biases": true }),
        json!({ "advantage": "reinforce", "reward_norm": { "mean": "running", "std": "running" },
            "whiten_advantages": true, "advantage_clip": 2.0 }),
        json!({ "advantage": "gae", "reward_norm": { "mean": "batch" } }),
        json!({ "kl": { "coefficient": 0.1, "estimator": "k1", "place": "reward" } }),
        json!({ "advantage": "gae", "critic": { "lambda": 0.9, "clip": 0.0 }, "minibatches": 2 }),
        json!({ "advantage": "dr_grpo", "aggregation": "seq_mean_token_sum_norm", "parameters": { "response_tokens": 10 } }),
        json!({ "shaping": { "clip": 2.0, "overlong_tokens": 9, "overlong_buffer": 4, "overlong_penalty": 1.0 } }),
        json!({ "kl": { "coefficient": 0.1, "place": "reward", "adapt": { "target": 0.05 } } }),
    ]);
    recipes
}

#[test]
fn every_algorithm_is_chosen_by_its_name() {
    for settings in recipes() {
        let spec = read(&of(&settings)).unwrap_or_else(|error| panic!("{settings}: {error}"));
        let again = serde_json::to_value(&spec).expect("a run file can be written as JSON");
        assert_eq!(read(&again).expect("it is valid"), spec, "{settings}");
        let text = toml::to_string(&spec).expect("a run file can be written as TOML");
        assert_eq!(from_toml(&text).expect("it is valid").hash(), spec.hash(), "{settings}");
    }
}

#[test]
fn what_is_not_asked_for_is_not_written() {
    let written = serde_json::to_value(Algorithm::default()).expect("it is JSON");
    for later in [
        "correction",
        "critic",
        "aggregation",
        "shaping",
        "parameters",
        "kl",
        "schedule",
        "recompute",
        "offload_activations",
        "offload_optimizer",
        "shard_gradients",
        "shard_weights",
        "ratio",
        "reward_norm",
        "whiten_advantages",
        "advantage_clip",
        "imitation",
        "mask_truncated",
    ] {
        assert!(written.get(later).is_none(), "{later} changes the hash of run files of before");
    }
    assert!(written.get("advantage").is_some());
}

/// Settings of the algorithm, the field that is named, and a word of the remedy.
#[expect(clippy::too_many_lines, reason = "a table")]
fn nonsense() -> Vec<(Value, &'static str, &'static str)> {
    let correction = |old: &str, correction: Value| json!({ "old": old, "correction": correction });
    let parameters = |parameters: Value| json!({ "parameters": parameters });
    let shaping = |shaping: Value| json!({ "shaping": shaping });
    vec![
        (json!({ "loss": "ppo_clip", "old": "current" }), "old = current", "behaviour"),
        (json!({ "loss": "cispo", "old": "current" }), "old = current", "policy_gradient"),
        (json!({ "loss": "topr", "old": "current", "epochs": 1 }), "old = current", "always 1"),
        (json!({ "loss": "gspo", "old": "proximal", "epochs": 1 }), "old = proximal", "minibatches"),
        (correction("behaviour", json!({ "weight": "token" })), "old = behaviour", "proximal"),
        (correction("current", json!({ "reject": "sequence" })), "old = current", "proximal"),
        (
            json!({ "loss": "policy_gradient", "old": "current", "epochs": 1, "correction": { "weight": "token" } }),
            "old = current",
            "proximal",
        ),
        (correction("proximal", json!({ "weight": "token", "cap": -1.0 })), "correction.cap", "from 0"),
        (correction("proximal", json!({ "veto": 1e-4, "cap": 3.0 })), "correction.cap", "weight"),
        (correction("proximal", json!({ "veto": 1.0 })), "correction.veto", "from 0"),
        (correction("proximal", json!({ "weight": "token", "low": 0.4 })), "correction.reject", "geometric"),
        (correction("proximal", json!({ "reject": "turn", "low": 1.5 })), "correction.low", "from 0 to 1"),
        (correction("proximal", json!({ "reject": "turn", "high": 0.5 })), "correction.high", "from 1"),
        (
            correction("proximal", json!({ "reject": "sequence", "low": 1.0, "high": 1.0 })),
            "correction.high",
            "everything",
        ),
        (json!({ "loss": "gspo" }), "clip_high = 0.2", "0.0004"),
        (json!({ "loss": "gspo", "clip_high": 4e-4 }), "clip_low = 0.2", "0.0003"),
        (json!({ "loss": "cispo", "clip_high": 0.0 }), "clip_high = 0", "above 0"),
        (json!({ "loss": "cispo", "parameters": { "dual_clip": 3.0 } }), "dual_clip = 3", "ppo_clip"),
        (
            parameters(json!({ "dual_clip": 1.1 })),
            "dual_clip = 1.1",
            "more than 1 + algorithm.clip_high = 1.2",
        ),
        (parameters(json!({ "tau": -1.0 })), "parameters.tau", "from 0"),
        (parameters(json!({ "delta": 0.0 })), "parameters.delta", "to 1"),
        (parameters(json!({ "pull": -1.0 })), "parameters.pull", "from 0"),
        (parameters(json!({ "discount": 1.1 })), "parameters.discount", "0 to 1"),
        (parameters(json!({ "turn_weight": -1.0 })), "parameters.turn_weight", "from 0"),
        (parameters(json!({ "response_tokens": 9 })), "response_tokens = 9", "seq_mean_token_sum_norm"),
        (
            json!({ "aggregation": "seq_mean_token_sum_norm" }),
            "response_tokens = 0",
            "rollout.max_new_tokens",
        ),
        (json!({ "critic": { "lambda": 0.9 } }), "algorithm.critic", "gae"),
        (json!({ "advantage": "gae", "critic": { "lambda": 1.1 } }), "critic.lambda = 1.1", "0 to 1"),
        (json!({ "advantage": "gae", "critic": { "coefficient": 0.0 } }), "critic.coefficient = 0", "learn"),
        (shaping(json!({ "clip": -1.0 })), "shaping.clip", "from 0"),
        (shaping(json!({ "overlong_tokens": 5 })), "overlong_penalty = 0", "above 0"),
        (shaping(json!({ "overlong_penalty": 1.0 })), "overlong_penalty = 1", "overlong_tokens"),
        (
            shaping(json!({ "overlong_tokens": 99, "overlong_penalty": 1.0 })),
            "overlong_tokens = 99",
            "at most 10 tokens",
        ),
        (
            shaping(json!({ "overlong_tokens": 5, "overlong_buffer": 6, "overlong_penalty": 1.0 })),
            "overlong_buffer = 6",
            "at most that",
        ),
        (
            json!({ "loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4 }),
            "aggregation = token_mean",
            "seq_mean_token_mean",
        ),
        (
            json!({ "loss": "gspo", "aggregation": "seq_mean_token_sum_norm", "parameters": { "response_tokens": 9 } }),
            "aggregation = seq_mean_token_sum_norm",
            "seq_mean_token_mean",
        ),
        (json!({ "loss": "ppo_clip", "ratio": "turn" }), "algorithm.ratio = turn", "\"segment\""),
        (json!({ "loss": "gspo", "ratio": "token" }), "algorithm.ratio = token", "\"rollout\""),
        (json!({ "loss": "policy_gradient", "ratio": "rollout" }), "algorithm.ratio = rollout", "\"token\""),
        (json!({ "reward_norm": { "std": "batch" } }), "algorithm.reward_norm", "reinforce"),
        (
            json!({ "advantage": "gae", "whiten_advantages": true }),
            "whiten_advantages = true",
            "leave it out",
        ),
        (json!({ "advantage_clip": -1.0 }), "algorithm.advantage_clip = -1", "from 0"),
        (json!({ "imitation": -1.0 }), "algorithm.imitation = -1", "from 0"),
        (correction("proximal", json!({ "reject": "token", "high": 0.5 })), "correction.high", "from 1"),
        (parameters(json!({ "tau": 0.2 })), "parameters.tau = 0.2", "kimi"),
        (parameters(json!({ "delta": 0.1 })), "parameters.delta = 0.1", "dppo_tv"),
        (parameters(json!({ "pull": 0.1 })), "parameters.pull = 0.1", "dppo_tv"),
        (parameters(json!({ "discount": 0.9 })), "parameters.discount = 0.9", "chunk"),
        (json!({ "advantage": "chunk", "parameters": { "turn_weight": 2.0 } }), "turn_weight = 2", "gi_gpo"),
        (json!({ "loss": "policy_gradient", "clip_low": 0.1 }), "algorithm.clip_low = 0.1", "ppo_clip"),
        (json!({ "loss": "topr", "clip_high": 0.1 }), "algorithm.clip_high = 0.1", "ppo_clip"),
        (json!({ "decay_biases": true }), "algorithm.decay_biases = true", "weight_decay"),
        (json!({ "decay_norms": true }), "algorithm.decay_norms = true", "weight_decay"),
        (json!({ "decay_embeddings": false }), "algorithm.decay_embeddings = false", "weight_decay"),
        (json!({ "shard_gradients": true }), "algorithm.shard_gradients = true", "gang.ranks"),
        (
            json!({ "kl": { "coefficient": 0.1, "estimator": "k1" } }),
            "kl.estimator = k1",
            "place = \"reward\"",
        ),
        (json!({ "kl": { "coefficient": 0.1, "adapt": { "target": 0.0 } } }), "kl.adapt.target", "number"),
        (
            json!({ "kl": { "coefficient": 0.1, "adapt": { "target": 0.1, "horizon": 0 } } }),
            "kl.adapt.horizon",
            "from 1",
        ),
    ]
}

#[test]
fn nonsense_is_refused_with_its_remedy() {
    for (settings, field, remedy) in nonsense() {
        let error = read(&of(&settings)).expect_err(field).to_string();
        let named = error.lines().any(|line| line.contains(field) && line.contains(remedy));
        assert!(named, "{settings}: no refusal of {field:?} says {remedy:?}: {error}");
    }
}

#[test]
fn a_run_without_signal_is_refused() {
    let group_of_one = json!({ "group_size": 1 });
    let rewards = |rule: &str, weight: f64| json!([{ "rule": rule, "weight": weight }]);
    let cases = [
        ("grpo", json!({ "rollout": group_of_one }), "rollout.group_size = 1", "reinforce_plus_plus"),
        ("gi_gpo", json!({ "rollout": group_of_one }), "rollout.group_size = 1", "2 or more"),
        ("lite_ppo", json!({ "rollout": group_of_one }), "rollout.group_size = 1", "2 or more"),
        (
            "reinforce_plus_plus",
            json!({ "rollout": { "group_size": 1, "groups_per_step": 1 } }),
            "rollout.groups_per_step = 1",
            "batch of one",
        ),
        (
            "chunk",
            json!({ "rollout": { "group_size": 1, "filter": "equal_rewards" } }),
            "rollout.filter = equal_rewards",
            "none",
        ),
        ("chunk", json!({ "rewards": rewards("success", 1.0) }), "rewards = env_return x 0", "weight 1"),
        ("gi_gpo", json!({ "rewards": rewards("env_return", 2.0) }), "rewards = env_return x 2", "weight 1"),
        ("max_rl", json!({ "rewards": rewards("success", -1.0) }), "rewards[0].weight = -1", "negative"),
        ("max_rl", json!({ "rewards": rewards("format", 1.0) }), "rewards[0].weight = 1", "negative"),
        ("grpo", json!({ "rewards": rewards("format", -0.1) }), "rewards[0].weight = -0.1", "no actions"),
        ("grpo", json!({ "rewards": rewards("format", 1.0) }), "rewards = format", "another reward"),
    ];
    for (advantage, change, field, remedy) in cases {
        let mut file = of(&json!({ "advantage": advantage }));
        for (key, value) in change.as_object().expect("a table") {
            file[key] = value.clone();
        }
        let error = read(&file).expect_err(field).to_string();
        let named = error.lines().any(|line| line.contains(field) && line.contains(remedy));
        assert!(named, "{advantage} {change}: no refusal of {field:?} says {remedy:?}: {error}");
    }
    for (over, groups, field) in
        [("group", 8, "rollout.group_size = 1"), ("batch", 1, "rollout.groups_per_step = 1")]
    {
        let mut file = of(&json!({ "advantage": "reinforce", "reward_norm": { "mean": over } }));
        file["rollout"] = json!({ "group_size": 1, "groups_per_step": groups });
        let error = read(&file).expect_err(field).to_string();
        assert!(error.contains(field) && error.contains("algorithm.reward_norm"), "{error}");
    }
    for advantage in ["reinforce_plus_plus", "chunk", "reinforce"] {
        let mut file = of(&json!({ "advantage": advantage }));
        file["rollout"] = group_of_one.clone();
        assert!(read(&file).is_ok(), "{advantage} compares no group");
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest_known_one() {
    for (path, value, meant) in [
        ("algorithm.advantage", json!("gpro"), "grpo"),
        ("algorithm.advantage", json!("reinforce++"), "reinforce_plus_plus"),
        ("algorithm.loss", json!("ppo-clip"), "ppo_clip"),
        ("algorithm.loss", json!("cipso"), "cispo"),
        ("algorithm.old", json!("behavior"), "behaviour"),
        ("algorithm.aggregation", json!("token-mean"), "token_mean"),
        ("algorithm.correction", json!({ "wieght": "token" }), "weight"),
        ("algorithm.learning_rat", json!(1e-3), "learning_rate"),
        ("rollout.group_sise", json!(4), "group_size"),
        ("stepps", json!(4), "steps"),
        ("environment", json!({ "name": "frozenlake" }), "frozen_lake"),
    ] {
        let file = with(path, value.clone());
        for error in [
            read(&file).expect_err(path),
            from_toml(&toml::to_string(&file).expect("it is TOML too")).expect_err(path),
        ] {
            let RunFileError::Shape { reason, .. } = &error else { panic!("{path} = {value}: {error}") };
            assert!(reason.contains(&format!("did you mean `{meant}`?")), "{path} = {value}: {error}");
        }
    }
    let error = read(&of(&json!({ "loss": "adversarial" }))).expect_err("there is none").to_string();
    assert!(error.contains("unknown variant") && !error.contains("did you mean"), "{error}");
}

#[test]
fn a_ratio_against_the_version_trained_on_needs_a_second_update() {
    let mut file = with("algorithm.old", json!("proximal"));
    assert!(read(&file).is_ok(), "two epochs are two updates");
    file["algorithm"]["epochs"] = json!(1);
    let error = read(&file).expect_err("clipping would do nothing").to_string();
    assert!(error.contains("algorithm.old = proximal") && error.contains("minibatches"), "{error}");
}

#[test]
fn what_the_learning_rate_and_the_reference_are_asked_must_work() {
    for (settings, field, remedy) in [
        (json!({ "schedule": "linear" }), "decay_steps", "more than algorithm.warmup_steps = 0"),
        (
            json!({ "schedule": "cosine", "warmup_steps": 9, "decay_steps": 9 }),
            "decay_steps",
            "more than algorithm.warmup_steps = 9",
        ),
        (json!({ "decay_steps": 9 }), "schedule", "linear"),
        (json!({ "floor": 0.1 }), "schedule", "linear"),
        (json!({ "schedule": "linear", "decay_steps": 9, "floor": 1.1 }), "floor", "from 0 to 1"),
        (json!({ "offload_activations": true }), "offload_activations", "algorithm.recompute"),
        (json!({ "shard_weights": true, "recompute": true }), "shard_weights", "algorithm.shard_gradients"),
        (json!({ "shard_weights": true, "shard_gradients": true }), "shard_weights", "algorithm.recompute"),
        (json!({ "kl": { "coefficient": 0.0 } }), "kl.coefficient", "leave out algorithm.kl"),
        (json!({ "kl": { "coefficient": -1.0 } }), "kl.coefficient", "from 0"),
    ] {
        let file = with("algorithm", settings.clone());
        let error = read(&file).expect_err(field).to_string();
        assert!(
            error.contains(&format!("algorithm.{field}")) && error.contains(remedy),
            "{settings}: {error}"
        );
    }
    let settings = json!({ "schedule": "cosine", "warmup_steps": 2, "decay_steps": 9, "floor": 0.1, "recompute": true,
        "offload_activations": true, "offload_optimizer": true, "shard_gradients": true, "shard_weights": true,
        "kl": { "coefficient": 0.01, "estimator": "k2" }, "weight_decay": 0.1, "decay_embeddings": false,
        "decay_norms": true });
    let mut file = with("algorithm", settings);
    file["gang"] = json!({ "ranks": 2 });
    let spec = read(&file).expect("it can work");
    let again = serde_json::to_value(&spec).expect("a run file can be written as JSON");
    assert_eq!(read(&again).expect("it is valid"), spec);
}
