//! The results of a run that is over: its weights, metrics, the curve, the report.

use anyhow::{Context, Result};
use millrace_queue::Objects;
use millrace_schemas::api::{RunState, Status};
use millrace_schemas::report::Report;

use super::folder::{Folder, METRICS_FILE};
use crate::metrics::MetricsFile;
use crate::report::{Measured, assemble};
use crate::term::say;
use crate::{curve, weights};
use millrace_coordinator::shell::audit::{Claim, audit};

/// Recounts the run, exports its last version, draws its curve and writes the report, in that
/// order: if the report exists, the rest does too.
pub(super) async fn conclude(
    folder: &Folder,
    objects: &str,
    status: &Status,
    measured: Measured,
) -> Result<Report> {
    let objects = Objects::open(objects)?;
    let mut audit = audit(&objects, Claim::of(status), status.state == RunState::Finished).await?;
    let weights = folder.path("weights").join(format!("v{:06}", status.version.0));
    std::fs::create_dir_all(folder.path("weights")).context("failed to create a folder for the weights")?;
    let exported = weights::export(&objects, &status.run, status.version, &weights, false).await;
    // A run that failed before its first version has no weights; the report is written all the
    // same.
    if let Err(e) = &exported {
        audit.findings.push(format!("{} cannot be exported: {e:#}", status.version));
    }
    let mut metrics = MetricsFile::new(objects.clone(), status.run.clone(), folder.path(METRICS_FILE));
    // They are no part of the books.
    if let Err(e) = metrics.catch_up(status.version).await {
        say(format_args!("{METRICS_FILE} lacks steps: {e:#}"));
    }
    let curve = folder.path("curve.svg");
    curve::draw(status, &curve)?;
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let measured = Measured {
        weights_path: exported.map_or_else(|_| String::new(), |()| text(&weights)),
        curve_path: text(&curve),
        ..measured
    };
    let report = assemble(status, &audit, measured);
    folder.write_json("report.json", &report)?;
    Ok(report)
}
