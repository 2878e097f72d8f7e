//! The benchmark starts, measures something of everything it names, and leaves its figures.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

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
    for name in ["lives_per_s", "raw_per_s", "ratio", "bare_per_s", "ratio_of_bare", "p50_us", "p99_us"] {
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

#[test]
fn limits_are_measured_and_no_run_starves() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let figures = figures_in(
        folder.path(),
        &[
            "limits",
            "--rows",
            "64x4x256",
            "--seconds",
            "1",
            "--repeats",
            "1",
            "--takeovers",
            "1",
            "--events",
            "5000",
        ],
    );
    let number =
        |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("no number in {figures}"));
    let row = &figures["rows"][0];
    assert!(number(&row["lives_per_s"][0]) > 0.0 && number(&row["fairness"]) > 0.1, "{figures}");
    assert!(row["open"].as_array().is_some_and(|open| open.len() == 2), "{figures}");
    for signal in [0, 1] {
        let gap = number(&figures["takeovers"][signal]["gap_s"][0]);
        assert!(gap > 0.0 && gap < 60.0, "{figures}");
    }
    assert!(number(&figures["replay"]["events"]) >= 5_000.0, "{figures}");
}

#[test]
fn what_the_gateway_adds_is_measured() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/models/smollm2-135m-instruct");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let figures = figures_in(
        folder.path(),
        &["gateway", "--model", model, "--calls", "4", "--agents", "2", "--at-once", "2"],
    );
    let rows = figures.as_array().expect("rows");
    assert_eq!(rows.len(), 3, "{figures}");
    for row in rows {
        for quantile in ["p50_ms", "p95_ms"] {
            assert!(row[quantile].as_f64().is_some_and(|ms| ms > 0.0), "{row}");
        }
    }
}

/// A part that fails is told, holds up no other, and is tried again; what has figures is not measured twice.
#[test]
fn results_go_into_one_folder_and_a_part_that_fails_is_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [dir, logs] = ["results", "logs"].map(|name| folder.path().join(name));
    let results = || {
        let run = Command::new(env!("CARGO_BIN_EXE_millrace-loadtest"))
            .args(["results", "--only", "generate,state", "--model", "none"])
            .args([Path::new("--dir"), &dir, Path::new("--logs"), &logs])
            .output()
            .expect("the command starts");
        assert!(!run.status.success(), "one part has no model");
        String::from_utf8_lossy(&run.stdout).into_owned()
    };
    let said = results();
    assert!(said.contains("none is no model"), "{said}");
    let index = std::fs::read_to_string(dir.join("README.md")).expect("an index");
    assert!(index.contains("[state.json](state.json), [state.md](state.md)"), "{index}");
    assert!(index.contains("**failed**: none is no model"), "{index}");
    let again = results();
    // What stands for a tree with changes may be of other changes.
    let stands = !index.contains("with changes") && !index.contains("unknown");
    assert_eq!(again.contains("state: has figures"), stands, "{again}");
    assert!(again.contains("none is no model"), "{again}");
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

#[test]
fn what_killed_real_workers_had_in_flight_is_begun_elsewhere() {
    let figures = figures_of(&[&SMALL[..], &["failures", "--steps", "6"]].concat());
    let rows = figures["failures"].as_array().expect("rows");
    let killed = |row: &serde_json::Value| row["killed"].as_array().map_or(0, Vec::len);
    assert_eq!(
        rows.iter().map(|row| row["share"].as_f64()).collect::<Vec<_>>(),
        [Some(0.0), Some(0.1), Some(1.0)]
    );
    assert_eq!(
        (killed(&rows[0]), rows[0]["recovery_s"].as_object().map(serde_json::Map::len)),
        (0, Some(0)),
        "{figures}"
    );
    assert!(killed(&rows[2]) > 0, "{figures}");
    assert!(
        rows[2]["recovery_s"]["generate"].as_array().is_some_and(|seconds| !seconds.is_empty()),
        "{figures}"
    );
}

