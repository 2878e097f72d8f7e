//! `millrace up` from beginning to end, stopped, and gone on with.

use std::io::Write;
use std::path::Path;

use millrace_queue::port::Message;
use millrace_queue::{ConnectArgs, JetStream, JetStreamOptions, TaskQueue};
use nix::sys::signal::Signal;
use parquet::file::reader::{FileReader, SerializedFileReader};
use tokio::time::timeout;

use super::support::{PATIENCE, Up, lives, millrace, run, run_file, send, stderr, stdout, until};

/// The lines of the folder's metrics.
fn metrics(folder: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    assert!(text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn has_steps(lines: &[serde_json::Value], last: u64) {
    let steps: Vec<u64> = lines.iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=last).collect::<Vec<_>>());
}

fn steps(n: u64) -> [String; 2] {
    ["--steps".into(), n.to_string()]
}

#[tokio::test]
async fn a_run_ends_balanced_and_audited_and_leaves_its_results() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path(), &["--steps", "10"]);
    let status = up.ended().await;
    assert!(status.success(), "{}", up.output());
    let report = up.report();
    assert_eq!((report.state.as_str(), report.steps, report.final_version), ("finished", 10, 10));
    assert!(report.balanced && report.audited, "{report:#?}");
    assert_eq!(report.ledger.trained, 10 * 8 * 4);
    assert_eq!(report.staleness.iter().sum::<u64>(), report.ledger.trained);
    assert!(report.max_staleness <= 1, "{report:#?}");
    assert_eq!(report.restarts, 0, "{}", up.output());
    assert!((0.0..=1.0).contains(&report.generate_busy) && (0.0..=1.0).contains(&report.train_busy));
    assert!(std::path::Path::new(&report.weights_path).join("manifest.json").is_file());
    let curve = std::fs::read_to_string(&report.curve_path).unwrap();
    assert!(curve.starts_with("<svg") && curve.trim_end().ends_with("</svg>"));
    let lines = metrics(folder.path());
    has_steps(&lines, 10);
    for line in &lines {
        assert!(line["unix_ms"].as_u64().unwrap() > 1_700_000_000_000, "{line}");
        assert!(line["step_s"].as_f64().unwrap() >= 0.0, "{line}");
        assert_eq!(line["loss"].as_f64().unwrap(), -line["reward"].as_f64().unwrap(), "{line}");
        assert!(line["max_staleness"].as_f64().unwrap() <= 1.0, "{line}");
        assert_eq!((line["rollouts"].as_f64(), line["success"].is_f64()), (Some(32.0), true), "{line}");
    }
    let listed =
        run(&["weights", "ls", "counter", "--json", "--dir", &folder.path().to_string_lossy()]).await;
    let text = std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
    assert_eq!(stdout(&listed), text, "{}", stderr(&listed));
    assert!(up.output().contains("recount from the committed versions agrees"), "{}", up.output());

    // The same command reports that the run is over, and starts nothing.
    let mut again = Up::start(folder.path(), &["--steps", "10"]);
    assert!(again.ended().await.success());
    assert!(again.output().contains("--again starts over"), "{}", again.output());

    // With --again, the earlier results are kept.
    let mut second = Up::start(folder.path(), &["--steps", "4", "--again"]);
    assert!(second.ended().await.success(), "{}", second.output());
    assert_eq!(second.report().steps, 4);
    assert!(folder.path().join("earlier/1/report.json").is_file());
    has_steps(&metrics(&folder.path().join("earlier/1")), 10);
    has_steps(&metrics(folder.path()), 4);
}

#[tokio::test]
async fn a_broken_model_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("config.json"), r#"{ "model_type": "gpt2" }"#).unwrap();
    let file = folder.path().join("run.toml");
    let model = format!("[model]\nkind = \"hugging_face\"\npath = {model:?}\n");
    let rest = "[environment]\nname = \"arithmetic\"\n[algorithm]\nlearning_rate = 1e-5\n[rollout]\nmax_new_tokens = 8\n";
    let text = format!("name = \"broken\"\nsteps = 1\n{model}{rest}");
    std::fs::write(&file, text).unwrap();
    let root = folder.path().join("run");
    let output = run(&["up", file.to_str().unwrap(), "--dir", root.to_str().unwrap()]).await;
    assert!(!output.status.success(), "{}", stdout(&output));
    for word in ["model.path", "config.json", "llama", "model.safetensors"] {
        assert!(stderr(&output).contains(word), "{word}: {}", stderr(&output));
    }
    assert!(!root.join("run.json").exists() && !root.join("nats").exists(), "something was begun");
}

