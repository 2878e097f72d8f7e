//! `millrace rollouts`, and other commands that read the folder of a `millrace up` that has ended.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use super::support::{Up, changed_run_file, lives, millrace, run, stderr, stdout};

const RUN: &str = "frozen-lake-surroundings";

/// A short run on a frozen lake, over.
async fn played() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let changes = [
        ("steps = 80", "steps = 3"),
        ("groups_per_step = 32", "groups_per_step = 4"),
        ("prompts = 256", "prompts = 8"),
        // Four moves from the goal, of eight: some reach it by chance, and some do not.
        ("size = 4 ", "size = 3 "),
    ];
    let file = changed_run_file("frozen-lake-surroundings.toml", folder.path(), &changes);
    let root = folder.path().join("it");
    std::fs::create_dir(&root).unwrap();
    let mut up = Up::start_file(&root, &file, &[]);
    assert!(up.ended().await.success(), "{up}");
    let dir = root.to_string_lossy().into_owned();
    (folder, dir)
}

async fn rollouts(dir: &str, args: &[&str]) -> Output {
    let output = run(&[&["rollouts", "--dir", dir], args].concat()).await;
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

async fn rows(dir: &str, args: &[&str]) -> Vec<Value> {
    let text = stdout(&rollouts(dir, &[&["--json"], args].concat()).await);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The processes of this folder's queue: their command lines name its files.
fn servers(dir: &str) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let serves = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let program = Path::new(words[0].as_ref()).file_name().is_some_and(|name| name == "nats-server");
        program && words.iter().any(|word| word.starts_with(dir)) && lives(*pid)
    };
    numbers.filter(serves).collect()
}

#[tokio::test]
async fn what_was_said_in_a_run_that_is_over_is_shown_as_text() {
    let (_folder, dir) = played().await;
    let text = stdout(&rollouts(&dir, &["--best", "--limit", "3"]).await);
    let heads: Vec<&str> = text.lines().filter(|line| line.starts_with('g')).collect();
    assert_eq!(heads.len(), 3, "{text}");
    assert!(heads.iter().all(|head| head.contains("reward ")), "{text}");
    assert!(text.contains("  env   | ") && text.contains("player at row "), "{text}");
    let moves = ["left", "down", "right", "up"].map(|action| format!("  model | {action}"));
    assert!(text.lines().any(|line| moves.iter().any(|action| line == action)), "{text}");
    assert!(text.contains("  env_return "), "{text}");

    let all = rows(&dir, &[RUN, "--limit", "1000"]).await;
    assert!(all.len() >= 3 * 4 * 8, "{} of at least those that were trained", all.len());
    let trained = all.iter().filter(|row| row["outcome"]["state"] == "trained");
    assert_eq!(trained.count(), 3 * 4 * 8);
    all.iter().for_each(is_whole);
    let evaluated = rows(&dir, &["--evaluation", "--limit", "1000"]).await;
    assert!(evaluated.iter().all(|row| row["outcome"]["state"] == "evaluated"), "{evaluated:?}");
    assert_eq!(evaluated.len(), 2 * 2 * 8, "before and after, at two temperatures");
    let first = rows(&dir, &["--version", "0", "--limit", "1000"]).await;
    assert!(!first.is_empty() && first.len() < all.len());
    assert!(first.iter().all(|row| row["versions"].as_array().unwrap().contains(&0.into())));
    let group = rows(&dir, &["--limit", "99", "--group", &all[0]["group"].to_string()]).await;
    assert!(group.iter().all(|row| row["prompt"] == all[0]["prompt"]) && group.len() >= 8, "{group:?}");

    by_reward(&dir).await;
    assert_eq!(servers(&dir), Vec::<u32>::new(), "nats-server ends with the command");
}

