//! Whether the shipped examples learn: each over several seeds, its held-out success beside that of rules that learn
//! nothing.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use millrace_schemas::api::Evaluation;
use millrace_schemas::report::{Baseline, Report};
use serde::Serialize;

use super::play::{play, run_file};
use super::{mean_and_deviation, publish};

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run files
    #[arg(long, value_delimiter = ',', default_values = [
        "broker/coordinator/runs/frozen-lake.toml",
        "broker/coordinator/runs/frozen-lake-slippery.toml",
        "broker/coordinator/runs/sokoban.toml",
        "broker/coordinator/runs/smollm2-arithmetic.toml",
    ])]
    runs: Vec<PathBuf>,
    /// Seeds
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// Runs that must also end above the best rule that looks one step ahead and, on slippery ice, above the shortest path
    #[arg(long, value_delimiter = ',', default_values = ["frozen-lake"])]
    above_rules: Vec<String>,
    /// Folder of the runs
    #[arg(long, default_value = "target/learn")]
    dir: PathBuf,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/learn.json")]
    out: PathBuf,
}

/// All seeds of a run file.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// Held-out success of the last version, mean over seeds.
    after: f64,
    /// The result to exceed: uniformly random play or version 0, and the best rule if required;
    /// mean over seeds.
    bar: f64,
    /// Standard error of their difference. A seed's two results are of the same prompts, so the difference
    /// is taken for each seed: what makes a seed easy for both does not count.
    error: f64,
    reports: Vec<Report>,
}

/// A share and its standard error.
type Share = (f64, f64);

/// Plays and prints.
///
/// # Errors
/// A run is refused or fails, its books do not balance, or it did not learn.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for path in &args.runs {
        let mut reports = Vec::new();
        for &seed in &args.seeds {
            let mut spec = run_file(path)?;
            spec.seed = seed;
            let report = play(&args.dir, &spec, &[]).with_context(|| format!("{} seed={seed}", spec.name))?;
            println!("{} seed={seed}: {:.1} s", spec.name, report.wall_s);
            reports.push(report);
        }
        let above_rules = args.above_rules.contains(&reports[0].run);
        rows.push(row(reports, above_rules)?);
        // After each, since all of them take long.
        publish(&args.out, &rows, &table(&rows))?;
    }
    for Row { name, after, bar, error, .. } in &rows {
        ensure!(
            after - bar > 2.0 * error,
            "{name} did not learn: {after:.3} after, {bar:.3} is to be passed, standard error {error:.3}"
        );
    }
    Ok(())
}

fn row(reports: Vec<Report>, above_rules: bool) -> anyhow::Result<Row> {
    let (mut afters, mut bars, mut gains) = (Vec::new(), Vec::new(), Vec::new());
    for report in &reports {
        let after = last(report).with_context(|| format!("{} has no evaluation", report.run))?;
        let share = told(after).with_context(|| format!("{} was not played to its end", report.run))?;
        let bar = bar(report, above_rules);
        afters.push(share);
        bars.push(bar);
        gains.push((share.0 - bar.0, share.1.hypot(bar.1)));
    }
    let ((after, _), (bar, _), (_, error)) = (over_seeds(&afters), over_seeds(&bars), over_seeds(&gains));
    let name = reports.first().map_or_else(String::new, |report| report.run.clone());
    Ok(Row { name, after, bar, error, reports })
}

/// The mean over seeds, and its standard error: that of the prompts, or that between seeds if it is larger.
fn over_seeds(shares: &[Share]) -> Share {
    let (mean, deviation) = mean_and_deviation(&shares.iter().map(|share| share.0).collect::<Vec<_>>());
    let seeds = shares.len().max(1) as f64;
    let of_prompts = shares.iter().map(|share| share.1.powi(2)).sum::<f64>().sqrt() / seeds;
    (mean, of_prompts.max(deviation / seeds.sqrt()))
}

/// The last version's evaluation at the run's first temperature.
fn last(report: &Report) -> Option<&Evaluation> {
    let first = report.evaluations.first()?;
    report.evaluations.iter().rev().find(|e| e.temperature == first.temperature)
}

/// The result to exceed: uniformly random play, version 0, and, if required, a rule that looks one
/// move ahead. Where a shortest path is not the best policy it is one more rule.
fn bar(report: &Report, above_rules: bool) -> Share {
    let path = rule(report, "shortest_path").filter(|_| rule(report, "best_policy").is_some());
    let rules = best_reflex(report).into_iter().chain(path).filter(|_| above_rules);
    let before = report.evaluations.first().and_then(told);
    let bars = rules.chain(rule(report, "random")).chain(before);
    bars.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default()
}

/// The share solved, and its standard error; `None` where no prompt was played to its end.
fn told(evaluation: &Evaluation) -> Option<Share> {
    Some((evaluation.success?, evaluation.standard_error.unwrap_or(0.0)))
}

