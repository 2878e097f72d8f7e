//! `millrace-sandbox`: reads a job from its standard input, runs it behind walls, and says what
//! came of it. Workers start it; nobody else needs to.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use anyhow::Context;
use millrace_sandbox::live::wire::{self, FromInit, FromKeeper};
use millrace_sandbox::{Job, Line, groups};
use serde::Serialize;

mod inside;

use inside::live::{dial, enter, house, image, keep, pack, supervise, tend, terminal};
use inside::{init, launch, signals};

/// The word by which the sandbox starts itself as the first process within.
const INIT: &str = "init";

/// The words for the parts of a long-lived sandbox: the keeper of layers and the outer process, which
/// the owner starts; the first process within, before and behind the walls; a command's supervisor,
/// with pipes or for a terminal; what becomes a command in a terminal.
pub(crate) const KEEP: &str = "keep";
pub(crate) const ENTER: &str = "enter";
pub(crate) const HOUSE: &str = "house";
pub(crate) const TEND: &str = "tend";
pub(crate) const SUPERVISE: &str = "supervise";
pub(crate) const SUPERVISE_TERMINAL: &str = "supervise-terminal";
pub(crate) const TERMINAL: &str = "terminal";
/// A layer to the standard output, and from the standard input.
const PACK: &str = "pack";
const UNPACK: &str = "unpack";
/// A connection to a port of a sandbox.
const DIAL: &str = "dial";
/// A layer of an image, into a folder.
const UNPACK_IMAGE: &str = "unpack-image";

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut joined = Ok(());
    if words.first().is_some_and(|word| word == groups::JOIN) && words.len() > 1 {
        let folder: Vec<String> = words.drain(..2).skip(1).collect();
        joined = groups::join(folder[0].as_ref()).with_context(|| format!("failed to join {folder:?}"));
    }
    let (part, rest) = words.split_first().map_or(("", &[][..]), |(part, rest)| (part.as_str(), rest));
    let done = match part {
        SUPERVISE => return supervise::run(rest),
        SUPERVISE_TERMINAL => return supervise::run_in_terminal(rest),
        TERMINAL => return terminal::run(rest),
        // Its own words went to the owner where it could be told.
        HOUSE => house::run(),
        TEND => tend::run(rest),
        ENTER => {
            let ready = joined.and_then(|()| signals::give_back());
            heard(ready.and_then(|()| enter::run(rest.first().map_or("", String::as_str))))
        }
        PACK | UNPACK | UNPACK_IMAGE | DIAL => helps(part, rest).inspect_err(|error| {
            let _ = write!(std::io::stderr(), "{error:#}");
        }),
        KEEP => keep::run().inspect_err(|error| say_line(&FromKeeper::Failed(format!("{error:#}")))),
        INIT => read_job().and_then(|job| init::run(&job)).inspect_err(failed),
        _ => {
            let ready = joined.and_then(|()| signals::give_back());
            ready.and_then(|()| read_job()).and_then(|job| launch::run(&job)).inspect_err(failed)
        }
    };
    if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn helps(part: &str, rest: &[String]) -> anyhow::Result<()> {
    if part == DIAL {
        let [keeper, outer, port] = rest else { anyhow::bail!("failed to read whose port to connect to") };
        return dial::run(keeper, outer, port);
    }
    if part == UNPACK_IMAGE {
        let [folder, bytes, files] = rest else { anyhow::bail!("failed to read the folder and its bounds") };
        return image::unpack(folder, bytes, files);
    }
    let [keeper, layer] = rest else { anyhow::bail!("failed to read the keeper's and the layer's numbers") };
    if part == PACK { pack::pack(keeper, layer) } else { pack::unpack(keeper, layer) }
}

fn failed(error: &anyhow::Error) {
    say(&Line::Failed(format!("{error:#}")));
}

/// Tells the owner of a long-lived sandbox why there is none.
fn heard(entered: anyhow::Result<()>) -> anyhow::Result<()> {
    entered.inspect_err(|error| {
        let told = FromInit::Failed(format!("{error:#}"));
        let _ = tend::owner().map(|mut owner| wire::write(&mut owner, &told));
    })
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
    say_line(line);
}

/// Writes a line of JSON to the standard output.
pub(crate) fn say_line(line: &impl Serialize) {
    let mut text = serde_json::to_vec(line).expect("a line holds only what JSON can express");
    text.push(b'\n');
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(&text).and_then(|()| output.flush());
}
