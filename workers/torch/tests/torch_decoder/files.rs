//! The files of a version.

use millrace_policy::{LoadedVersion, Trainer};
use millrace_torch::TorchTrainer;
use millrace_torch::decoder::Config;
use safetensors::SafeTensors;

use crate::support::{initial, model};

/// `version` with the first number of `tensor` replaced.
pub(crate) fn spoilt(version: &LoadedVersion, tensor: &str, number: f32) -> LoadedVersion {
    let mut version = version.clone();
    let mut bytes = version.files["model.safetensors"].to_vec();
    let at = {
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        tensors.tensor(tensor).unwrap().data().as_ptr() as usize - bytes.as_ptr() as usize
    };
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    version.files.insert("model.safetensors".into(), bytes.into());
    version
}

#[test]
fn a_version_is_a_model_directory_of_transformers() {
    let version = initial(1);
    let tensors = SafeTensors::deserialize(&version.files["model.safetensors"]).unwrap();
    let mut names: Vec<&str> = tensors.names().into_iter().collect();
    names.sort_unstable();
    let layer = |n: usize| {
        [
            "input_layernorm",
            "mlp.down_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "post_attention_layernorm",
            "self_attn.k_proj",
            "self_attn.o_proj",
            "self_attn.q_proj",
            "self_attn.v_proj",
        ]
        .map(|part| format!("model.layers.{n}.{part}.weight"))
    };
    let mut expected: Vec<String> = [layer(0), layer(1)].concat();
    expected.extend(["lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"].map(String::from));
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert_eq!(tensors.tensor("model.layers.0.mlp.down_proj.weight").unwrap().shape(), [64, 256]);
    let config: serde_json::Value = serde_json::from_slice(&version.files["config.json"]).unwrap();
    assert_eq!(config["architectures"][0], "LlamaForCausalLM");
    assert_eq!(config["model_type"], "llama");
    assert_eq!(config["max_position_embeddings"], 256);
}

#[test]
fn initial_weights_follow_from_the_seed() {
    let make = |seed| TorchTrainer::new().initialise(&model(2, 256, 0.02), seed).unwrap().files;
    assert_eq!(make(1), make(1));
    assert_ne!(make(1)["model.safetensors"], make(2)["model.safetensors"]);
    // Written down, so that no release of a library changes every run unseen.
    let first = SafeTensors::deserialize(&make(1)["model.safetensors"]).map(|tensors| {
        let data = tensors.tensor("model.embed_tokens.weight").unwrap().data()[..4].to_vec();
        f32::from_le_bytes(data.try_into().unwrap())
    });
    let first = first.unwrap();
    assert!((first - -0.043_051_71).abs() < 1e-7, "{first:?}");
}

#[test]
fn what_is_not_computed_is_refused() {
    let config = String::from_utf8(initial(1).files["config.json"].to_vec()).unwrap();
    for (from, to, why) in [
        ("\"silu\"", "\"gelu\"", "hidden_act=gelu"),
        ("\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"su\"}", "rope_type=su"),
        ("\"num_key_value_heads\": 4", "\"num_key_value_heads\": 3", "num_key_value_heads=3"),
        ("\"vocab_size\": 32", "\"vocab_size\": 0", "sizes"),
        ("\"rms_norm_eps\"", "\"eps\"", "rms_norm_eps"),
    ] {
        assert!(config.contains(from), "{from}");
        let error = Config::read(config.replace(from, to).as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