#[tokio::test]
async fn ctrl_c_drains_and_a_second_up_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let all = steps(120);
    let args = [all[0].as_str(), all[1].as_str()];
    let mut up = Up::start(folder.path(), &args);
    up.reached(5).await;
    let pids = up.pids();
    send(up.pid(), Signal::SIGINT);
    let status = up.ended().await;
    assert_eq!(status.code(), Some(130), "{}", up.output());
    assert!(up.output().contains("the same command resumes it"), "{}", up.output());
    for (name, pid) in pids {
        assert!(!lives(pid), "{name} is still there");
    }
    assert!(!folder.path().join("report.json").exists());

    let mut other = Up::start(folder.path(), &["--steps", "121"]);
    assert!(!other.ended().await.success());
    assert!(other.output().contains("steps differ"), "{}", other.output());

    let mut second = Up::start(folder.path(), &args);
    assert!(second.ended().await.success(), "{}", second.output());
    let report = second.report();
    assert!(report.balanced && report.audited, "{report:#?}");
    assert_eq!(report.final_version, 120);
    assert!(second.output().contains("counter resumes in"), "{}", second.output());
}

#[tokio::test]
async fn nothing_stays_when_up_is_killed_and_the_run_goes_on_after() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path(), &["--steps", "60"]);
    up.reached(3).await;
    let pids = up.pids();
    assert_eq!(pids.len(), 6, "{pids:?}");
    send(up.pid(), Signal::SIGKILL);
    up.ended().await;
    until("all are gone", async || pids.values().all(|pid| !lives(*pid)).then_some(())).await;
    // It was killed amid a line.
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.path().join("metrics.jsonl"))
        .unwrap();
    file.write_all(b"{\"step\":3,\"lo").unwrap();

    let mut second = Up::start(folder.path(), &["--steps", "60"]);
    assert!(second.ended().await.success(), "{}", second.output());
    let report = second.report();
    assert!(report.balanced && report.audited, "{report:#?}");
    has_steps(&metrics(folder.path()), 60);
}

#[tokio::test]
async fn other_commands_find_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path(), &["--steps", "100000"]);
    up.reached(3).await;
    let dir = folder.path().to_string_lossy().into_owned();
    let ledger = run(&["ledger", "--audit", "--dir", &dir]).await;
    assert!(ledger.status.success(), "{}{}", stdout(&ledger), stderr(&ledger));
    assert!(stdout(&ledger).contains("recounted from the object store: agrees"), "{}", stdout(&ledger));
    let list = stdout(&run(&["weights", "ls", "counter", "--dir", &dir]).await);
    assert!(list.contains("v0"), "{list}");
    let to = folder.path().join("export");
    let exported = run(&[
        "weights",
        "export",
        "counter",
        "--to",
        &to.to_string_lossy(),
        "--version",
        "0",
        "--dir",
        &dir,
    ])
    .await;
    assert!(exported.status.success(), "{}", stderr(&exported));
    assert!(to.join("manifest.json").is_file());
    let checked = run(&["objects", "check", "--content", "--dir", &dir]).await;
    assert!(checked.status.success(), "{}{}", stdout(&checked), stderr(&checked));
    assert!(stdout(&checked).contains("every referenced object exists"), "{}", stdout(&checked));
    let kept = stdout(&run(&["objects", "collect", "--dir", &dir]).await);
    assert!(kept.starts_with("0 objects"), "everything is young: {kept}");
    the_log_is_exported(folder.path(), &dir).await;
    assert!(run(&["cancel", "counter", "--dir", &dir]).await.status.success());
    assert_eq!(up.ended().await.code(), Some(1), "{}", up.output());
    let report = up.report();
    assert_eq!(report.state, "cancelled");
    assert!(report.balanced && report.audited, "{report:#?}");
}

