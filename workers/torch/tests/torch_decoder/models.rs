//! Models of the hub: computed as transformers computes them, and versions that transformers loads
//! unchanged. `oracle/models.py` makes and reads them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millrace_policy::{LoadedVersion, Trainer};
use millrace_schemas::submit::{Algorithm, ModelSpec, Precision};
use millrace_torch::TorchTrainer;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde::Deserialize;
use serde_json::json;
use tch::{Kind, Tensor};

use crate::forward::{decoder_of, difference, whole};
use crate::support::{Shape, engine, sampled_batch, step, task, turns, version};

/// Logits of the same weights in f32.
const BOUND: f64 = 1e-4;

/// What transformers computed.
#[derive(Deserialize)]
struct Expected {
    #[serde(default)]
    tokens: Vec<u32>,
    /// `[T, vocabulary]`
    logits: Vec<Vec<f32>>,
    /// The same, computed in bf16.
    #[serde(default)]
    bf16_logits: Vec<Vec<f32>>,
    /// What comes after the first twelve tokens, or the prompt.
    greedy: Vec<u32>,
}

pub(crate) fn oracle(arguments: &[&str], input: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut child = Command::new(root.join("../../.venv/bin/python"))
        .arg(root.join("tests/oracle/models.py"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "models.py {arguments:?} failed");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn zero(path: &Path, context: u32, precision: Precision) -> LoadedVersion {
    let model = ModelSpec::HuggingFace { path: path.to_str().unwrap().to_owned(), context, precision };
    version(0, &TorchTrainer::new().initialise(&model, 1).unwrap())
}

fn greedy(weights: &LoadedVersion, prompt: &[u32], count: u32) -> Vec<u32> {
    let mut task = task(prompt.to_vec(), count, 1);
    task.sampling.temperature = 0.0;
    turns(&mut engine(weights), vec![task]).remove(0).tokens
}

/// `[T, vocabulary]`
fn tensor(rows: &[Vec<f32>]) -> Tensor {
    Tensor::from_slice2(rows)
}

/// One step from version 0, with what no step changes.
fn stepped(zero: &LoadedVersion) -> LoadedVersion {
    let shape = Shape { turns: 2, observation: 5, new: 2, below: None };
    let batch = sampled_batch(zero, 2, 4, shape, 1);
    let mut trained = step(&mut TorchTrainer::new(), zero, &batch, &Algorithm::default()).unwrap();
    for (name, content) in &zero.files {
        trained.files.entry(name.clone()).or_insert_with(|| content.clone());
    }
    version(1, &trained)
}

/// Writes `version` as a directory, and its logits for `tokens` beside it.
fn write(folder: &Path, case: &str, version: &LoadedVersion, logits: &Tensor, tokens: &[u32], bound: f64) {
    let path = folder.join(format!("{case}.v1"));
    std::fs::create_dir(&path).unwrap();
    for (name, content) in version.files.iter().filter(|(name, _)| !name.starts_with("optimizer")) {
        std::fs::write(path.join(name), content).unwrap();
    }
    let logits = Vec::<Vec<f64>>::try_from(logits.to_kind(Kind::Double)).unwrap();
    let content = json!({ "tokens": tokens, "logits": logits, "bound": bound });
    std::fs::write(folder.join(format!("{case}.v1.json")), content.to_string()).unwrap();
}

#[test]
fn every_architecture_computes_what_transformers_computes() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    oracle(&["make", at.to_str().unwrap()], "");
    let cases = std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path());
    let cases: Vec<PathBuf> = cases.filter(|path| path.is_dir()).collect();
    assert_eq!(cases.len(), 13);
    for path in cases {
        let case = path.file_name().unwrap().to_str().unwrap();
        let text = std::fs::read(at.join(format!("{case}.json"))).unwrap();
        let expected: Expected = serde_json::from_slice(&text).unwrap();
        let zero = zero(&path, 128, Precision::F32);
        let off = difference(&whole(&decoder_of(&zero), &expected.tokens), &tensor(&expected.logits));
        assert!(off < BOUND, "{case}: logits are off by {off}");
        assert_eq!(greedy(&zero, &expected.tokens[..12], 24), expected.greedy, "{case}");
        let one = stepped(&zero);
        assert_ne!(
            one.files["model.safetensors"], zero.files["model.safetensors"],
            "{case}: nothing was learnt"
        );
        let logits = whole(&decoder_of(&one), &expected.tokens);
        write(at, case, &one, &logits, &expected.tokens, BOUND);
        halved(at, case, &path, &expected);
    }
    let told = oracle(&["read", at.to_str().unwrap()], "");
    assert_eq!(told.lines().count(), 39, "{told}");
}

