use std::collections::HashMap;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::text_codec::{GENERATION_FILE, TEMPLATE_FILE, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE};

const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";
const MATRIX: &str = "model.layers.0.mlp.up_proj.weight";

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8, "hidden_size": 4,
        "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "eos_token_id": 7, "torch_dtype": "float16",
        "quantization_config": { "bits": 4 }, "kept": [1, 2],
    })
}

/// Eight tokens, the last of which ends a turn.
fn tokenizer(end: &str) -> Value {
    let added = json!({ "id": 7, "content": end, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true });
    let words = ["a", "b", "?", "d", "e", "f", "g", end];
    let vocab: BTreeMap<&str, usize> = words.into_iter().zip(0..).collect();
    let model = json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "?" });
    json!({ "version": "1.0", "added_tokens": [added], "model": model })
}

/// Name, shape and numbers.
type Tensor = (String, Vec<usize>, Vec<f32>);

/// Tensors that such a model has; each number is other than the rest.
fn weights(config: &Value) -> Vec<Tensor> {
    let config = Config::read(config.to_string().as_bytes()).unwrap();
    let tensor = |part: &crate::decoder::Part| {
        let numbers = (0..part.len()).map(|at| (part.offset + at) as f32 / 8.0).collect();
        (part.name.clone(), part.shape.iter().map(|&n| n as usize).collect(), numbers)
    };
    Layout::of(&config).parts.iter().map(tensor).collect()
}

/// A whole directory in memory, to be spoilt and written.
struct Directory {
    config: Value,
    files: BTreeMap<&'static str, Vec<u8>>,
    shards: BTreeMap<&'static str, Vec<Tensor>>,
    index: BTreeMap<String, &'static str>,
}

impl Directory {
    fn new() -> Self {
        Self::of(config())
    }

    fn of(config: Value) -> Self {
        let mut first = weights(&config);
        let second = first.split_off(first.len() / 2);
        let mut index = BTreeMap::new();
        for (file, tensors) in [(FIRST, &first), (SECOND, &second)] {
            index.extend(tensors.iter().map(|(name, ..)| (name.clone(), file)));
        }
        let files = [
            (TOKENIZER_FILE, tokenizer("<end>").to_string()),
            (TOKENIZER_CONFIG_FILE, json!({ "eos_token": "<end>" }).to_string()),
            (TEMPLATE_FILE, "{% for m in messages %}{{ m.content }}{% endfor %}".to_owned()),
            (GENERATION_FILE, json!({ "eos_token_id": [7, 5] }).to_string()),
        ];
        let files = files.map(|(name, text)| (name, text.into_bytes())).into();
        Self { config, files, shards: [(FIRST, first), (SECOND, second)].into(), index }
    }

    /// The tensor called `name`.
    fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.shards.values_mut().flatten().find(|(held, ..)| held == name).unwrap()
    }

    fn write(&self) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, content: &[u8]| std::fs::write(dir.path().join(name), content).unwrap();
        put(CONFIG_FILE, self.config.to_string().as_bytes());
        put(INDEX_FILE, json!({ "metadata": {}, "weight_map": self.index }).to_string().as_bytes());
        for (name, content) in &self.files {
            put(name, content);
        }
        for (file, tensors) in &self.shards {
            put(file, &safetensors_of(tensors));
        }
        dir
    }

    /// The faults that are reported, numbers included; empty if there are none.
    fn refusal(&self) -> String {
        refusal(&self.write())
    }
}

fn safetensors_of(tensors: &[Tensor]) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(.., numbers)| numbers.iter().flat_map(|n| n.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize(views.collect::<HashMap<_, _>>(), None).unwrap()
}

fn refusal(dir: &TempDir) -> String {
    let opened = ModelDir::open(dir.path(), Some(32));
    opened.and_then(|dir| dir.check_numbers()).map_or_else(|broken| broken.to_string(), |()| String::new())
}

/// Asserts that each of these words is reported, and no fault of another file than `file`.
fn assert_told(refusal: &str, file: &str, words: &[&str]) {
    let faults: Vec<&str> = refusal.lines().skip(1).collect();
    assert!(!faults.is_empty(), "nothing is refused, but {words:?} is wrong");
    for fault in &faults {
        assert!(fault.starts_with(&format!("  {file}: ")), "{file}: {refusal}");
    }
    for word in words {
        assert!(refusal.contains(word), "{word}: {refusal}");
    }
}