/// Plain JetStream and ours are measured; a peer that cannot be installed is a row with the reason.
#[test]
fn peers_are_measured_and_a_missing_one_says_why() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("peers.json");
    let run = Command::new(env!("CARGO_BIN_EXE_millrace-loadtest"))
        .args([
            "bench",
            "peers",
            "--seconds",
            "0.3",
            "--rounds",
            "1",
            "--in-flight",
            "128",
            "--setup",
            "false",
        ])
        .args(["--only", "celery,jetstream,millrace", "--out"])
        .arg(&out)
        .output()
        .expect("the benchmark starts");
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(said.contains("**NOT MEASURED: not installed"), "{said}");
    let figures: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&out).expect("figures")).expect("figures as JSON");
    let median = |row: usize, name: &str| figures["rows"][row][name]["median"].as_f64();
    assert_eq!(median(0, "tasks_per_s"), None, "{figures}");
    for (row, name) in [(1, "tasks_per_s"), (1, "lone_p50_ms"), (2, "tasks_per_s"), (2, "lone_p99_ms")] {
        assert!(median(row, name).is_some_and(|value| value > 0.0), "{name} of row {row} in {figures}");
    }
    assert!(median(2, "chain_per_s").is_some_and(|value| value > 0.0), "{figures}");
}

/// A Python that starts a process in a session of its own, as Ray does, and never answers.
#[test]
fn peers_that_are_interrupted_leave_no_process() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (bin, note) = (folder.path().join("ray/bin"), folder.path().join("pid"));
    std::fs::create_dir_all(&bin).expect("a folder");
    let script = format!(
        "#!/bin/sh\nsetsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600' &\nwait\n",
        note.display()
    );
    let (draft, python) = (bin.join("draft"), bin.join("python"));
    std::fs::write(&draft, script).expect("a file");
    // By another process: a file that this one wrote is busy while a fork of another thread has it open, too.
    let made = Command::new("install").arg("-m755").args([&draft, &python]).status();
    assert!(made.expect("install").success());
    let mut run = Command::new(env!("CARGO_BIN_EXE_millrace-loadtest"))
        .args(["bench", "peers", "--setup", "true", "--only", "ray-tasks", "--venvs"])
        .arg(folder.path())
        .arg("--out")
        .arg(folder.path().join("peers.json"))
        .spawn()
        .expect("the benchmark starts");
    let started = loop {
        if let Ok(pid) = std::fs::read_to_string(&note) {
            break pid;
        }
        assert!(run.try_wait().expect("a process").is_none(), "it ended before the peer started");
        std::thread::yield_now();
    };
    let interrupt = Pid::from_raw(i32::try_from(run.id()).expect("a process"));
    kill(interrupt, Signal::SIGTERM).expect("it runs");
    assert!(!run.wait().expect("it ends").success());
    let alive = std::fs::read(format!("/proc/{}/cmdline", started.trim())).unwrap_or_default();
    assert!(alive.is_empty(), "{} still runs", String::from_utf8_lossy(&alive));
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
#[cfg(millrace_torch)]
#[test]
fn versions_are_measured_as_changes_and_by_many_workers() {
    let small = ["--drawn-layers", "1", "--drawn-vocabulary", "512", "--drawn-steps", "2", "--rollouts", "2"];
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

#[cfg(millrace_torch)]
#[test]
fn durable_rollouts_are_measured_and_a_killed_generator_loses_no_finished_turn() {
    let rates = ["durable", "--rounds", "1", "--seconds", "0.3", "--kilobytes", "1,512"];
    let figures = figures_of(&[&rates[..], &["--kills", "generate", "--steps", "6"]].concat());
    for row in 0..2 {
        for name in ["durable_per_s", "synced_per_s", "memory_per_s", "disk_per_s", "disk_synced_per_s"] {
            let rate = figures["rates"][row][name].as_f64();
            assert!(rate.is_some_and(|rate| rate > 0.0), "{name} in {figures}");
        }
    }
    assert_eq!(figures["rates"][0]["is_blob"], false, "{figures}");
    assert_eq!(figures["rates"][1]["is_blob"], true, "{figures}");
    let lost = &figures["lost"][0];
    assert!(lost["finished_turns"].as_u64().is_some_and(|turns| turns > 0), "{figures}");
    assert!(lost["held_turns"].as_u64().is_some_and(|turns| turns > 0), "{figures}");
    assert_eq!(lost["finished_turns_lost"].as_u64(), Some(0), "{figures}");
    assert_eq!(lost["findings"].as_array().map(Vec::len), Some(0), "{figures}");
}
