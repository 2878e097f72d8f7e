//! Requests in batches: what a deadly or hanging one does to those that were sent with it, and what a
//! step costs.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use millrace_schemas::PoolName;
use millrace_schemas::env_step::Settings;
use millrace_workers::program::{Answer, EnvAnswer, Program, ProgramError, ProgramRequest};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, timeout};

use super::PATIENCE;

/// Does what it is told; `BATCH` and `SECONDS` are set by the test.
const OBEYS: &str = r#"
import os, signal, sys, time
sys.path.insert(0, "PACKAGE")
import millrace
from millrace import _serve

@millrace.environment("obeys")
class Obeys:
    def reset(self, seed):
        return "go"

    def step(self, said):
        if said == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if said == "sleep":
            time.sleep(1000)
        if said == "hang":
            # As native code that never returns to Python.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            time.sleep(1000)
        return (str(time.process_time()) if said == "cpu" else said), 0.0, False

_serve.BATCH = BATCH
millrace.serve(seconds=SECONDS)
"#;

/// The program, in one copy, and the folder that it is in.
async fn obeying(batch: usize, seconds: f64) -> (Arc<Program>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/python");
    let text = OBEYS.replace("PACKAGE", package).replace("BATCH = BATCH", &format!("BATCH = {batch}"));
    let script = folder.path().join("obeys.py");
    std::fs::write(&script, text.replace("SECONDS", &seconds.to_string())).unwrap();
    let command = format!("python3 {}", script.display());
    let started = Program::start(&command, 1);
    (Arc::new(timeout(PATIENCE, started).await.unwrap().unwrap()), folder)
}

async fn step(program: &Program, said: &str, seed: usize) -> Result<Answer, ProgramError> {
    step_from(program, said, json!({ "split": "train", "seed": seed, "said": [] })).await
}

async fn step_from(program: &Program, said: &str, state: Value) -> Result<Answer, ProgramError> {
    let (environment, settings) = (&"obeys".parse::<PoolName>().unwrap(), &Settings::new());
    let request = ProgramRequest::Step { environment, settings, state, said };
    timeout(PATIENCE, program.ask(&request)).await.unwrap()
}

fn told(answer: Result<Answer, ProgramError>) -> String {
    match answer.unwrap() {
        Answer::Step(EnvAnswer { text, .. }) => text,
        other => panic!("{other:?}"),
    }
}

/// Lets the batches grow to their full size.
async fn warm_up(program: &Program) {
    for _ in 0..4 {
        join_all((0..64).map(|i| step(program, "x", i)))
            .await
            .into_iter()
            .for_each(|answer| drop(told(answer)));
    }
}

#[tokio::test]
async fn each_request_of_a_batch_gets_its_own_answer() {
    let (program, _folder) = obeying(64, 60.0).await;
    warm_up(&program).await;
    let words: Vec<String> = (0..500).map(|i| format!("word {i} \u{1F600}\n")).collect();
    let answers = join_all(words.iter().enumerate().map(|(i, said)| step(&program, said, i))).await;
    let answers: Vec<String> = answers.into_iter().map(told).collect();
    assert_eq!(answers, words);
    // Both pipes are full before either side has read all.
    let large = "x".repeat(200_000);
    let answers = join_all((0..64).map(|i| step(&program, &large, i))).await;
    assert!(answers.into_iter().map(told).all(|text| text == large));
}

#[tokio::test]
async fn a_deadly_request_fails_alone() {
    let (program, _folder) = obeying(64, 60.0).await;
    warm_up(&program).await;
    let said = |i: usize| if i == 20 { "die" } else { "lives" };
    let answers = join_all((0..64).map(|i| step(&program, said(i), i))).await;
    for (i, answer) in answers.into_iter().enumerate() {
        if i == 20 {
            assert_eq!(answer, Err(ProgramError::Died));
        } else {
            assert_eq!(told(answer), "lives", "{i}");
        }
    }
}

#[tokio::test]
async fn a_request_that_hangs_fails_where_it_hung_and_keeps_nobody_waiting() {
    let (program, _folder) = obeying(64, 0.3).await;
    warm_up(&program).await;
    let said = |i: usize| if i == 0 { "sleep" } else { "awake" };
    let answers = join_all((0..64).map(|i| step(&program, said(i), i))).await;
    for (i, answer) in answers.into_iter().enumerate() {
        match answer.unwrap() {
            Answer::Refused(refusal) if i == 0 => {
                for words in ["no answer within 0.3 s", "time.sleep(1000)"] {
                    assert!(refusal.reason.contains(words), "{}", refusal.reason);
                }
            }
            Answer::Step(EnvAnswer { text, .. }) if i > 0 => assert_eq!(text, "awake"),
            other => panic!("{i}: {other:?}"),
        }
    }
}

/// Where Python cannot be interrupted, the others are answered by another copy meanwhile.
#[tokio::test]
async fn those_behind_a_hung_copy_are_answered_by_another() {
    let (program, _folder) = obeying(64, 60.0).await;
    warm_up(&program).await;
    let hung = {
        let program = program.clone();
        tokio::spawn(async move { step(&program, "hang", 99).await })
    };
    let answers = join_all((0..64).map(|i| step(&program, "goes on", i))).await;
    assert!(answers.into_iter().map(told).all(|text| text == "goes on"));
    assert!(!hung.is_finished());
    hung.abort();
}

/// Processor time of this process so far.
fn own_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

async fn program_cpu(program: &Program) -> f64 {
    told(step(program, "cpu", 0).await).parse().unwrap()
}

/// `cargo test --release -p millrace-workers --test workers -- --ignored --nocapture what_a_step_costs`
#[tokio::test]
#[ignore = "measures"]
async fn what_a_step_costs() {
    const STEPS: usize = 32_000;
    for batch in [1, 64] {
        let (program, _folder) = obeying(batch, 60.0).await;
        warm_up(&program).await;
        let (own, others, begun) = (own_cpu(), program_cpu(&program).await, Instant::now());
        let one = async |seed: usize| {
            let mut state = json!({ "split": "train", "seed": seed, "said": [] });
            for turn in 1..=STEPS / 64 {
                let Answer::Step(answer) = step_from(&program, "x", state).await.unwrap() else { panic!() };
                // Episodes of eight turns.
                let next = json!({ "split": "train", "seed": seed + turn, "said": [] });
                state = if turn % 8 == 0 { next } else { answer.state };
            }
        };
        join_all((0..64).map(one)).await;
        let took = begun.elapsed().as_secs_f64();
        let (own, others) = ((own_cpu() - own).as_secs_f64(), program_cpu(&program).await - others);
        let cost = |seconds: f64| format!("{:.0} µs", seconds / STEPS as f64 * 1e6);
        let per_core = STEPS as f64 / (own + others);
        println!(
            "batch={batch}: {:.0} steps/s, {per_core:.0} steps/s of a core; a step costs the worker {}, the program {}",
            STEPS as f64 / took,
            cost(own),
            cost(others)
        );
    }
}
