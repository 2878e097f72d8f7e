//! `code`: the last block of code of the answer, run against tests in a sandbox. 1 when all pass,
//! else 0; or the share that pass.

use std::time::Duration;

use millrace_sandbox::{End, File, Job, Limits, Protection, Ran, Run};
use millrace_schemas::reward::code::{CodeSettings, CodeTest, Language, Wall, tests_of};
use millrace_schemas::reward::{RewardDone, RewardTask};
use serde_json::Value;

use super::tools::CodeTools;
use super::{RewardError, answer, settings};
use crate::runtime::wait_for_slot;

/// Runs a test beside the answer's process where a test is code: see there.
const DRIVER: &str = concat!(include_str!("code/data.py"), include_str!("code/driver.py"));
/// The answer's code.
const PROGRAM: &str = "answer.py";
/// Characters of a program's last words that are repeated.
const WORDS: usize = 300;

/// What ended a run or kept it from its start, where `wall_ms` did not.
const TOGETHER: &str = "the tests together took longer than total_ms";

/// The score.
///
/// # Errors
/// The settings or the row cannot work, or there was no sandbox. Whatever the answer does is a
/// score.
pub(super) async fn score(task: &RewardTask, tools: &CodeTools) -> Result<RewardDone, RewardError> {
    let settings: CodeSettings = settings(task)?;
    let tests = answer::demanded(task, &settings.tests, settings.tests_field.as_ref(), tests_of)?;
    let names: &[&str] = match settings.language {
        Language::Python => &["python", "py", "python3"],
    };
    let Some(program) = answer::last_block(answer::last(task)?, names) else {
        return Ok(wrong("the answer has no whole block of code"));
    };
    let marks: Vec<String> =
        tests.iter().map(|_| format!("passed {:032x}", uuid::Uuid::now_v7().as_u128())).collect();
    let inputs: Vec<String> =
        tests.iter().zip(&marks).map(|(test, mark)| input(test, mark, wanted(task))).collect();
    let job = job(program, (&tests, inputs), &settings, tools);
    let (mut passed, mut fault) = (0, String::new());
    let slot = wait_for_slot(tools.sandbox()?.slot()).await;
    let results = slot
        .run_within(&job, Duration::from_millis(settings.total_ms), |at, ran| {
            let cut_off = ran.end == End::Wall && ran.wall_ms < settings.wall_ms;
            let judged = if cut_off { Err(TOGETHER.to_owned()) } else { judge(&tests[at], &marks[at], ran) };
            match judged {
                Ok(()) => passed += 1,
                Err(reason) if fault.is_empty() => fault = format!("test {}: {reason}", at + 1),
                Err(_) => {}
            }
            settings.partial || fault.is_empty()
        })
        .await?;
    // Tests that it left no time for are failed. An attempt that waited for them would end without a score,
    // and so would the next.
    let reached = results.runs.len();
    if fault.is_empty() && reached < tests.len() {
        fault = format!("test {}: {TOGETHER}", reached + 1);
    }
    if !results.lacks.is_empty() {
        fault = format!("{fault} (scored without {:?})", results.lacks);
    }
    let share = f64::from(passed) / tests.len() as f64;
    Ok(RewardDone { score: if settings.partial { share } else { share.floor() }, reason: fault })
}

fn wrong(reason: &str) -> RewardDone {
    RewardDone { score: 0.0, reason: reason.to_owned() }
}

/// The row's function, which may have the name of one of Python's.
fn wanted(task: &RewardTask) -> &str {
    let name = task.row.get("entry_point").and_then(Value::as_str).unwrap_or_default().trim();
    if name.chars().all(|c| c.is_alphanumeric() || c == '_') { name } else { "" }
}

/// What a run reads; the driver takes the mark and the function's name before a test of code.
fn input(test: &CodeTest, mark: &str, wanted: &str) -> String {
    match &test.code {
        None => test.stdin.clone(),
        Some(code) => format!("{mark}\n{wanted}\n{code}"),
    }
}

fn job(
    program: String,
    (tests, inputs): (&[CodeTest], Vec<String>),
    settings: &CodeSettings,
    tools: &CodeTools,
) -> Job {
    const MIB: u64 = 1024 * 1024;
    let command =
        |words: &[&str]| [&[tools.python()], words].concat().into_iter().map(str::to_owned).collect();
    let run = |(test, stdin): (&CodeTest, String)| match &test.code {
        // Without the packages of a user, and leaving no compiled files.
        None => Run { command: command(&["-s", "-B", PROGRAM]), stdin },
        // Isolated: what the answer writes into its folder is nothing that the test imports.
        Some(_) => Run { command: command(&["-I", "-B", "driver.py", "test"]), stdin },
    };
    // The test's own process is not the answer's.
    let testers = u64::from(tests.iter().any(|test| test.code.is_some()));
    let file = |name: &str, text: String| File { name: name.to_owned(), text };
    Job {
        files: vec![file(PROGRAM, program), file("driver.py", DRIVER.to_owned())],
        runs: tests.iter().zip(inputs).map(run).collect(),
        limits: Limits {
            wall_ms: settings.wall_ms,
            cpu_ms: settings.cpu_ms,
            memory_bytes: settings.memory_mib * MIB,
            disk_bytes: settings.disk_mib * MIB,
            output_bytes: settings.output_kib * 1024,
            processes: settings.processes + testers,
        },
        read: tools.read().to_vec(),
        may_lack: settings.may_lack.iter().map(|wall| protection(*wall)).collect(),
    }
}

const fn protection(wall: Wall) -> Protection {
    match wall {
        Wall::Landlock => Protection::Landlock,
        Wall::Seccomp => Protection::Seccomp,
    }
}

/// Whether a run passes its test, or why not.
fn judge(test: &CodeTest, mark: &str, ran: &Ran) -> Result<(), String> {
    if ran.end != End::Exit(0) {
        let output: Vec<char> = ran.stderr.trim_end().chars().collect();
        let words: String = output[output.len().saturating_sub(WORDS)..].iter().collect();
        return Err(format!("{} {words}", ran.end.reason()).trim_end().to_owned());
    }
    match &test.stdout {
        Some(expected) if lines(expected) == lines(&ran.stdout) => Ok(()),
        Some(_) => Err("it wrote something else".to_owned()),
        None if ran.stdout.lines().last() == Some(mark) => Ok(()),
        None => Err("it ended before the test did".to_owned()),
    }
}

/// Lines without the white space at their ends, up to the last that has anything else.
fn lines(text: &str) -> Vec<&str> {
    text.trim_end().lines().map(str::trim_end).collect()
}
