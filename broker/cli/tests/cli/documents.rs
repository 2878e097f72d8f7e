//! What needs no server: schemas, run files, the doctor.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::support::{changed_run_file, millrace, run, run_file, stderr, stdout};

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

/// The run of three domains, of a model that is not at hand, with its rows.
fn three_domains(folder: &Path, changes: &[(&str, &str)]) -> PathBuf {
    for rows in ["programs.jsonl", "instructions.jsonl"] {
        std::fs::copy(run_file(rows), folder.join(rows)).unwrap();
    }
    changed_run_file("three-domains.toml", folder, &[&[("target/models/", "nowhere/")], changes].concat())
}

/// Up to the model, which is not at hand: its rows are read, checked and counted.
#[tokio::test]
async fn the_three_domains_rows_are_sound() {
    let folder = tempfile::tempdir().unwrap();
    let up = async |file: PathBuf| {
        let into = folder.path().join("run");
        stderr(&run(&["up", &file.to_string_lossy(), "--dir", &into.to_string_lossy()]).await)
    };
    let said = up(three_domains(folder.path(), &[])).await;
    assert!(said.contains("model.path = \"nowhere/"), "{said}");
    // More are evaluated than are held out.
    let said = up(three_domains(folder.path(), &[("prompts = 10", "prompts = 40")])).await;
    assert!(said.contains("evaluate.prompts = "), "{said}");
}

/// Before anything starts, with the reason.
#[tokio::test]
async fn a_run_that_needs_a_sandbox_is_refused_where_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("run");
    let up = async |file: PathBuf| {
        let mut up = millrace();
        up.arg("up").arg(file).arg("--dir").arg(&into).env("MILLRACE_SANDBOX", "/nowhere");
        stderr(&up.output().await.unwrap())
    };
    let said = up(three_domains(folder.path(), &[])).await;
    assert!(said.contains("rule = \"code\"") && said.contains("/nowhere"), "{said}");
    let lacking = [("partial = true, wall_ms", "may_lack = [\"seccomp\"], wall_ms")];
    let said = up(three_domains(folder.path(), &lacking)).await;
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
    let port = millrace_server::free_port().unwrap();
    let output = run(&["list", "--nats", &format!("nats://127.0.0.1:{port}")]).await;
    assert!(!output.status.success());
    assert!(stderr(&output).contains("millrace up RUN.toml"), "{}", stderr(&output));
}

#[tokio::test]
async fn a_wrong_run_file_is_refused_by_field_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let changed = |from, to| changed_run_file("counter.toml", folder.path(), &[(from, to)]);
    let path = changed("group_size = 4", "group_size = 1");
    let into = folder.path().join("run");
    let output = run(&["up", &path.to_string_lossy(), "--dir", &into.to_string_lossy()]).await;
    assert!(!output.status.success());
    assert!(stderr(&output).contains("rollout.group_size = 1:"), "{}", stderr(&output));
    assert!(!into.exists());
    let path = changed("alpha =", "alhpa =");
    let output = run(&["submit", &path.to_string_lossy()]).await;
    assert!(stderr(&output).contains("alhpa"), "{}", stderr(&output));
}

/// `millrace completions bash | head -1`.
#[tokio::test]
async fn completions_into_a_pipe_that_is_closed_are_no_error() {
    let mut command = millrace();
    let mut child = command.args(["completions", "bash"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn up_refuses_what_no_machine_can_do_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("run");
    let file = run_file("counter.toml");
    for (options, said) in [
        (["--generate", "100000"], "--generate 100000: choose at most 1024"),
        (["--objects", "gs://foo"], "--objects gs://foo: "),
    ] {
        let up = ["up", file.to_str().unwrap(), "--dir", into.to_str().unwrap()];
        let output = run(&[&up[..], &options[..]].concat()).await;
        assert!(!output.status.success());
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
        assert!(!into.exists(), "something was begun");
    }
}

/// Text that is neither TOML nor JSON names its line, and no field.
#[tokio::test]
async fn a_run_file_that_cannot_be_parsed_names_no_field() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("run.toml", "name = "), ("run.json", "{"), ("run.json", "{} x")] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let said = stderr(&run(&["submit", &path.to_string_lossy()]).await);
        assert!(said.contains("run file: ") && said.contains("line 1") && !said.contains("field="), "{said}");
    }
}