/// The same in bf16. Both round after each operation, in different orders: these logits are at most
/// twice as far from those in f32 as transformers' are.
fn halved(folder: &Path, case: &str, path: &Path, expected: &Expected) {
    let zero = zero(path, 128, Precision::Bf16);
    let logits = whole(&decoder_of(&zero), &expected.tokens);
    assert_eq!(logits.kind(), Kind::BFloat16, "{case}");
    let logits = logits.to_kind(Kind::Float);
    let exact = tensor(&expected.logits);
    let (ours, theirs) = (difference(&logits, &exact), difference(&tensor(&expected.bf16_logits), &exact));
    println!("{case}: in bf16 off by {ours:.3}, transformers by {theirs:.3}");
    assert!(ours < 2.0 * theirs, "{case}: off by {ours}, transformers by {theirs}");
    write(folder, &format!("{case}.half"), &zero, &logits, &expected.tokens, 3.0 * theirs);
    // What a step in bf16 makes is a model directory in bf16, too.
    let one = stepped(&zero);
    let tensors = SafeTensors::deserialize(&one.files["model.safetensors"]).unwrap();
    assert!(tensors.iter().all(|(_, tensor)| tensor.dtype() == Dtype::BF16), "{case}");
    let logits = whole(&decoder_of(&one), &expected.tokens).to_kind(Kind::Float);
    write(folder, &format!("{case}.half_step"), &one, &logits, &expected.tokens, 3.0 * theirs);
}

/// Where `make model` puts SmolLM2-135M-Instruct.
fn smollm2() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/models/smollm2-135m-instruct");
    path.is_dir().then_some(path)
}

#[test]
fn a_pretrained_model_generates_what_transformers_generates() {
    let Some(path) = smollm2() else {
        println!("skipped: no SmolLM2-135M-Instruct in target/models; `make model` puts it there");
        return;
    };
    let zero = zero(&path, 1024, Precision::F32);
    let codec = millrace_policy::text_codec::Codec::read(|name| zero.files.get(name).cloned()).unwrap();
    let ask = |content| {
        let speaker = millrace_policy::text_codec::Speaker::User;
        codec.first_turn(&[millrace_policy::text_codec::Message { speaker, content }]).unwrap()
    };
    let prompts = [
        "What is 7 + 5? Answer with the number only.",
        "Name three colours.",
        "Écris « bonjour » en 日本語.",
    ];
    let prompts: Vec<Vec<u32>> = prompts.map(ask).into();
    let told = oracle(&["greedy", path.to_str().unwrap()], &json!(prompts).to_string());
    let expected: Vec<Expected> = serde_json::from_str(&told).unwrap();
    let decoder = decoder_of(&zero);
    for (prompt, expected) in prompts.iter().zip(&expected) {
        let off = difference(&whole(&decoder, prompt), &tensor(&expected.logits));
        assert!(off < BOUND, "logits are off by {off}");
        // The model's own end tokens end a turn; transformers' text is cut there too.
        let said = greedy(&zero, prompt, 16);
        assert!(!said.is_empty() && expected.greedy.starts_with(&said), "{said:?} {:?}", expected.greedy);
    }
    assert!(codec.decode(&expected[0].greedy, true).unwrap().contains("12"));
}