#[test]
fn a_whole_directory_becomes_version_zero() {
    let dir = Directory::new().write();
    let read = |precision| {
        let model =
            ModelSpec::HuggingFace { path: dir.path().to_str().unwrap().into(), context: 32, precision };
        version_zero(&model).unwrap().unwrap()
    };
    let VersionZero { files, parameters } = read(Precision::F32);
    let expected = weights(&config());
    assert_eq!(parameters as usize, expected.iter().map(|(.., numbers)| numbers.len()).sum::<usize>());
    let tensors = SafeTensors::deserialize(&files[MODEL_FILE]).unwrap();
    assert_eq!(tensors.len(), expected.len());
    for (name, shape, numbers) in &expected {
        let view = tensors.tensor(name).unwrap();
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!((view.shape(), view.dtype(), view.data()), (&shape[..], Dtype::F32, &bytes[..]), "{name}");
    }
    let json: Value = serde_json::from_slice(&files[CONFIG_FILE]).unwrap();
    assert_eq!(
        (&json["dtype"], &json["kept"], &json[CONTEXT_KEY]),
        (&json!("float32"), &json!([1, 2]), &json!(32))
    );
    assert!(json.get("quantization_config").is_none() && json.get("torch_dtype").is_none());
    assert_eq!(Config::read(&files[CONFIG_FILE]).unwrap().context, 32);
    for name in [TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, TEMPLATE_FILE, GENERATION_FILE] {
        assert_eq!(files[name], std::fs::read(dir.path().join(name)).unwrap(), "{name}");
    }
    assert_eq!(files.len(), 6);

    let half = read(Precision::Bf16).files;
    let tensors = SafeTensors::deserialize(&half[MODEL_FILE]).unwrap();
    let view = tensors.tensor(MATRIX).unwrap();
    let first = expected.iter().find(|(name, ..)| name == MATRIX).unwrap().2[1];
    assert_eq!(view.dtype(), Dtype::BF16);
    // These numbers need fewer than eight bits: they are the same in both.
    assert_eq!(view.data()[2..4], first.to_le_bytes()[2..4]);
    assert_eq!(Config::read(&half[CONFIG_FILE]).unwrap().precision, Precision::Bf16);
    assert_eq!(read(Precision::Bf16).files, half, "the same directory makes the same version");
}

#[test]
fn a_missing_shard_is_named() {
    let mut directory = Directory::new();
    directory.shards.remove(SECOND);
    assert_told(&directory.refusal(), SECOND, &["failed to open it"]);
    // And a tensor that the index lists for a shard that lacks it.
    let mut directory = Directory::new();
    directory.shards.get_mut(FIRST).unwrap().retain(|(name, ..)| !name.contains("q_proj"));
    assert_told(&directory.refusal(), FIRST, &["self_attn.q_proj.weight"]);
    // No safetensors at all.
    let dir = Directory::new().write();
    std::fs::remove_file(dir.path().join(INDEX_FILE)).unwrap();
    assert_told(&refusal(&dir), MODEL_FILE, &["weights must be safetensors"]);
    // An index may not lead out of the directory.
    let mut directory = Directory::new();
    directory.index.insert(MATRIX.into(), "../model.safetensors");
    assert_told(&directory.refusal(), INDEX_FILE, &["../model.safetensors"]);
}

#[test]
fn a_tensor_of_another_shape_is_named() {
    let mut directory = Directory::new();
    directory.tensor(MATRIX).1 = vec![4, 6];
    assert_told(&directory.refusal(), SECOND, &[MATRIX, "shape=[4, 6]", "expected shape=[6, 4]"]);
}

#[test]
fn a_number_that_is_not_finite_is_refused_by_its_tensor() {
    for number in [f32::NAN, f32::INFINITY] {
        let mut directory = Directory::new();
        *directory.tensor(MATRIX).2.last_mut().unwrap() = number;
        assert_told(&directory.refusal(), SECOND, &[MATRIX, "not finite"]);
        let dir = directory.write();
        let opened = ModelDir::open(dir.path(), None).unwrap();
        assert!(opened.version(Precision::Bf16).is_err(), "it became a version");
    }
}

#[test]
fn a_file_that_is_cut_short_is_refused() {
    let dir = Directory::new().write();
    let path = dir.path().join(SECOND);
    let whole = std::fs::read(&path).unwrap();
    for length in [whole.len() - 1, whole.len() / 2, 40, 7, 0] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert_told(&refusal(&dir), SECOND, &[&format!("bytes={length}")]);
    }
    // A length of the header that no file has.
    std::fs::write(&path, [0xff; 64]).unwrap();
    assert_told(&refusal(&dir), SECOND, &["no safetensors file"]);
    std::fs::write(&path, [&whole[..], &[0; 4]].concat()).unwrap();
    assert_told(&refusal(&dir), SECOND, &["damaged"]);
}

