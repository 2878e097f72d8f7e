//! What is printed of a scenario: its ratio beside the published one, and the profile that explains it.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use super::figures::Figures;
use super::scenario::{Fleet, Role, Scenario};
use super::theory::Bound;
use crate::bench::{self, median, origin};

/// A scenario that was played.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    scenario: Scenario,
    /// Seconds a step of the fleets of each side that were chosen, one for each seed.
    baseline: Side,
    ours: Side,
    /// Baseline over ours, one for each seed.
    ratios: Vec<f64>,
    /// The fleets among which the best were chosen, on a seed that is not measured.
    tried: Vec<Figures>,
    runs: Vec<Figures>,
}

/// The fleet that was chosen on one side.
#[derive(Debug, Serialize)]
struct Side {
    fleet: String,
    /// Seconds a step, by seed.
    step_s: Vec<f64>,
}

impl Row {
    pub(super) fn new(scenario: Scenario, chosen: &[Fleet], tried: Vec<Figures>, runs: Vec<Figures>) -> Self {
        let side = |role| {
            let fleet = chosen.iter().find(|fleet| fleet.role == role);
            let fleet = fleet.map(|fleet| fleet.name.clone()).unwrap_or_default();
            let step_s = runs.iter().filter(|run| run.fleet == fleet).map(|run| run.step_s).collect();
            Side { fleet, step_s }
        };
        let (baseline, ours) = (side(Role::Baseline), side(Role::Ours));
        let ratios = baseline.step_s.iter().zip(&ours.step_s).map(|(one, other)| one / other).collect();
        Self { scenario, baseline, ours, ratios, tried, runs }
    }

    pub(super) fn findings(&self) -> Vec<String> {
        let runs = self.runs.iter().flat_map(Figures::findings);
        runs.map(|finding| format!("{}: {finding}", self.scenario.name)).collect()
    }

    fn ratio(&self) -> f64 {
        median(self.ratios.clone())
    }

    fn is_reached(&self) -> bool {
        self.ratio() >= self.scenario.goal
    }

    fn headline(&self) -> String {
        let Self { scenario: Scenario { claim, published, goal, .. }, baseline, ours, .. } = self;
        format!(
            "| {claim} | {published} | {} → {} | **{:.2}×** ({}) | {goal:.2}×: {} |\n",
            seconds(&baseline.step_s),
            seconds(&ours.step_s),
            self.ratio(),
            range(&self.ratios),
            if self.is_reached() { "reached" } else { "missed" }
        )
    }

    fn profile(&self) -> String {
        let Scenario { name, claim, assumptions, .. } = &self.scenario;
        let mut page = format!("\n### {name}: {claim}\n\n");
        for assumption in assumptions {
            let _ = writeln!(page, "- {assumption}");
        }
        page += "\n| fleet | s a step | generators idle | trainers idle | slots filled | rewards busy | dropped \
                 | longest / median | KS p | longest 1 % trained | bounds |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
        for run in &self.tried {
            page += &line(&format!("{} (tried)", run.fleet), &[run]);
        }
        let mut fleets: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !fleets.contains(&run.fleet.as_str()) {
                fleets.push(&run.fleet);
            }
        }
        for fleet in fleets {
            let of: Vec<&Figures> = self.runs.iter().filter(|run| run.fleet == fleet).collect();
            let is_side = [&self.baseline.fleet, &self.ours.fleet].contains(&&fleet.to_owned());
            let name = if is_side { format!("**{fleet}**") } else { fleet.to_owned() };
            page += &line(&name, &of);
        }
        for remark in self.remarks() {
            let _ = writeln!(page, "\n{remark}");
        }
        page
    }

    /// Bounds that do not apply, and bias that is expected; each once.
    fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = Vec::new();
        for run in &self.runs {
            let bounds = run.bounds.iter().filter(|bound| !bound.holds());
            let bounds = bounds.filter_map(|Bound { name, bound_s, not_of_this, .. }| {
                let why = not_of_this.as_ref()?;
                let Figures { fleet, seed, step_s, .. } = run;
                Some(format!(
                    "Not a finding: {fleet}, seed {seed}, {step_s:.1} s against {name} {bound_s:.1} s: {why}."
                ))
            });
            let biased =
                run.biased_because.iter().map(|why| format!("Expected to be biased: {}: {why}.", run.fleet));
            for remark in bounds.chain(biased) {
                if !remarks.contains(&remark) {
                    remarks.push(remark);
                }
            }
        }
        remarks
    }
}

