//! The benchmark starts, measures something of everything it names, and leaves its figures.

use std::path::Path;
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

/// Runs `bench` with these arguments in a folder of its own, and returns its figures.
fn figures_of(arguments: &[&str]) -> serde_json::Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("processes");
    figures_in(folder.path(), &[arguments, &["--dir", dir.to_str().expect("a plain path")]].concat())
}

/// The same, of one that needs no folder for processes.
fn figures_in(folder: &Path, arguments: &[&str]) -> serde_json::Value {
    let out = folder.join("figures.json");
    let run = Command::new(env!("CARGO_BIN_EXE_millrace-loadtest"))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .arg("bench")
        .args(arguments)
        .arg("--out")
        .arg(&out)
        .output()
        .expect("the benchmark starts");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(run.status.success(), "{}\n{}", said(&run.stdout), said(&run.stderr));
    serde_json::from_slice(&std::fs::read(&out).expect("figures")).expect("figures as JSON")
}

/// Twenty times as fast as in virtual time, and a sixteenth of the fleet.
const SMALL: [&str; 9] = ["scale", "--real", "--seeds", "1", "--faster", "20", "--groups", "2", "--parts"];

#[test]
fn scaling_is_measured_on_real_processes() {
    let figures = figures_of(&[&SMALL[..], &["rules", "--rules", "static,budget", "--steps", "3"]].concat());
    let runs = figures["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2, "{figures}");
    for run in runs {
        assert!(run["worker_s"].as_f64().is_some_and(|seconds| seconds > 0.0), "{run}");
        assert!(run["step_s"].as_f64().is_some_and(|seconds| seconds >= 25.0), "{run}");
        assert_eq!((run["dropped"].as_u64(), run["wasted_turns"].as_u64()), (Some(0), Some(0)), "{run}");
    }
}

#[test]
fn a_replayed_trace_takes_as_many_real_workers_as_it_says() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let trace = folder.path().join("trace.csv");
    std::fs::write(&trace, "0,3\n100,1\n150,2\n200,1\n").expect("a file");
    let trace = trace.to_string_lossy();
    let figures = figures_of(&[&SMALL[..], &["trace", "--trace", &trace, "--window", "0", "400"]].concat());
    let taken: Vec<_> = figures["replayed"]
        .as_array()
        .expect("replays")
        .iter()
        .map(|replayed| (replayed["taken"].as_u64(), replayed["interrupted"].as_u64()))
        .collect();
    assert_eq!(taken, [(Some(0), Some(0)), (Some(3), Some(3)), (Some(3), Some(3))], "{figures}");
}

#[cfg(millrace_torch)]
#[test]
fn workers_that_are_drained_in_the_middle_of_turns_lose_no_token() {
    let figures = figures_of(&["drain", "--cases", "generate-at-once", "--steps", "4", "--drains", "3"]);
    let count = |name: &str| figures[0][name].as_u64().unwrap_or_else(|| panic!("{name} in {figures}"));
    assert!(count("drains") > 0 && count("handed_back_tokens") > 0, "{figures}");
    for name in ["finished_turns_lost", "lost_tokens", "dropped_tokens", "done_twice", "void"] {
        assert_eq!(count(name), 0, "{name} in {figures}");
    }
}

/// The bench itself fails where a worker gets other weights.
#[test]
fn versions_are_measured_as_changes_and_by_many_workers() {
    let small = ["--drawn-layers", "1", "--drawn-vocabulary", "512", "--drawn-steps", "2"];
    let arguments = [&["weights", "--workers", "3", "--rounds", "1"][..], &small].concat();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let figures = figures_in(folder.path(), &arguments);
    let versions = figures["deltas"][0]["versions"].as_array().expect("versions");
    assert_eq!(versions.len(), 2, "{figures}");
    for version in versions {
        let share = version["changed_share"].as_f64().expect("a share");
        assert!(share > 0.0 && share < 1.0, "{figures}");
        assert!(version["bytes"].as_u64() < figures["deltas"][0]["bytes"].as_u64(), "{figures}");
    }
    assert_eq!(figures["fan_out"].as_array().expect("rows").len(), 3, "{figures}");
}
