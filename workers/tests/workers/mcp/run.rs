//! A whole run whose policy calls tools: `millrace up`, a model on libtorch whose tokens are calls, and
//! a server of the official SDK that is killed in the middle of a call.
#![cfg(feature = "torch")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

use millrace_schemas::report::Report;
use tokio::process::Command;

use super::{Duration, script, sdk};

/// Longest run. What hangs shows as this.
const PATIENCE: Duration = Duration::from_secs(300);

/// `{model}` is filled in.
const RUN: &str = r#"
name = "tools"
steps = 4
[model]
kind = "hugging_face"
path = "{model}"
context = 8192
[environment]
name = "dataset"
path = "rows.jsonl"
check = "number"
held_out = 0.25
max_turns = 3
prompt_tokens = 2048
tools = ["calculator"]
tool_result_tokens = 64
[rollout]
groups_per_step = 2
group_size = 8
alpha = 1.0
max_new_tokens = 2
[algorithm]
learning_rate = 1e-3
[evaluate]
prompts = 2
"#;

async fn up(folder: &Path, more: &[&str]) -> (bool, String) {
    let millrace = Path::new(env!("CARGO_BIN_EXE_millrace-worker")).with_file_name("millrace");
    assert!(millrace.is_file(), "{} is not built; run `make build`", millrace.display());
    let up = Command::new(millrace)
        .arg("up")
        .arg(folder.join("run.toml"))
        .args(["--dir".as_ref(), folder.join("run").as_os_str()])
        .args(more)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let up = tokio::time::timeout(PATIENCE, up).await.expect("the run ends").unwrap();
    let said = [up.stdout, up.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (up.status.success(), said)
}

#[tokio::test]
async fn a_run_calls_tools_whose_server_is_killed_and_its_books_balance() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/bin/python");
    let made = Command::new(python).arg(script("model.py")).arg(&model).output().await.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let rows: String =
        (0..16).map(|i| format!("{{\"prompt\": \"{i} and what make five?\", \"answer\": 5}}\n")).collect();
    std::fs::write(folder.path().join("rows.jsonl"), rows).unwrap();
    let file = RUN.replace("{model}", &model.to_string_lossy());
    std::fs::write(folder.path().join("run.toml"), file).unwrap();

    let (succeeded, said) = up(folder.path(), &[]).await;
    assert!(!succeeded && said.contains("--mcp calculator=COMMAND"), "{said}");
    assert!(!folder.path().join("run").exists(), "something was begun");

    let journal = folder.path().join("journal");
    let server = format!("calculator={} {} {}", sdk(), script("calculator.py"), journal.display());
    let (succeeded, said) = up(folder.path(), &["--mcp", &server]).await;
    assert!(succeeded, "{said}");
    assert!(said.contains("the longest prompt of") && !said.contains("without those of its tools"), "{said}");
    let report = std::fs::read(folder.path().join("run/report.json")).expect("a report");
    let report: Report = serde_json::from_slice(&report).unwrap();
    assert!(report.balanced && report.audited, "{report:#?}");
    assert_eq!((report.final_version, report.ledger.trained), (4, 4 * 2 * 8));
    let calls = std::fs::read_to_string(&journal).unwrap();
    let processes: BTreeSet<&str> = calls.lines().collect();
    assert!(calls.lines().count() > 7 && processes.len() == 2, "one process died at its call: {calls}");
    assert_eq!(report.restarts, 0, "the server is not the worker");
}