/// As JSONL and as Parquet, with the same content.
async fn the_log_is_exported(folder: &Path, dir: &str) {
    let export = ["log", "export", "--run", "counter", "--to", "40", "--dir", dir];
    let lines = stdout(&run(&export).await);
    let rows: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows[0]["kind"], "submitted", "{lines}");
    assert!(rows.iter().all(|row| row["run"] == "counter"), "{lines}");
    assert!(rows.windows(2).all(|pair| pair[0]["seq"].as_u64() < pair[1]["seq"].as_u64()), "{lines}");
    let path = folder.join("log.parquet");
    let to = path.to_string_lossy();
    let written = run(&[&export[..], &["--format", "parquet", "--output", &to]].concat()).await;
    assert!(written.status.success(), "{}", stderr(&written));
    let file = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    let columns: Vec<serde_json::Value> =
        file.get_row_iter(None).unwrap().map(|row| row.unwrap().to_json_value()).collect();
    assert_eq!(columns.len(), rows.len());
    for (column, row) in columns.iter().zip(&rows) {
        for field in ["seq", "stored_ns", "run", "kind"] {
            assert_eq!(column[field], row[field], "{field}");
        }
        assert_eq!(column["task"].as_str(), row["task"].as_str());
        let event: serde_json::Value = serde_json::from_str(column["event"].as_str().unwrap()).unwrap();
        assert_eq!(event, row["event"]);
    }
    assert!(!run(&[&export[..], &["--format", "parquet"]].concat()).await.status.success(), "to no file");
}

#[tokio::test]
async fn a_process_that_cannot_start_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = millrace();
    up.arg("up").arg(run_file("counter.toml")).arg("--dir").arg(folder.path());
    let output = timeout(PATIENCE, up.env("MILLRACE_NATS_SERVER", "/bin/false").output()).await;
    let output = output.expect("it ends").unwrap();
    assert!(!output.status.success());
    let words = stderr(&output);
    assert!(words.contains("nats-server ended 6 times right after its start (exit status: 1)"), "{words}");
}

#[tokio::test]
async fn a_task_that_cannot_be_read_is_a_dead_letter_and_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path(), &["--steps", "100000"]);
    up.reached(3).await;
    let dir = folder.path().to_string_lossy().into_owned();
    let url = std::fs::read_to_string(folder.path().join("nats.url")).unwrap();
    // Another user of the machine reaches the port and is not let in.
    let stranger =
        JetStream::connect(url.trim(), "stranger", JetStreamOptions::default()).await.err().unwrap();
    assert!(stranger.to_string().contains("authorization violation"), "{stranger}");
    let who = ConnectArgs { nats_nkey: Some(folder.path().join("nats.nk")), ..ConnectArgs::default() };
    let queue = JetStream::connect(url.trim(), "test", who.options().unwrap()).await.unwrap();
    let subject = "mr.task.reward.env_return.counter.v0.g999999r0a0-w0";
    let garbage = Message { subject: subject.into(), payload: "garbage".into(), headers: vec![] };
    queue.put(vec![garbage]).await.pop().unwrap().unwrap();

    let dead = async || Some(stdout(&run(&["dead", "ls", "--dir", &dir]).await));
    let first = until("it is with the dead letters", async || {
        dead().await.filter(|list| list.contains("counter reward g999999r0a0-w0  7 bytes"))
    })
    .await;
    let seq = first.split_whitespace().next().unwrap().to_owned();
    let requeued = run(&["dead", "requeue", &seq, "--dir", &dir]).await;
    assert!(requeued.status.success(), "{}", stderr(&requeued));
    // The task is still poison: it becomes a second dead letter.
    until("it is a dead letter again", async || {
        dead().await.filter(|list| list.contains("g999999r0a0-w0") && !list.trim_start().starts_with(&seq))
    })
    .await;
    send(up.pid(), Signal::SIGTERM);
    assert_eq!(up.ended().await.code(), Some(130), "{}", up.output());
}
