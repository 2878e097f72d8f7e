//! A little of every fault, with the scripted model: nothing is lost, and the tables are left.

use std::path::Path;
use std::process::Command;

#[test]
fn a_little_chaos_loses_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let run = Command::new(env!("CARGO_BIN_EXE_millrace-loadtest"))
        .args(["chaos", "--minutes", "0.25", "--seed", "1", "--steps", "60", "--compare", "1"])
        .arg("--run")
        .arg(repository.join("../broker/coordinator/runs/counter.toml"))
        .arg("--scenario")
        .arg(repository.join("scenarios/chaos-smoke.toml"))
        .arg("--dir")
        .arg(folder.path().join("chaos"))
        .output()
        .expect("the test starts");
    let (said, failed) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}\n{failed}");
    let report = std::fs::read(folder.path().join("chaos/report.json")).expect("a report");
    let report: serde_json::Value = serde_json::from_slice(&report).expect("the report is JSON");
    let faults = report["faults"].as_array().expect("faults").len();
    assert!(faults >= 10, "{report}");
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(0), "{report}");
    assert!(said.contains("The checkers find nothing wrong"), "{said}");
}
