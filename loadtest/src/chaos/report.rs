//! The tables: what went wrong, what it cost, and what came of the runs.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use super::cost::{self, Account, Costs};
use super::inject::Injected;
use super::plan::Means;
use super::result::Played;
use super::{Args, Series};
use crate::bench::mean_and_deviation;
use crate::bench::origin::origin;

/// Everything that is written.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Minutes of faults.
    pub minutes: f64,
    /// The seed.
    pub seed: u64,
    /// What the checkers say of either series; empty when all is well.
    pub findings: Vec<String>,
    /// The faults, in order.
    pub faults: Vec<Injected>,
    /// What they cost.
    pub costs: Costs,
    /// The runs under faults.
    pub disturbed: Vec<Played>,
    /// The same runs without.
    pub undisturbed: Vec<Played>,
    /// Processes that ended although nobody had killed them.
    pub unasked: Vec<(String, u64)>,
    /// What could not be tried here.
    pub skipped: Vec<&'static str>,
    /// The command, the commit and the machine.
    pub origin: String,
}

/// What the checkers have nothing to look at for, on real processes.
const UNWATCHED: &str = "Not looked at on real processes, but in the simulator: `ends_in_time`, `one_acts`, and how many \
                         tasks were queued at most. What was put is recounted from the log.";

impl Report {
    /// Puts it together.
    #[must_use]
    pub fn new(
        args: &Args,
        means: Means,
        disturbed: &Series,
        undisturbed: &Series,
        faults: &[Injected],
    ) -> Self {
        let both = |series: &Series, name: &str| {
            series.findings.iter().map(|finding| format!("{name}: {finding}")).collect::<Vec<_>>()
        };
        let mut findings = both(disturbed, "disturbed");
        findings.extend(both(undisturbed, "undisturbed"));
        let costs = cost::count(faults, &account(disturbed), &account(undisturbed));
        let skipped = if means.disk { vec![] } else { vec!["disk_full: mounting is not permitted here"] };
        Self {
            minutes: args.minutes,
            seed: args.seed,
            findings,
            faults: faults.to_vec(),
            costs,
            disturbed: disturbed.runs.clone(),
            undisturbed: undisturbed.runs.clone(),
            unasked: disturbed.unasked.clone(),
            skipped,
            origin: origin(),
        }
    }

    /// Prints the tables and writes them to `out` with `.md` and `.json`.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn write(&self, out: &Path) -> anyhow::Result<()> {
        if let Some(folder) = out.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let text = self.markdown();
        println!("{text}");
        let fail = || format!("failed to write {}", out.display());
        std::fs::write(out.with_extension("md"), &text).with_context(fail)?;
        let json = serde_json::to_string_pretty(self).context("failed to write the report as JSON")?;
        std::fs::write(out.with_extension("json"), json + "\n").with_context(fail)
    }

    fn markdown(&self) -> String {
        let mut text = String::new();
        let Self { origin, minutes, seed, .. } = self;
        let _ =
            writeln!(text, "{origin}.\n\n{} faults in {minutes} minutes, seed {seed}\n", self.faults.len());
        self.fault_table(&mut text);
        for skipped in &self.skipped {
            let _ = writeln!(text, "\nSkipped: {skipped}.");
        }
        self.run_table(&mut text);
        if !self.unasked.is_empty() {
            let _ = writeln!(text, "\nEnded unasked and were started again: {:?}.", self.unasked);
        }
        match self.findings.as_slice() {
            [] => text += "\nThe checkers find nothing wrong.\n",
            findings => {
                let _ = writeln!(text, "\nThe checkers find {} things wrong:\n", findings.len());
                findings.iter().for_each(|finding| text += &format!("- {finding}\n"));
            }
        }
        let _ = writeln!(text, "\n{UNWATCHED}");
        text
    }

    fn fault_table(&self, text: &mut String) {
        *text += "| fault | to | times | seconds each | seconds | tokens |\n|---|---|---:|---:|---:|---:|\n";
        let mut all = (0, 0.0, 0.0);
        for row in &self.costs.rows {
            let (kind, role, times) = (row.kind.name(), row.role.name(), row.times);
            let (seconds, tokens) = (row.seconds, row.tokens);
            let each = seconds / times as f64;
            let _ = writeln!(text, "| {kind} | {role} | {times} | {each:.1} | {seconds:.0} | {tokens:.0} |");
            all = (all.0 + times, all.1 + seconds, all.2 + tokens);
        }
        let _ = writeln!(text, "| none at work | | | | {:.0} | |", self.costs.between_s);
        let seconds = all.1 + self.costs.between_s;
        let _ = writeln!(text, "| all | | {} | | {seconds:.0} | {:.0} |", all.0, all.2);
    }

    fn run_table(&self, text: &mut String) {
        *text +=
            "\n| seed | success | undisturbed | seconds | undisturbed | sampled tokens | undisturbed |\n";
        *text += "|---:|---:|---:|---:|---:|---:|---:|\n";
        let percent = |run: Option<&Played>| match run.and_then(|run| run.success) {
            Some(success) => format!("{:.1} %", 100.0 * success),
            None => "–".into(),
        };
        for run in &self.disturbed {
            let other = self.undisturbed.iter().find(|other| other.seed == run.seed);
            let seconds = other.map_or("–".into(), |other| format!("{:.0}", other.seconds()));
            let tokens = other.map_or("–".into(), |other| other.status.counters.sampled_tokens.to_string());
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.0} | {seconds} | {} | {tokens} |",
                run.seed,
                percent(Some(run)),
                percent(other),
                run.seconds(),
                run.status.counters.sampled_tokens,
            );
        }
        let (mine, other) = (mean(&self.disturbed), mean(&self.undisturbed));
        let _ = writeln!(
            text,
            "| mean | {} | {} | {:.0} | {:.0} | {:.0} | {:.0} |",
            mine.success, other.success, mine.seconds, other.seconds, mine.tokens, other.tokens
        );
    }
}

fn account(series: &Series) -> Account<'_> {
    Account { runs: &series.runs, seen: &series.seen, trained: &series.trained }
}

struct Mean {
    /// With the standard deviation over seeds.
    success: String,
    seconds: f64,
    tokens: f64,
}

fn mean(runs: &[Played]) -> Mean {
    let n = runs.len().max(1) as f64;
    let successes: Vec<f64> = runs.iter().filter_map(|run| run.success).collect();
    let (mean, spread) = mean_and_deviation(&successes);
    Mean {
        success: format!("{:.1} ± {:.1} %", 100.0 * mean, 100.0 * spread),
        seconds: runs.iter().map(Played::seconds).sum::<f64>() / n,
        tokens: runs.iter().map(|run| run.status.counters.sampled_tokens as f64).sum::<f64>() / n,
    }
}
