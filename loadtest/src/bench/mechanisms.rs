//! What each mechanism of the rollout gains: redundant groups and asynchrony where environments are slow and uneven, dynamic
//! sampling where many groups say nothing. Each run by `millrace up`, with and without, in turn.

use std::path::PathBuf;

use millrace_schemas::RunSpec;
use millrace_schemas::env_step::{EnvironmentSpec, Latency};
use millrace_schemas::report::Report;
use millrace_schemas::submit::GroupFilter;
use serde::Serialize;

use super::play::{play, run_file};
use super::{mean_and_deviation, publish};

/// Groups and rollouts of a batch where environments are slow, as in ROLL Flash's experiment of redundant environments.
const BATCH: (u32, u32) = (32, 8);
/// Turns of a rollout there; each takes as long as its reset does.
const TURNS: u32 = 5;
/// Environment processes there, 64 tasks each: no rollout waits for a place.
const ENVIRONMENTS: &str = "10";

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Mean and standard deviation of a turn's milliseconds where environments are slow; the published ones are twenty
    /// times as long
    #[arg(long, value_delimiter = ',', num_args = 2, default_values_t = [500.0, 250.0])]
    latency: Vec<f64>,
    /// Train steps of a run with slow environments
    #[arg(long, default_value_t = 10)]
    steps: u64,
    /// The run file that learns, with and without dynamic sampling
    #[arg(long, default_value = "broker/coordinator/runs/frozen-lake-surroundings.toml")]
    run: PathBuf,
    /// Train steps of a run that learns
    #[arg(long, default_value_t = 40)]
    learning_steps: u64,
    /// Seeds
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// Folder of the runs
    #[arg(long, default_value = "target/mechanisms")]
    dir: PathBuf,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/mechanisms.json")]
    out: PathBuf,
}

/// A run file and what is different in it.
struct Variant {
    name: &'static str,
    spec: RunSpec,
    arguments: &'static [&'static str],
}

/// All seeds of a variant.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    runs: Vec<Report>,
}

/// Plays and prints.
///
/// # Errors
/// A run is refused or fails, or its books do not balance.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut learning = run_file(&args.run)?;
    learning.steps = args.learning_steps;
    let [slow, filtered] = [slow(args)?, filtered(&learning)];
    let (slow, filtered) = (played(args, &slow)?, played(args, &filtered)?);
    let title = format!(
        "Slow environments: {} x {} rollouts a batch, {TURNS} turns of N({}, {}) ms each and as long a reset, {} steps, \
         {} seeds.",
        BATCH.0,
        BATCH.1,
        args.latency[0],
        args.latency[1],
        args.steps,
        args.seeds.len()
    );
    let learns = format!("Dynamic sampling: `{}`, {} steps.", learning.name, args.learning_steps);
    let table = format!("{title}\n\n{}\n{learns}\n\n{}", table(&slow), table(&filtered));
    publish(&args.out, &[slow, filtered], &table)
}

fn slow(args: &Args) -> anyhow::Result<Vec<Variant>> {
    let text = format!(
        "name = \"slow\"\nsteps = {}\nmodel = {{ kind = \"scripted\" }}\nenvironment = {{ name = \"counter\", turns = {TURNS} }}\n\
         evaluate = {{ prompts = 0 }}",
        args.steps
    );
    let mut base = millrace_schemas::submit::from_toml(&text)?;
    (base.rollout.groups_per_step, base.rollout.group_size) = BATCH;
    if let Some(EnvironmentSpec::Counter { latency, .. }) = &mut base.environment {
        *latency = Latency { mean_ms: args.latency[0], deviation_ms: args.latency[1] };
    }
    let variant = |name, alpha, redundant| {
        let mut spec = base.clone();
        (spec.rollout.alpha, spec.rollout.redundant_groups) = (alpha, redundant);
        spec.weights.newest = spec.weights.newest.max(spec.max_staleness() + 1);
        Variant { name, spec, arguments: &["--env", ENVIRONMENTS] }
    };
    Ok(vec![
        variant("synchronous", 0.0, 0),
        variant("synchronous, 4 redundant groups", 0.0, 4),
        variant("synchronous, 16 redundant groups", 0.0, 16),
        variant("α = 1", 1.0, 0),
        variant("α = 1, 4 redundant groups", 1.0, 4),
    ])
}