fn table(rows: &[Row]) -> String {
    let mut table = "Held-out success at temperature 0, mean over seeds with its standard error; every run balanced and audited.\n\n\
         | run | seeds | steps | prompts (distinct) | v0 | random | best reflex | shortest path | best policy \
         | after | temperature 1 | seconds |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let Some((first, evaluation)) = row.reports.first().and_then(|first| Some((first, last(first)?)))
        else {
            continue;
        };
        let share = |of: &dyn Fn(&Report) -> Option<Share>| {
            let shares: Vec<Share> = row.reports.iter().filter_map(of).collect();
            let (mean, error) = over_seeds(&shares);
            if shares.is_empty() {
                "–".to_owned()
            } else {
                format!("{:.1} ± {:.1} %", 100.0 * mean, 100.0 * error)
            }
        };
        let seconds = row.reports.iter().map(|report| report.wall_s).sum::<f64>() / row.reports.len() as f64;
        table += &format!(
            "| {} | {} | {} | {} ({}) | {} | {} | {} | {} | {} | {} | {} | {seconds:.0} |\n",
            row.name,
            row.reports.len(),
            first.steps,
            evaluation.prompts,
            evaluation.distinct,
            share(&|report| report.evaluations.first().and_then(told)),
            share(&|report| rule(report, "random")),
            share(&|report| best_reflex(report)),
            share(&|report| rule(report, "shortest_path")),
            share(&|report| rule(report, "best_policy")),
            share(&|report| last(report).and_then(told)),
            share(&|report| report.evaluations.iter().rev().find(|e| e.temperature == 1.0).and_then(told)),
        );
    }
    table
}

fn rule(report: &Report, name: &str) -> Option<Share> {
    let found = report.baselines.iter().find(|baseline: &&Baseline| baseline.name == name)?;
    Some((found.success, found.standard_error))
}

fn best_reflex(report: &Report) -> Option<Share> {
    let rules = ["reflex", "memoryless_reflex"].into_iter().filter_map(|name| rule(report, name));
    rules.max_by(|a, b| a.0.total_cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(before: f64, reflex: f64, after: f64) -> Report {
        let evaluation = |version: u64, temperature: f64, success: f64| {
            let text = format!(
                r#"{{ "version": {version}, "temperature": {temperature}, "success": {success}, "standard_error": 0.02,
                    "reward": 0.0, "prompts": 256, "distinct": 250, "failed": 0, "at_ms": 0 }}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let baseline = |name: &str, success| Baseline {
            name: name.into(),
            success,
            standard_error: 0.03,
            ..Baseline::default()
        };
        Report {
            run: "lake".into(),
            evaluations: vec![evaluation(0, 0.0, before), evaluation(9, 0.0, after), evaluation(9, 1.0, 0.1)],
            baselines: vec![
                baseline("random", 0.01),
                baseline("reflex", reflex),
                baseline("shortest_path", 1.0),
            ],
            ..Report::default()
        }
    }

    #[test]
    fn the_bar_is_the_best_that_does_not_learn() {
        assert_eq!(bar(&report(0.1, 0.6, 0.9), true), (0.6, 0.03));
        assert_eq!(bar(&report(0.1, 0.6, 0.9), false), (0.1, 0.02));
        assert_eq!(bar(&report(0.001, 0.6, 0.9), false), (0.01, 0.03));
        assert_eq!(bar(&report(0.7, 0.6, 0.9), true), (0.7, 0.02));
        // On slippery ice a shortest path is a rule that may be passed.
        let mut slippery = report(0.1, 0.3, 0.5);
        slippery.baselines[2].success = 0.4;
        assert_eq!(bar(&slippery, true), (0.3, 0.03));
        slippery.baselines.push(Baseline { name: "best_policy".into(), success: 0.6, ..Baseline::default() });
        assert_eq!(bar(&slippery, true), (0.4, 0.03));
        let row = row(vec![report(0.1, 0.6, 0.9), report(0.1, 0.6, 0.7)], true).unwrap();
        assert!((row.after - 0.8).abs() < 1e-12 && (row.bar - 0.6).abs() < 1e-12);
        // Between seeds 0.1414 / sqrt(2) = 0.1: more than that of the prompts, hypot(0.02, 0.03) / sqrt(2).
        assert!((row.error - 0.1).abs() < 1e-9, "{}", row.error);
        // Two seeds of which the second is harder for both: what they have in common is no error of the gain.
        let even = super::row(vec![report(0.1, 0.6, 0.9), report(0.1, 0.4, 0.7)], true).unwrap();
        assert!((even.error - 0.02f64.hypot(0.03) / 2f64.sqrt()).abs() < 1e-9, "{}", even.error);
        let table = table(&[row]);
        assert!(
            table.contains(
                "| lake | 2 | 0 | 256 (250) | 10.0 ± 1.4 % | 1.0 ± 2.1 % | 60.0 ± 2.1 % | 100.0 ± 2.1 % | – | 80.0 ± 10.0 %"
            ),
            "{table}"
        );
    }
}
