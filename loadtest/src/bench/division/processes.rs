//! The same question on processes of this machine: a run that learns, on two that compute, under each division of the
//! work between them. Each run by `millrace up`, the variants in turn.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use millrace_schemas::RunSpec;
use millrace_schemas::report::Report;
use serde::Serialize;

use crate::bench::mean_and_deviation;
use crate::bench::play::{play_by, run_file};
use crate::chaos::stack::beside;

/// Processes that compute.
const PROCESSES: f64 = 2.0;

/// How two processes are divided.
struct Variant {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Members of the gang.
    ranks: u32,
    /// Processes that generate, and that train.
    serve: (f64, f64),
    /// The processes that do both do so at once, as without `--time-division`.
    at_once: bool,
}

const VARIANTS: [Variant; 5] = [
    Variant {
        name: "1 generates, 1 trains",
        arguments: &["--generate", "1", "--train", "1"],
        ranks: 1,
        serve: (1.0, 1.0),
        at_once: false,
    },
    Variant {
        name: "1 generates, 1 does both in turn",
        arguments: &["--generate", "1", "--time-division", "1"],
        ranks: 1,
        serve: (2.0, 1.0),
        at_once: false,
    },
    Variant {
        name: "1 generates, 1 does both at once",
        arguments: &["--generate", "1", "--time-division", "1"],
        ranks: 1,
        serve: (2.0, 1.0),
        at_once: true,
    },
    Variant {
        name: "2 do both in turn",
        arguments: &["--generate", "0", "--time-division", "2"],
        ranks: 2,
        serve: (2.0, 2.0),
        at_once: false,
    },
    Variant {
        name: "2 do both at once",
        arguments: &["--generate", "0", "--time-division", "2"],
        ranks: 2,
        serve: (2.0, 2.0),
        at_once: true,
    },
];

/// What one run gave.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Played {
    name: &'static str,
    alpha: f64,
    steps_an_hour: f64,
    /// Share of the time in which a process that generates did, as a mean over them; and one that trains.
    generates: f64,
    trains: f64,
    /// Share of the time of both processes in which they did neither; below 0 where they did both at once.
    idle: f64,
}

/// Plays all variants, `rounds` times in turn.
///
/// # Errors
/// A run is refused or fails.
pub(super) fn played(file: &Path, steps: u64, rounds: u32, folder: &Path) -> anyhow::Result<Vec<Played>> {
    let base = run_file(file)?;
    let programs = [beside("millrace")?, at_once(folder)?];
    let mut all = Vec::new();
    for _ in 0..rounds {
        for alpha in [1.0, 0.0] {
            for variant in &VARIANTS {
                let mut spec = RunSpec { steps, ..base.clone() };
                spec.rollout.alpha = alpha;
                spec.evaluate.prompts = 0;
                spec.gang.ranks = variant.ranks;
                let program = &programs[usize::from(variant.at_once)];
                let report = play_by(program, folder, &spec, variant.arguments)?;
                let played = variant.played(alpha, &report);
                println!("{played:?}");
                all.push(played);
            }
        }
    }
    Ok(all)
}

impl Variant {
    fn played(&self, alpha: f64, report: &Report) -> Played {
        let Report { generate_busy: generates, train_busy: trains, wall_s, steps, .. } = *report;
        let busy = self.serve.0 * generates + self.serve.1 * trains;
        let steps_an_hour = steps as f64 / wall_s * 3600.0;
        Played { name: self.name, alpha, steps_an_hour, generates, trains, idle: 1.0 - busy / PROCESSES }
    }
}

/// A `millrace` whose workers leave `--time-division` out: they do both at once, on two threads.
fn at_once(folder: &Path) -> anyhow::Result<PathBuf> {
    let folder = folder.join("at-once");
    fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let (program, worker) = (folder.join("millrace"), folder.join("millrace-worker"));
    fs::copy(beside("millrace")?, &program)?;
    let real = beside("millrace-worker")?;
    let script = format!(
        "#!/bin/sh\nfor word do shift; [ \"$word\" = --time-division ] || set -- \"$@\" \"$word\"; done\nexec {:?} \"$@\"\n",
        real.to_string_lossy()
    );
    fs::write(&worker, script)?;
    fs::set_permissions(&worker, fs::Permissions::from_mode(0o755))?;
    Ok(program)
}

pub(super) fn table(all: &[Played]) -> String {
    let mut rows = String::from(
        "| α | two processes | steps an hour | against the first | a generator samples | a trainer trains | neither |\n|---|---|---|---|---|---|---|\n",
    );
    for alpha in [1.0, 0.0] {
        let of = |name: &str, value: fn(&Played) -> f64| {
            let same = all.iter().filter(|played| played.name == name && played.alpha == alpha);
            mean_and_deviation(&same.map(value).collect::<Vec<_>>())
        };
        let first = of(VARIANTS[0].name, |played| played.steps_an_hour).0;
        for Variant { name, .. } in &VARIANTS {
            let (steps, spread) = of(name, |played| played.steps_an_hour);
            let [generates, trains, idle] = [
                of(name, |played| played.generates),
                of(name, |played| played.trains),
                of(name, |played| played.idle),
            ]
            .map(|(mean, _)| 100.0 * mean);
            rows += &format!(
                "| {alpha} | {name} | {steps:.0} ± {spread:.0} | {:.2} × | {generates:.0} % | {trains:.0} % | {idle:.0} % |\n",
                steps / first
            );
        }
    }
    rows
}