/// A row agrees with itself, and with the game that was played.
fn is_whole(row: &Value) {
    let messages = row["messages"].as_array().unwrap();
    let (mut place, mut reward) = (None, 0.0);
    for pair in messages.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        assert_ne!(before["speaker"], after["speaker"], "{row}");
        reward += after["reward"].as_f64().unwrap_or(0.0);
        place = place_in(before).or(place);
        if let (Some(from), "policy") = (place, after["speaker"].as_str().unwrap()) {
            let tokens = after["tokens"].as_array().unwrap();
            assert_eq!(tokens.len(), after["logprobs"].as_array().unwrap().len(), "{row}");
            let sampled: u64 =
                after["segments"].as_array().unwrap().iter().map(|s| s["tokens"].as_u64().unwrap()).sum();
            assert_eq!(sampled, tokens.len() as u64, "{row}");
            place = Some(moved(from, after["text"].as_str().unwrap()));
        } else if let (Some(expected), Some(shown)) = (place, place_in(after)) {
            assert_eq!(shown, expected, "the move leads where its text says: {row}");
        }
    }
    assert_eq!(row["reward"].as_f64().unwrap(), reward, "{row}");
    assert_eq!(row["scores"][0]["rule"], "env_return", "{row}");
}

/// Row and column that an observation shows.
fn place_in(message: &Value) -> Option<(u32, u32)> {
    let text = message["text"].as_str()?.lines().last()?.strip_prefix("player at row ")?;
    let (row, rest) = text.split_once(", column ")?;
    Some((row.parse().ok()?, rest.split(':').next()?.parse().ok()?))
}

fn moved((row, column): (u32, u32), action: &str) -> (u32, u32) {
    match action {
        "left" => (row, column.max(2) - 1),
        "right" => (row, column.min(2) + 1),
        "up" => (row.max(2) - 1, column),
        "down" => (row.min(2) + 1, column),
        other => panic!("no move: {other:?}"),
    }
}

async fn by_reward(dir: &str) {
    let rewards = async |order: &str| -> Vec<f64> {
        let rows = rows(dir, &[order, "--limit", "50"]).await;
        rows.iter().map(|row| row["reward"].as_f64().unwrap()).collect()
    };
    let (best, worst) = (rewards("--best").await, rewards("--worst").await);
    assert!(best.is_sorted_by(|a, b| a >= b) && worst.is_sorted(), "{best:?} {worst:?}");
    assert!(best[0] >= worst[0] && best[0] == 1.0 && worst[0] == 0.0, "some reach the goal: {best:?}");
}

#[tokio::test]
async fn commands_read_a_folder_whose_up_has_ended_one_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path(), &["--steps", "4"]);
    assert!(up.ended().await.success(), "{up}");
    let dir = folder.path().to_string_lossy().into_owned();

    let at_once = |args: &[&str]| {
        let mut command: Command = millrace();
        command.args(args).args(["--dir", &dir]).output()
    };
    let (status, ledger, list, export, dead, said) = tokio::join!(
        at_once(&["status"]),
        at_once(&["ledger", "--audit"]),
        at_once(&["list"]),
        at_once(&["log", "export", "--run", "counter"]),
        at_once(&["dead", "ls"]),
        at_once(&["rollouts", "--limit", "2"]),
    );
    for (output, words) in [
        (status, "counter: finished, v4 of 4"),
        (ledger, "balanced"),
        (list, "counter: finished"),
        (export, "submitted"),
        (dead, "no dead letters"),
        (said, "  model | "),
    ] {
        let output = output.unwrap();
        assert!(output.status.success() && stdout(&output).contains(words), "{words}: {}", stderr(&output));
    }
    let watched = run(&["watch", "--dir", &dir]).await;
    assert!(watched.status.success(), "{}", stderr(&watched));
    assert_eq!(servers(&dir), Vec::<u32>::new(), "they end with their commands");

    let unknown = run(&["rollouts", "cuonter", "--dir", &dir]).await;
    assert!(!unknown.status.success());
    for words in ["run=cuonter", "which has counter"] {
        assert!(stderr(&unknown).contains(words), "{words}: {}", stderr(&unknown));
    }
    let paused = run(&["pause", "counter", "--dir", &dir]).await;
    assert!(!paused.status.success(), "it only reads");
    assert!(stderr(&paused).contains("no `millrace up` runs in"), "{}", stderr(&paused));

    // The folder is as it was: the same command starts over.
    let mut again = Up::start(folder.path(), &["--steps", "5", "--again"]);
    assert!(again.ended().await.success(), "{again}");
}
