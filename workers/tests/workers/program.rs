//! A user's program beside a worker: it gets requests, dies, hangs, and prints nonsense, and none
//! of that is a reward.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millrace_schemas::env_step::{Settings, Speaker, Utterance};
use millrace_schemas::reward::{RewardDone, RewardRule, RewardTask, TurnResult};
use millrace_schemas::{OutcomeBody, PolicyVersion, Stage, Task, TaskBody};
use millrace_workers::program::{Program, ProgramError};
use millrace_workers::reward::Reward;
use millrace_workers::{Executor, Verdict};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

mod batch;

const PATIENCE: Duration = Duration::from_secs(60);

fn example() -> String {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/examples/riddles.py");
    format!("python3 {}", example.display())
}

/// A program whose one reward, `x`, answers each request with `line`, in which `$n` is the
/// process's own number.
fn shell(line: &str) -> String {
    format!(
        r#"sh -c 'echo "{{\"millrace\": 1, \"rewards\": [\"x\"]}}"; while read question; do n=$$; {line}; done'"#
    )
}

async fn start(command: &str) -> Arc<Program> {
    Arc::new(timeout(PATIENCE, Program::start(command, 2)).await.unwrap().unwrap())
}

async fn score(program: &Arc<Program>, pool: &str, said: &str) -> Verdict {
    let settings = Settings::from([("words".to_owned(), serde_json::json!(4))]);
    let conversation = vec![Utterance { speaker: Speaker::Policy, text: said.to_owned() }];
    let task = Task {
        run: "own".parse().unwrap(),
        key: "g1r0a0-w0".parse().unwrap(),
        pool: pool.parse().unwrap(),
        version: PolicyVersion(1),
        evaluate: false,
        body: TaskBody::Reward(RewardTask {
            settings: if pool == "x" { Settings::new() } else { settings },
            conversation,
            ..RewardTask::new(
                RewardRule::Custom,
                vec![TurnResult { reward: 1.0, valid: true, tokens: 3 }],
                true,
            )
        }),
    };
    let reward = Reward::asking(Some(program.clone()));
    timeout(PATIENCE, reward.execute(task, CancellationToken::new())).await.unwrap()
}

fn scored(verdict: &Verdict) -> f64 {
    match verdict {
        Verdict::Done(OutcomeBody::Reward(RewardDone { score, .. }), _) => *score,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_program_answers_for_what_it_offers() {
    let program = start(&example()).await;
    assert_eq!(program.pools(Stage::Reward), ["brevity".parse().unwrap()]);
    assert_eq!(program.pools(Stage::EnvStep), ["larger".parse().unwrap()]);
    assert_eq!(scored(&score(&program, "brevity", "31, surely.").await), 1.0);
    assert_eq!(scored(&score(&program, "brevity", "I should say that it is 31.").await), 0.0);
    // The example has no such reward, and refuses for good.
    assert!(
        matches!(score(&program, "taste", "").await, Verdict::Poison(reason) if reason.contains("taste"))
    );
}

#[tokio::test]
async fn a_program_that_dies_is_replaced_and_scores_nothing() {
    let program = start(&shell(r#"kill -9 $n"#)).await;
    for _ in 0..3 {
        match score(&program, "x", "").await {
            Verdict::RetryAfter(_, reason) => assert!(reason.contains("died"), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    // It dies while it is idle: the next request goes to another copy.
    let program = start(&shell(r#"echo "{\"score\": $n}""#)).await;
    let first = scored(&score(&program, "x", "").await);
    let killed = std::process::Command::new("kill").args(["-9", &first.to_string()]).status().unwrap();
    assert!(killed.success());
    let mut verdict = score(&program, "x", "").await;
    if matches!(verdict, Verdict::RetryAfter(..)) {
        // Its end was not seen yet.
        verdict = score(&program, "x", "").await;
    }
    assert_ne!(scored(&verdict), first);
}

#[tokio::test]
async fn a_program_that_hangs_is_killed_with_its_request() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pid");
    let program = start(&shell(&format!("echo $n > {}; sleep 1000", pids.display()))).await;
    let asked = {
        let program = program.clone();
        tokio::spawn(async move { score(&program, "x", "").await })
    };
    let pid = timeout(PATIENCE, written(&pids)).await.unwrap();
    asked.abort();
    let gone = async {
        while Path::new(&format!("/proc/{pid}/cmdline")).exists() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("a program that hangs is killed");
}

async fn written(path: &PathBuf) -> String {
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
            _ => sleep(Duration::from_millis(5)).await,
        }
    }
}

#[tokio::test]
async fn nonsense_is_no_answer() {
    for line in [r#"echo "31""#, r#"echo "{\"score\": NaN}""#, r#"echo "{\"score\": \"1\"}""#, "echo"] {
        let program = start(&shell(line)).await;
        match score(&program, "x", "").await {
            Verdict::RetryAfter(_, reason) => assert!(reason.contains("standard error"), "{line}: {reason}"),
            other => panic!("{line}: {other:?}"),
        }
    }
    let program = start(&shell(r#"echo "{\"step\": {\"text\": \"hm\"}}""#)).await;
    assert!(matches!(score(&program, "x", "").await, Verdict::Poison(_)));
}

#[tokio::test]
async fn a_program_without_a_valid_offer_is_refused() {
    for (command, said) in [
        ("true", "died"),
        ("no-such-program-here", "died"),
        ("echo hello", "hello"),
        (r#"echo '{"millrace": 2}'"#, "speaks 1"),
        (r#"echo '{"millrace": 1, "rewards": ["No Name"]}'"#, "a-z"),
    ] {
        let error: ProgramError = timeout(PATIENCE, Program::start(command, 1)).await.unwrap().unwrap_err();
        assert!(error.to_string().contains(said), "{command}: {error}");
    }
}
