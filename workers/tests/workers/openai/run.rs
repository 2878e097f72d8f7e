//! A whole run: `millrace up`, a trainer on libtorch, and a server that generates. The trainer's
//! numbers and the server's are of two programs, and must agree.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use millrace_schemas::report::Report;
use serde_json::Value;
use tokio::process::Command;

use crate::openai::support::Python;

/// Frozen lake, small.
const RUN: &str = r#"
name = "lake"
steps = 4
[model]
kind = "decoder"
vocabulary = 68
layers = 2
width = 64
heads = 4
feed_forward = 172
context = 72
[environment]
name = "frozen_lake"
size = 4
frozen = 0.8
max_turns = 8
[[rewards]]
rule = "env_return"
[rollout]
groups_per_step = 4
group_size = 4
alpha = 0.0
max_new_tokens = 1
actions_only = true
[algorithm]
learning_rate = 1e-2
"#;

/// Longest run. What hangs shows as this.
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::test]
async fn a_run_whose_turns_a_server_samples() {
    let millrace = Path::new(env!("CARGO_BIN_EXE_millrace-worker")).with_file_name("millrace");
    assert!(millrace.is_file(), "{} is not built; run `make build`", millrace.display());
    let python = Python::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    std::fs::write(&file, RUN).unwrap();
    let up = Command::new(millrace)
        .arg("up")
        .arg(&file)
        .args(["--dir".as_ref(), folder.path().as_os_str()])
        .envs([("MILLRACE_ENGINE", "openai"), ("MILLRACE_ENGINE_URL", &python.url())])
        .env("MILLRACE_ENGINE_WEIGHTS_DIR", folder.path().join("versions"))
        .env("MILLRACE_ENGINE_TOLERANCE", "0.001")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let up = tokio::time::timeout(PATIENCE, up).await.expect("the run ends").unwrap();
    let said = [up.stdout, up.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(up.status.success(), "{said}");
    let report = std::fs::read(folder.path().join("report.json")).expect("a report");
    let report: Report = serde_json::from_slice(&report).unwrap();
    assert!(report.balanced && report.audited, "{report:#?}");
    assert_eq!((report.final_version, report.ledger.trained), (4, 4 * 4 * 4));
    assert_eq!(report.max_staleness, 0, "{report:#?}");
    let manifest = std::fs::read(Path::new(&report.weights_path).join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let drift = manifest["metrics"]["sampler_trainer_drift_max"].as_f64().unwrap();
    assert!(drift < 1e-4, "the server's log-probabilities are off by {drift}");
    let journal = python.journal();
    assert!(journal["loads"].as_u64().unwrap() >= 5, "it read each version: {}", journal["loads"]);
    assert_eq!(journal["violations"], 0);
    assert!(journal["journal"].as_array().unwrap().len() >= 4 * 4 * 4);
}
