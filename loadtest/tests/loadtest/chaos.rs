//! A little of every fault, alone and with a gang, and a cluster that loses its leader, with the scripted model: nothing is lost, and
//! the tables are left.

use std::path::Path;
use std::process::Command;

/// Plays the counter under the faults of `scenario`. Returns their number.
fn nothing_is_wrong_after(scenario: &str, args: &[&str]) -> usize {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let run = Command::new(env!("CARGO_BIN_EXE_millrace-loadtest"))
        .args(["chaos", "--seed", "1", "--compare", "1"])
        .args(args)
        .arg("--run")
        .arg(repository.join("../broker/coordinator/runs/counter.toml"))
        .arg("--scenario")
        .arg(repository.join("scenarios").join(scenario))
        .arg("--dir")
        .arg(folder.path().join("chaos"))
        .output()
        .expect("the test starts");
    let (said, failed) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}\n{failed}");
    let report = std::fs::read(folder.path().join("chaos/report.json")).expect("a report");
    let report: serde_json::Value = serde_json::from_slice(&report).expect("the report is JSON");
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(0), "{report}");
    assert!(said.contains("The checkers find nothing wrong"), "{said}");
    report["faults"].as_array().expect("faults").len()
}

#[test]
fn a_little_chaos_loses_nothing() {
    let faults = nothing_is_wrong_after("chaos-smoke.toml", &["--minutes", "0.25", "--steps", "60"]);
    assert!(faults >= 10, "{faults}");
}

#[test]
fn a_gang_of_two_loses_nothing() {
    let args = ["--minutes", "0.25", "--steps", "60", "--ranks", "2"];
    let faults = nothing_is_wrong_after("chaos-smoke.toml", &args);
    assert!(faults >= 10, "{faults}");
}

#[test]
fn a_cluster_loses_nothing_when_its_leader_is_killed_in_the_middle_of_a_run() {
    let args = ["--cluster", "--minutes", "0.2", "--steps", "60"];
    let faults = nothing_is_wrong_after("chaos-leader.toml", &args);
    assert!(faults >= 1, "{faults}");
}
