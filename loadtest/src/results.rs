//! `millrace-loadtest results`: every table and picture, each part in a process of its own. What one part fails at holds up
//! no other. A part that has figures of this commit is not measured again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::bench::origin;

/// A part, in the order in which they are measured: what takes minutes before what takes hours.
struct Part {
    name: &'static str,
    shows: &'static str,
    command: &'static [&'static str],
    /// It needs `--model`.
    model: bool,
}

const fn part(name: &'static str, shows: &'static str, command: &'static [&'static str]) -> Part {
    Part { name, shows, command, model: false }
}

const fn with_model(name: &'static str, shows: &'static str, command: &'static [&'static str]) -> Part {
    Part { name, shows, command, model: true }
}

const PARTS: [Part; 19] = [
    part(
        "queue",
        "whole lives of tasks beside their bare messages and raw put, pull and ack",
        &["bench", "queue"],
    ),
    part("limits", "what one coordinator and one nats-server bear", &["bench", "limits"]),
    part("state", "what the coordinator's state costs", &["bench", "state"]),
    part("durable", "durable rollouts a second; what kill -9 loses", &["bench", "durable"]),
    with_model("generate", "tokens sampled, beside vLLM, transformers and llama.cpp", &["bench", "generate"]),
    with_model("train", "an optimiser step, beside PyTorch and transformers", &["bench", "train"]),
    with_model("weights", "a version of the weights on its way", &["bench", "weights"]),
    with_model("gateway", "what the gateway adds to a call of an agent", &["bench", "gateway"]),
    part("pictures", "speed-up and idle GPUs, drawn", &["headlines"]),
    part("drain", "what a drain costs", &["bench", "drain"]),
    part(
        "scale",
        "a fleet that is scaled, beside a static one and KEDA's rule",
        &["bench", "scale", "--parts", "rules,interruptions,trace"],
    ),
    part(
        "failures",
        "a fleet of 256 workers that are killed",
        &["bench", "scale", "--parts", "failures", "--groups", "169", "--ack-wait", "6"],
    ),
    part("division", "time division on 128 devices", &["bench", "division"]),
    part("peers", "beside Ray, Celery, JetStream and TransferQueue", &["bench", "peers"]),
    part("mechanisms", "redundant groups, asynchrony, dynamic sampling", &["bench", "mechanisms"]),
    part("recipes", "what staleness costs", &["bench", "recipes"]),
    part("learn", "the shipped examples over three seeds", &["bench", "learn"]),
    part("headlines", "published results that scheduling decides", &["headlines"]),
    part("chaos", "ten minutes of faults on real processes", &["chaos"]),
];

/// What to measure, and where it goes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these parts, by name. Default: all, which takes hours
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Measure parts again that have figures of this commit
    #[arg(long)]
    again: bool,
    /// A model directory
    #[arg(long, default_value = "target/models/smollm2-135m-instruct")]
    model: PathBuf,
    /// Where tables, pictures and figures go
    #[arg(long, default_value = "loadtest/results")]
    dir: PathBuf,
    /// Where the parts write what they say meanwhile
    #[arg(long, default_value = "target/results")]
    logs: PathBuf,
}

/// How a part was measured the last time.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    name: String,
    commit: String,
    minutes: f64,
    /// Why there are no figures.
    failed: Option<String>,
}

