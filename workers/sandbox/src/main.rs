//! `millrace-sandbox`: reads a job from its standard input, runs it behind walls, and says what
//! came of it. Workers start it; nobody else needs to.

use std::io::{BufRead, Write};

use anyhow::Context;
use millrace_sandbox::{Job, Line};

mod inside;

use inside::{init, launch};

/// The word by which the sandbox starts itself as the first process within.
const INIT: &str = "init";

fn main() {
    let within = std::env::args().nth(1).is_some_and(|word| word == INIT);
    let done = read_job().and_then(|job| if within { init::run(&job) } else { launch::run(&job) });
    if let Err(error) = done {
        say(&Line::Failed(format!("{error:#}")));
        std::process::exit(1);
    }
}

/// The job: the first line of the standard input. The rest is left alone, so that its end can be
/// seen.
fn read_job() -> anyhow::Result<Job> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("failed to read the job")?;
    serde_json::from_str(&line).context("failed to read the job")
}

/// Tells the worker. Nobody is left to hear it where that fails.
fn say(line: &Line) {
    let mut text = serde_json::to_vec(line).expect("a line holds only what JSON can express");
    text.push(b'\n');
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(&text).and_then(|()| output.flush());
}
