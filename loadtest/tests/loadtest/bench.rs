//! The benchmark starts, measures something of everything it names, and leaves its figures.

use std::process::Command;

#[test]
fn the_queue_is_measured_and_its_figures_are_left() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("bench/queue.json");
    let run = Command::new(env!("CARGO_BIN_EXE_millrace-loadtest"))
        .args(["bench", "queue", "--seconds", "0.5", "--repeats", "1", "--in-flight", "256", "--out"])
        .arg(&out)
        .output()
        .expect("the benchmark starts");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let figures: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&out).expect("figures")).expect("figures as JSON");
    for name in ["lives_per_s", "raw_per_s", "ratio", "p50_us", "p99_us"] {
        assert!(figures[name].as_f64().is_some_and(|value| value > 0.0), "{name} in {figures}");
    }
}

/// Two goals that no machine's speed decides: what a snapshot and a turn's tasks have in bytes does not grow with the tokens.
#[test]
fn the_state_is_measured_and_holds_no_tokens() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let measure = |tokens: &str| {
        let out = folder.path().join(format!("{tokens}.json"));
        let run = Command::new(env!("CARGO_BIN_EXE_millrace-loadtest"))
            .args(["bench", "state", "--rollouts", "320", "--ranks", "4", "--tokens", tokens, "--out"])
            .arg(&out)
            .output()
            .expect("the benchmark starts");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let figures = std::fs::read(&out).expect("figures");
        serde_json::from_slice::<serde_json::Value>(&figures).expect("figures as JSON")
    };
    let [few, many] = ["64", "4096"].map(measure);
    let megabytes = |of: &serde_json::Value| of["snapshot_mb"].as_f64().expect("a number");
    assert!(megabytes(&many) < 1.05 * megabytes(&few), "{few} {many}");
    let [first, last] = [0, 1].map(|at| many["turn_bytes"][at].as_u64().expect("a number"));
    assert!(last < 2 * first, "{many}");
}
