//! The result of a run: `report.json`, and the same as text.

use millrace_schemas::PolicyVersion;
use millrace_schemas::api::Status;
use millrace_schemas::report::{Baseline, Report};

use super::domains;
use super::evaluation;
use super::ledger;
use super::plan::mean_step_s;
use super::status::{context, starts, surplus};
use super::term::{duration, histogram, percent, thousands};
use millrace_coordinator::shell::audit::Audit;

/// Facts that only the supervisor of the processes has.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    /// Share of time that generate workers were busy.
    pub(super) generate_busy: f64,
    /// Share of time that train workers were busy.
    pub(super) train_busy: f64,
    /// Workers that generated, and those that trained.
    pub(super) workers: (u64, u64),
    /// Restarts of processes.
    pub(super) restarts: u64,
    /// Folder with the last version; empty if there is none.
    pub(super) weights_path: String,
    /// The learning curve.
    pub(super) curve_path: String,
    /// Baselines on the same held-out prompts.
    pub(super) baselines: Vec<Baseline>,
}

/// Assembles the result.
pub(super) fn assemble(status: &Status, audit: &Audit, measured: Measured) -> Report {
    let wall_s = status.now_unix_ms.saturating_sub(status.started_unix_ms) as f64 / 1e3;
    let success = |version| evaluation::of_version(&status.evaluations, version).and_then(|e| e.success);
    let evaluate_prompts = status.evaluations.iter().map(|e| e.prompts).max().unwrap_or(0);
    Report {
        run: status.run.to_string(),
        state: status.state.name().into(),
        success_before: success(PolicyVersion(0)),
        success_after: success(status.version),
        evaluate_prompts,
        evaluate_failed: status.evaluations.iter().map(|e| e.failed).max().unwrap_or(0),
        evaluate_reason: status.evaluations.iter().rev().find_map(|e| e.reason.clone()),
        evaluations: status.evaluations.clone(),
        baselines: measured.baselines,
        wall_s,
        steps: status.version.0,
        alpha: status.alpha,
        max_staleness: status.staleness.iter().rposition(|n| *n > 0).unwrap_or(0) as u64,
        staleness: status.staleness.clone(),
        tokens_per_s: if wall_s > 0.0 { status.counters.sampled_tokens as f64 / wall_s } else { 0.0 },
        counters: status.counters,
        stored_turns: status.stored_turns,
        ledger: status.ledger.clone(),
        domains: status.domains.clone(),
        balanced: domains::balanced(status),
        audited: audit.is_clean(),
        audit_findings: audit.findings.clone(),
        final_version: status.version.0,
        weights_path: measured.weights_path,
        curve_path: measured.curve_path,
        generate_busy: measured.generate_busy,
        train_busy: measured.train_busy,
        restarts: measured.restarts,
        generate_workers: measured.workers.0,
        train_workers: measured.workers.1,
        step_s: mean_step_s(&status.curve),
        busy_us: status.busy_us.clone(),
    }
}

/// Whether the run finished, its books balance, and the recount agrees.
pub(super) fn is_good(report: &Report) -> bool {
    report.state == "finished" && report.balanced && report.audited
}

/// The result as text.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let r = report;
    let mut lines = vec![format!("{}: {}, {} steps in {}", r.run, r.state, r.steps, duration(r.wall_s))];
    let mut line = |label: &str, words: String| lines.push(format!("  {label:<10} {words}"));
    let first_and_last = r.evaluations.iter().filter(|e| e.version == 0 || e.version == r.final_version);
    for evaluation in first_and_last {
        line("held out", format!("v{}: {}", evaluation.version, evaluation::words(evaluation)));
    }
    for baseline in &r.baselines {
        let (success, error) = (percent(baseline.success), percent(baseline.standard_error));
        line("baseline", format!("{}: {success} (standard error {error}); {}", baseline.name, baseline.rule));
    }
    if r.evaluate_failed > 0 {
        let reason = r.evaluate_reason.as_deref().unwrap_or("unknown");
        line("held out", format!("{} prompts failed; the last: {reason}", r.evaluate_failed));
    }
    let (most, bound) = (r.max_staleness, r.alpha.ceil());
    line(
        "staleness",
        format!("{} of rollouts trained (most {most}, bound {bound})", histogram(&r.staleness)),
    );
    line("ledger", ledger::words(&r.ledger));
    if let Some(words) = surplus(&r.ledger, &r.counters) {
        line("surplus", words);
    }
    if let Some(stored) = &r.stored_turns {
        line("stored", starts(stored));
    }
    for domain in &r.domains {
        line("domain", domains::words(domain));
    }
    let findings = r.audit_findings.iter().map(|finding| format!("\n    {finding}")).collect::<String>();
    line(
        "audit",
        if r.audited {
            "a recount from the committed versions agrees".into()
        } else {
            format!("a recount from the committed versions DISAGREES:{findings}")
        },
    );
    line(
        "busy",
        format!("generate {}, train {} of the time", percent(r.generate_busy), percent(r.train_busy)),
    );
    line(
        "speed",
        format!(
            "{} tokens/s, {} in all",
            thousands(r.tokens_per_s as u64),
            thousands(r.counters.sampled_tokens)
        ),
    );
    if let Some(words) = context(&r.counters) {
        line("context", words);
    }
    if r.restarts > 0 {
        line("restarts", r.restarts.to_string());
    }
    line("curve", r.curve_path.clone());
    line("weights", r.weights_path.clone());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn report() -> Report {
        assemble(&sample::status(10), &Audit::default(), Measured::default())
    }

    #[test]
    fn the_report_says_what_the_status_said() {
        let report = report();
        assert_eq!((report.success_before, report.success_after), (Some(0.04), Some(0.5)));
        assert_eq!((report.steps, report.final_version, report.max_staleness), (10, 10, 1));
        assert_eq!((report.wall_s, report.tokens_per_s), (10.0, 1_000.0));
        assert!(report.balanced && report.audited);
        let text = serde_json::to_vec(&report).unwrap();
        assert_eq!(serde_json::from_slice::<Report>(&text).unwrap(), report);
    }

    #[test]
    fn only_a_run_that_is_finished_and_proven_is_good() {
        let good = Report { state: "finished".into(), ..report() };
        assert!(is_good(&good));
        assert!(!is_good(&Report { state: "cancelled".into(), ..good.clone() }));
        assert!(!is_good(&Report { balanced: false, ..good.clone() }));
        assert!(!is_good(&Report { audited: false, ..good }));
    }
}
