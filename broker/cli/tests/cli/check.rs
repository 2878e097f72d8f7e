//! `millrace check`, and the run files that the repository ships.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{run, run_file, stderr, stdout};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files of the repository that git knows, by how their names end.
fn committed(pattern: &str) -> Vec<PathBuf> {
    let listed = Command::new("git").arg("-C").arg(root()).args(["ls-files", pattern]).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let paths = String::from_utf8(listed.stdout).unwrap();
    // One that is removed and not committed yet is no file.
    paths.lines().map(|path| root().join(path)).filter(|path| path.exists()).collect()
}

/// Whether a text is a whole run file.
fn is_run_file(text: &str) -> bool {
    let document = text.parse::<toml::Table>();
    document.is_ok_and(|table| ["name", "steps", "model"].iter().all(|field| table.contains_key(*field)))
}

/// The blocks of code of a Markdown text: indented by four, or fenced.
fn code(text: &str) -> Vec<String> {
    let (mut blocks, mut fenced) = (vec![String::new()], false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            blocks.push(String::new());
        } else if let Some(line) = if fenced { Some(line) } else { line.strip_prefix("    ") } {
            *blocks.last_mut().unwrap() += &format!("{line}\n");
        } else if !line.trim().is_empty() {
            blocks.push(String::new());
        }
    }
    blocks
}

#[tokio::test]
async fn every_run_file_of_the_repository_is_sound() {
    let is_run = |path: &PathBuf| is_run_file(&std::fs::read_to_string(path).unwrap());
    let mut files: Vec<PathBuf> = committed("*.toml").into_iter().filter(is_run).collect();
    assert!(files.iter().any(|file| file.ends_with("workers/python/examples/riddles.toml")), "{files:?}");
    assert!(files.len() >= 11, "{files:?}");
    let folder = tempfile::tempdir().unwrap();
    for (number, readme) in committed("*.md").into_iter().enumerate() {
        let text = std::fs::read_to_string(&readme).unwrap();
        for (block, text) in code(&text).iter().enumerate().filter(|(_, text)| is_run_file(text)) {
            let name = readme.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
            let file = folder.path().join(format!("{number}-{name}-{block}.toml"));
            std::fs::write(&file, text).unwrap();
            files.push(file);
        }
    }
    let files: Vec<String> = files.iter().map(|file| file.to_string_lossy().into_owned()).collect();
    let names: Vec<&str> = files.iter().map(String::as_str).collect();
    let output = run(&[&["check"], &names[..]].concat()).await;
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).matches(": sound").count(), files.len(), "{}", stdout(&output));
}

#[test]
fn the_code_of_a_text_is_found() {
    let text = "Words\n\n    name = 1\n\n    steps = 2\n\nWords\n```toml\nmodel = 3\n```\n    x = 4\n";
    let blocks: Vec<String> = code(text).into_iter().filter(|block| !block.is_empty()).collect();
    assert_eq!(blocks, ["name = 1\nsteps = 2\n", "model = 3\n", "x = 4\n"]);
    assert!(
        is_run_file("name = 'x'\nsteps = 1\n[model]\nkind = 'scripted'\n") && !is_run_file("name = 'x'\n")
    );
}

#[tokio::test]
async fn a_sound_run_file_is_summed_up_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    let riddles = std::fs::read_to_string(root().join("workers/python/examples/riddles.toml")).unwrap();
    std::fs::write(&file, riddles.replace("target/models/", "nowhere/")).unwrap();
    let output = run(&["check", &file.to_string_lossy()]).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stdout(&output);
    for words in [
        "32 a step: 4 groups of 8; 64 in flight at most",
        "280 of a rollout at most, of model.context = 288",
        "1 version at most (rollout.alpha = 1)",
        "20; 32 held-out prompts before the first and after the last",
        "torch; --exec COMMAND for environment larger, reward brevity",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(stderr(&output).contains("hf download"), "the model is not at hand: {}", stderr(&output));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "something was written");
}

#[tokio::test]
async fn mistakes_of_every_file_are_told_and_the_exit_code_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(run_file("counter.toml")).unwrap();
        assert!(text.contains(from), "{from}");
        let path = folder.path().join(name);
        std::fs::write(&path, text.replace(from, to)).unwrap();
        path.to_string_lossy().into_owned()
    };
    let two = written("two.toml", "group_size = 4", "group_size = 1\nmax_new_tokens = 0");
    let rows = written("rows.toml", "name = \"counter\"\nturns = 3", "name = \"counter\"\nturns = \"3\"");
    let sound = run_file("counter.toml").to_string_lossy().into_owned();
    let output = run(&["check", &two, &sound, &rows]).await;
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    for words in [
        "two.toml: ",
        "rollout.group_size = 1: ",
        "rollout.max_new_tokens = 0: ",
        "rows.toml: ",
        "environment.turns = \"3\": give a whole number",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(stdout(&output).contains("counter.toml: sound"), "{}", stdout(&output));
}

#[tokio::test]
async fn an_id_of_the_hub_is_answered_with_how_to_fetch_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    let riddles = std::fs::read_to_string(root().join("workers/python/examples/riddles.toml")).unwrap();
    std::fs::write(
        &file,
        riddles.replace("target/models/smollm2-135m-instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    )
    .unwrap();
    let into = folder.path().join("run");
    let output = run(&["up", &file.to_string_lossy(), "--dir", &into.to_string_lossy()]).await;
    let said = stderr(&output);
    assert!(!output.status.success(), "{said}");
    for words in [
        "model.path = \"Qwen/Qwen2.5-0.5B-Instruct\"",
        "hf download Qwen/Qwen2.5-0.5B-Instruct --local-dir models/Qwen2.5-0.5B-Instruct",
        "path = \"models/Qwen2.5-0.5B-Instruct\"",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!into.exists(), "a folder was left");
}

#[tokio::test]
async fn a_wrong_option_of_up_leaves_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("run");
    let file = run_file("counter.toml").to_string_lossy().into_owned();
    for (option, value) in [("--generate", "0"), ("--train", "0"), ("--ack-wait", "0"), ("--steps", "0")] {
        let output = run(&["up", &file, "--dir", &into.to_string_lossy(), option, value]).await;
        assert!(!output.status.success(), "{option} {value}: {}", stdout(&output));
        assert!(!into.exists(), "{option} {value} left a folder");
    }
}
