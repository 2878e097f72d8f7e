//! What needs no server: schemas, run files, the doctor.

use std::path::Path;

use millrace_schemas::submit::from_toml;

use super::support::{millrace, run, run_file, stderr, stdout};

#[tokio::test]
async fn the_committed_schemas_are_those_that_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&["schema", "--write", &folder.path().to_string_lossy()]).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas/json");
    let read = |folder: &Path| {
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files
            .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
            .map(|path| (path.file_name().unwrap().to_owned(), std::fs::read_to_string(&path).unwrap()))
            .collect();
        files.sort();
        files
    };
    assert_eq!(read(folder.path()), read(&committed));
}

#[tokio::test]
async fn schemas_are_listed_and_printed() {
    let names = stdout(&run(&["schema"]).await);
    assert!(names.lines().any(|name| name == "report"), "{names}");
    let printed = stdout(&run(&["schema", "run"]).await);
    let schema: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(schema["title"], "RunSpec");
    let output = run(&["schema", "nothing"]).await;
    assert!(!output.status.success());
    assert!(stderr(&output).contains("known: api_error, "), "{}", stderr(&output));
}

#[test]
fn the_run_files_are_valid() {
    for name in ["frozen-lake", "sokoban", "sokoban-hard", "counter", "smollm2-arithmetic", "three-domains"] {
        let text = std::fs::read_to_string(run_file(&format!("{name}.toml"))).unwrap();
        let spec = from_toml(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(spec.name.as_str(), name);
    }
}

/// Up to the model, which is not at hand: its rows are read, checked and counted.
#[tokio::test]
async fn the_three_domains_rows_are_sound() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(run_file("three-domains.toml")).unwrap();
    let file = folder.path().join("three-domains.toml");
    std::fs::write(&file, text.replace("target/models/", "nowhere/")).unwrap();
    for rows in ["programs.jsonl", "instructions.jsonl"] {
        std::fs::copy(run_file(rows), folder.path().join(rows)).unwrap();
    }
    let up =
        run(&["up", &file.to_string_lossy(), "--dir", &folder.path().join("run").to_string_lossy()]).await;
    assert!(stderr(&up).contains("model.path = \"nowhere/"), "{}", stderr(&up));
    // More are evaluated than are held out.
    let few = text.replace("prompts = 10", "prompts = 40");
    std::fs::write(&file, few).unwrap();
    let up = run(&["up", &file.to_string_lossy()]).await;
    assert!(stderr(&up).contains("evaluate.prompts = "), "{}", stderr(&up));
}

/// Before anything starts, with the reason.
#[tokio::test]
async fn a_run_that_needs_a_sandbox_is_refused_where_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("run");
    for name in ["programs.jsonl", "instructions.jsonl"] {
        std::fs::copy(run_file(name), folder.path().join(name)).unwrap();
    }
    let text = std::fs::read_to_string(run_file("three-domains.toml")).unwrap();
    let up = async |text: &str| {
        let file = folder.path().join("run.toml");
        std::fs::write(&file, text.replace("target/models/", "nowhere/")).unwrap();
        let up = millrace()
            .arg("up")
            .arg(file)
            .arg("--dir")
            .arg(&into)
            .env("MILLRACE_SANDBOX", "/nowhere")
            .output();
        stderr(&up.await.unwrap())
    };
    let said = up(&text).await;
    assert!(said.contains("rule = \"code\"") && said.contains("/nowhere"), "{said}");
    let said = up(&text.replace("partial = true, wall_ms", "may_lack = [\"seccomp\"], wall_ms")).await;
    assert!(said.contains("model.path = \"nowhere/"), "workers see to it: {said}");
    assert!(!into.join("run.json").exists(), "something was begun");
}

#[tokio::test]
async fn the_doctor_names_what_there_is_and_what_is_not() {
    let words = stdout(&run(&["doctor"]).await);
    for what in ["nats-server", "millrace-worker", "torch", "sandbox", "GPU", "python3", "cores"] {
        assert!(words.contains(what), "{what} is not in:\n{words}");
    }
}

#[tokio::test]
async fn without_a_server_it_says_how_to_get_one() {
    // Nothing listens on the port of a socket that was just closed.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let output = run(&["list", "--nats", &format!("nats://127.0.0.1:{port}")]).await;
    assert!(!output.status.success());
    assert!(stderr(&output).contains("millrace up RUN.toml"), "{}", stderr(&output));
}

#[tokio::test]
async fn a_wrong_run_file_is_refused_by_field_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    let text = std::fs::read_to_string(run_file("counter.toml")).unwrap();
    std::fs::write(&path, text.replace("group_size = 4", "group_size = 1")).unwrap();
    let into = folder.path().join("run");
    let output = run(&["up", &path.to_string_lossy(), "--dir", &into.to_string_lossy()]).await;
    assert!(!output.status.success());
    assert!(stderr(&output).contains("rollout.group_size = 1:"), "{}", stderr(&output));
    assert!(!into.exists());
    std::fs::write(&path, text.replace("alpha =", "alhpa =")).unwrap();
    let output = run(&["submit", &path.to_string_lossy()]).await;
    assert!(stderr(&output).contains("alhpa"), "{}", stderr(&output));
}