/// Measures, and writes an index.
///
/// # Errors
/// A part's name is none, or a folder cannot be written. A part that fails is in the index, and in the
/// exit code.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let known = || PARTS.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
    for name in &args.only {
        ensure!(PARTS.iter().any(|part| part.name == name), "--only {name}: name some of {}", known());
    }
    for folder in [&args.dir, &args.logs] {
        fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    }
    let index = args.dir.join("index.json");
    let mut measured: Vec<Measured> = match fs::read(&index) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).with_context(|| format!("{} is no index", index.display()))?
        }
        Err(_) => Vec::new(),
    };
    let commit = origin::commit();
    // Of two trees with changes nobody knows whether they are the same.
    let is_clean = commit.as_ref().is_some_and(|commit| !commit.contains(' '));
    let mut failed = false;
    for part in
        PARTS.iter().filter(|part| args.only.is_empty() || args.only.iter().any(|name| name == part.name))
    {
        let before = measured.iter().find(|before| before.name == part.name);
        let stands = |before: &Measured| before.failed.is_none() && Some(&before.commit) == commit.as_ref();
        if !args.again && is_clean && before.is_some_and(stands) {
            println!("{}: has figures of this commit", part.name);
            continue;
        }
        println!("{}: {} …", part.name, part.shows);
        let (since, result) = (Instant::now(), measure(part, args));
        let minutes = since.elapsed().as_secs_f64() / 60.0;
        let why = result.err().map(|error| format!("{error:#}"));
        println!(
            "{}: {minutes:.1} minutes{}",
            part.name,
            why.as_deref().map(|why| format!("; {why}")).unwrap_or_default()
        );
        failed |= why.is_some();
        measured.retain(|before| before.name != part.name);
        let (name, commit) = (part.name.to_owned(), commit.clone().unwrap_or_else(|| "unknown".to_owned()));
        measured.push(Measured { name, commit, minutes, failed: why });
        // After each: who interrupts it keeps what was measured.
        fs::write(&index, serde_json::to_string_pretty(&measured)? + "\n")?;
        fs::write(args.dir.join("README.md"), page(&measured, &args.dir))?;
    }
    println!("in {}", args.dir.join("README.md").display());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Plays one part by this very program.
fn measure(part: &Part, args: &Args) -> anyhow::Result<()> {
    ensure!(
        !part.model || args.model.is_dir(),
        "{} is no model; `make model` puts one there",
        args.model.display()
    );
    let log = args.logs.join(format!("{}.log", part.name));
    let file = File::create(&log).with_context(|| format!("failed to write {}", log.display()))?;
    let mut command = Command::new(std::env::current_exe().context("failed to find this program")?);
    command.args(part.command);
    match part.name {
        "pictures" => command.arg("--plots").arg(&args.dir),
        name => command.arg("--out").arg(args.dir.join(format!("{name}.json"))),
    };
    if part.model {
        command.arg("--model").arg(&args.model);
    }
    let status = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).status()?;
    ensure!(status.success(), "{status}; see {}", log.display());
    Ok(())
}

fn page(measured: &[Measured], dir: &Path) -> String {
    let mut page = "# loadtest/results\n\nMade by `millrace-loadtest results`, or some parts of it by `--only`. Each page has its command, its commit \
         and the machine; the figures are beside it as JSON, and `index.json` is this table.\n\n\
         | part | shows | commit | minutes | |\n|---|---|---|---|---|\n"
        .to_owned();
    for part in &PARTS {
        let row = match measured.iter().find(|measured| measured.name == part.name) {
            None => format!("| {} | {} | – | – | not measured yet |\n", part.name, part.shows),
            Some(Measured { commit, minutes, failed: Some(why), .. }) => {
                format!("| {} | {} | {commit} | {minutes:.0} | **failed**: {why} |\n", part.name, part.shows)
            }
            Some(Measured { commit, minutes, .. }) => {
                let files = files(part.name, dir);
                format!("| {} | {} | {commit} | {minutes:.0} | {files} |\n", part.name, part.shows)
            }
        };
        page += &row;
    }
    page
}

/// Links to what a part left.
fn files(name: &str, dir: &Path) -> String {
    let is_its = |file: &String| match name {
        "pictures" => file.ends_with(".svg"),
        name => [".md", ".json"].iter().any(|ending| file.strip_suffix(ending) == Some(name)),
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_its).collect();
    files.sort_unstable();
    files.iter().map(|file| format!("[{file}]({file})")).collect::<Vec<_>>().join(", ")
}