fn filtered(base: &RunSpec) -> Vec<Variant> {
    let variant = |name, filter| {
        let mut spec = base.clone();
        spec.rollout.filter = filter;
        Variant { name, spec, arguments: &[] }
    };
    vec![
        variant("all groups", GroupFilter::None),
        variant("dynamic sampling: groups of equal rewards are replaced", GroupFilter::EqualRewards),
    ]
}

/// Seed by seed, all variants of each in turn.
fn played(args: &Args, variants: &[Variant]) -> anyhow::Result<Vec<Row>> {
    let mut rows: Vec<Row> = variants.iter().map(|one| Row { name: one.name, runs: Vec::new() }).collect();
    for &seed in &args.seeds {
        for (variant, row) in variants.iter().zip(&mut rows) {
            let spec = RunSpec { seed, ..variant.spec.clone() };
            let report = play(&args.dir, &spec, variant.arguments)?;
            println!("{} seed={seed}: {:.1} s", variant.name, report.wall_s);
            row.runs.push(report);
        }
    }
    Ok(rows)
}

fn table(rows: &[Row]) -> String {
    let mut table = "| | seconds a step | against the first | rollouts dropped | held-out success |\n|---|---|---|---|---|\n".to_owned();
    let of = |row: &Row, figure: &dyn Fn(&Report) -> f64| {
        mean_and_deviation(&row.runs.iter().map(figure).collect::<Vec<_>>())
    };
    let step = |run: &Report| run.wall_s / run.steps.max(1) as f64;
    let first = rows.first().map_or(f64::NAN, |row| of(row, &step).0);
    for row in rows {
        let (seconds, spread) = of(row, &step);
        let (dropped, _) = of(row, &dropped);
        let (success, off) = of(row, &|run| 100.0 * run.success_after.unwrap_or(f64::NAN));
        let success = if success.is_nan() { "–".to_owned() } else { format!("{success:.1} ± {off:.1} %") };
        table += &format!(
            "| {} | {seconds:.2} ± {spread:.2} | {:.2} × | {:.1} % | {success} |\n",
            row.name,
            first / seconds,
            100.0 * dropped
        );
    }
    table
}

/// Of the rollouts that were begun, the share that was dropped.
fn dropped(run: &Report) -> f64 {
    run.ledger.dropped.values().sum::<u64>() as f64 / run.ledger.admitted.max(1) as f64
}

#[cfg(test)]
mod tests {
    use millrace_schemas::submit::from_toml;

    use super::*;

    #[test]
    fn every_variant_is_a_run_that_is_taken() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let args = <Line as clap::Parser>::parse_from(["bench"]).args;
        let base = env!("CARGO_MANIFEST_DIR").to_owned() + "/../" + &args.run.to_string_lossy();
        let learning = run_file(base.as_ref()).unwrap();
        for variant in slow(&args).unwrap().into_iter().chain(filtered(&learning)) {
            let text = toml::to_string(&variant.spec).unwrap();
            from_toml(&text).unwrap_or_else(|e| panic!("{}: {e}", variant.name));
        }
    }

    #[test]
    fn gains_are_against_the_first() {
        let run = |wall_s| Report { wall_s, steps: 10, ..Report::default() };
        let rows = [Row { name: "a", runs: vec![run(20.0); 2] }, Row { name: "b", runs: vec![run(10.0)] }];
        let table = table(&rows);
        assert!(table.contains("| a | 2.00 ± 0.00 | 1.00 × | 0.0 % | – |"), "{table}");
        assert!(table.contains("| b | 1.00 ± 0.00 | 2.00 × | 0.0 % | – |"), "{table}");
    }
}