/// All rows with commit and machine.
#[derive(Debug, Serialize)]
pub(super) struct Record<'a> {
    origin: String,
    rows: &'a [Row],
    findings: Vec<String>,
}

pub(super) fn record(rows: &[Row]) -> Record<'_> {
    Record { origin: origin::origin(), rows, findings: rows.iter().flat_map(Row::findings).collect() }
}

/// Writes the figures of the rows so far.
///
/// # Errors
/// The file cannot be written.
pub(super) fn keep(out: &Path, rows: &[Row]) -> anyhow::Result<()> {
    bench::keep(out, &record(rows))
}

/// What no row says of itself.
const COSTS_NOTHING: &str = "\nNothing is charged for prefill, an engine's memory, a version's way to \
                             more engines, all-reduce, and places for environments: `loadtest/README.md`.\n";

/// The tables, in Markdown.
pub(super) fn page(rows: &[Row]) -> String {
    let mut page = "| claim | published | reproduced, s a step | ratio (range over seeds) | goal |\n\
                    |---|---|---|---|---|\n"
        .to_owned();
    rows.iter().for_each(|row| page += &row.headline());
    let findings: Vec<String> = rows.iter().flat_map(Row::findings).collect();
    page += &match findings.len() {
        0 => "\nNo bound that applies is broken, and no lengths are biased unexpectedly.\n".to_owned(),
        count => format!("\n{count} findings:\n"),
    };
    for finding in findings {
        let _ = writeln!(page, "- {finding}");
    }
    page += COSTS_NOTHING;
    rows.iter().for_each(|row| page += &row.profile());
    page
}

fn line(name: &str, runs: &[&Figures]) -> String {
    let of = |value: fn(&Figures) -> f64| median(runs.iter().map(|run| value(run)).collect());
    let percent = |value: fn(&Figures) -> f64| format!("{:.0} %", 100.0 * of(value));
    let bounds: Vec<String> = runs.first().map_or_else(Vec::new, |run| {
        run.bounds
            .iter()
            .map(|bound| format!("{} {:.0} s{}", bound.name, bound.bound_s, mark(bound)))
            .collect()
    });
    format!(
        "| {name} | {} | {} | {} | {} | {} | {:.1} % | {:.1} | {:.2} | {:.2} | {} |\n",
        seconds(&runs.iter().map(|run| run.step_s).collect::<Vec<_>>()),
        percent(|run| run.generators_idle),
        percent(|run| run.trainers_idle),
        percent(|run| run.filled),
        percent(|run| run.rewards_busy),
        100.0 * of(|run| run.dropped_share),
        of(|run| run.tail),
        of(|run| run.lengths.p),
        of(|run| run.lengths.tail),
        bounds.join("; ")
    )
}

fn mark(bound: &Bound) -> &'static str {
    match (bound.holds(), &bound.not_of_this) {
        (true, None) => ", holds",
        (true, Some(_)) => ", holds (not of this set-up)",
        (false, None) => ", BROKEN",
        (false, Some(_)) => ", not of this set-up",
    }
}

fn seconds(values: &[f64]) -> String {
    format!("{:.1} ({})", median(values.to_vec()), range(values))
}

fn range(values: &[f64]) -> String {
    let (least, most) =
        (values.iter().copied().fold(f64::NAN, f64::min), values.iter().copied().fold(f64::NAN, f64::max));
    if most >= 20.0 { format!("{least:.0} to {most:.0}") } else { format!("{least:.2} to {most:.2}") }
}