#[test]
fn a_tensor_that_would_be_left_out_is_refused() {
    let extra = |name: &str, numbers: Vec<f32>, tied: bool| {
        let mut config = config();
        config["tie_word_embeddings"] = json!(tied);
        let mut directory = Directory::of(config);
        directory.shards.get_mut(FIRST).unwrap().push((name.into(), vec![8, 4], numbers));
        directory.refusal()
    };
    let bias = extra("model.layers.0.self_attn.q_proj.bias", vec![0.5; 32], false);
    assert_told(&bias, FIRST, &["q_proj.bias", "has not"]);
    // Old files have the wavelengths among the weights; a tied head may be written out.
    assert_eq!(extra("model.layers.0.self_attn.rotary_emb.inv_freq", vec![0.5; 32], false), "");
    let embedding: Vec<f32> = (0..32).map(|at| at as f32 / 8.0).collect();
    assert_eq!(extra("lm_head.weight", embedding, true), "");
    let other = extra("lm_head.weight", vec![0.5; 32], true);
    assert_told(&other, FIRST, &["lm_head.weight differs", "tie_word_embeddings"]);
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let mut larger = tokenizer("<end>");
    larger["model"]["vocab"]["z"] = json!(8);
    let other = tokenizer("<stop>");
    let added = json!({ "added_tokens_decoder": { "6": { "content": "<end>" } } });
    for (file, content, named, word) in [
        (
            TOKENIZER_FILE,
            larger.to_string(),
            TOKENIZER_FILE,
            "largest id is 8, and the model has vocab_size=8",
        ),
        (TOKENIZER_FILE, other.to_string(), TOKENIZER_FILE, "the end token \"<end>\" has id=none"),
        (TOKENIZER_FILE, "{".to_owned(), TOKENIZER_FILE, "failed to read"),
        (
            TOKENIZER_CONFIG_FILE,
            json!({ "eos_token": "a" }).to_string(),
            TOKENIZER_FILE,
            "\"a\" has id=0, not one of",
        ),
        (TOKENIZER_CONFIG_FILE, added.to_string(), TOKENIZER_FILE, "\"<end>\" has id=7, not 6"),
        (GENERATION_FILE, json!({ "eos_token_id": [7, 8] }).to_string(), GENERATION_FILE, "eos_token_id=8"),
        (TEMPLATE_FILE, "{{ raise_exception('no') }}".to_owned(), TEMPLATE_FILE, "no"),
    ] {
        let mut directory = Directory::new();
        directory.files.insert(file, content.into_bytes());
        assert_told(&directory.refusal(), named, &[word]);
    }
    // Without a tokenizer it is a model all the same, for environments of bare tokens.
    let mut directory = Directory::new();
    directory.files.clear();
    assert_eq!(directory.refusal(), "");
}

#[test]
fn what_is_not_computed_is_refused_by_its_field() {
    for (field, value, words) in [
        ("model_type", json!("gpt2"), &["model_type=gpt2", "llama (LlamaForCausalLM)", "qwen3"][..]),
        (
            "architectures",
            json!(["LlamaForSequenceClassification"]),
            &["LlamaForSequenceClassification", "known are"],
        ),
        ("hidden_act", json!("gelu"), &["hidden_act=gelu"]),
        ("max_position_embeddings", json!(16), &["model.context=32", "takes 16"]),
        ("rope_scaling", json!({ "rope_type": "longrope" }), &["rope_type=longrope", "yarn"]),
        ("rope_parameters", json!({ "rope_type": "linear" }), &["factor=null"]),
        ("partial_rotary_factor", json!(0.5), &["partial_rotary_factor=0.5"]),
        ("num_hidden_layers", json!(-1), &["num_hidden_layers"]),
        ("hidden_size", json!(0), &["above 0"]),
        ("num_key_value_heads", json!(3), &["num_key_value_heads=3"]),
    ] {
        let mut directory = Directory::new();
        directory.config[field] = value;
        assert_told(&directory.refusal(), CONFIG_FILE, words);
    }
    // The fields of another architecture have other names: the unknown architecture is reported
    // first.
    let mut directory = Directory::new();
    directory.config = json!({ "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 4 });
    assert_told(&directory.refusal(), CONFIG_FILE, &["model_type=gpt2", "qwen2 (Qwen2ForCausalLM)"]);
    // A window matters only to contexts that are longer.
    for (window, refused) in [(31, true), (32, false)] {
        let mut config = config();
        config["model_type"] = json!("mistral");
        config["architectures"] = json!(["MistralForCausalLM"]);
        let mut directory = Directory::of(config);
        directory.config["sliding_window"] = json!(window);
        assert_eq!(directory.refusal().contains("sliding_window=31"), refused, "{}", directory.refusal());
        directory.config["sliding_window"] = json!(null);
        assert_eq!(directory.refusal(), "");
    }
}

#[test]
fn all_faults_are_reported_at_once() {
    let mut directory = Directory::new();
    directory.config["model_type"] = json!("gpt2");
    directory.files.insert(TOKENIZER_FILE, b"{".to_vec());
    directory.shards.clear();
    let refusal = directory.refusal();
    for file in [CONFIG_FILE, TOKENIZER_FILE, FIRST, SECOND] {
        assert!(refusal.contains(&format!("\n  {file}: ")), "{file}: {refusal}");
    }
    let mut directory = Directory::new();
    directory.config["num_hidden_layers"] = json!(4);
    assert!(directory.refusal().contains("and 7 more"), "{}", directory.refusal());
}

#[test]
fn a_directory_of_another_machine_is_not_broken() {
    let broken = ModelDir::open(Path::new("/nowhere/model"), None).unwrap_err();
    assert!(broken.absent && broken.to_string().contains("/nowhere/model"), "{broken}");
}
