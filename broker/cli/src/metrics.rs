//! The metrics of a run's train steps, one JSON object a step: `metrics.jsonl` of a `millrace up`, and
//! `millrace weights ls --json`. They are read from the committed versions alone, so that no step is
//! lost or counted twice, whatever is killed.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use millrace_coordinator::shell::audit::read_version;
use millrace_queue::Objects;
use millrace_schemas::blob::paths;
use millrace_schemas::train_shard::Batch;
use millrace_schemas::{PolicyVersion, RunId};
use serde::Serialize;
use tokio::sync::watch;

use super::live::{Frame, View};
use super::weights::manifest;

/// The metrics of one train step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct StepMetrics {
    /// The step, from 1; also the version that it made.
    step: u64,
    /// When the version was committed, in milliseconds since 1970 by the object store's clock.
    unix_ms: u64,
    /// Seconds since the version before was committed.
    step_s: f64,
    /// The metrics of its manifest, and those of its batch, by name.
    #[serde(flatten)]
    metrics: BTreeMap<String, f64>,
}

/// When each version of a run was committed, in milliseconds since 1970; `below` is the folder of all
/// or of one.
pub(super) async fn commits(objects: &Objects, below: &str) -> Result<BTreeMap<String, u64>> {
    let found = objects.list_aged(below).await?;
    Ok(found.into_iter().map(|object| (object.path, object.modified_ms)).collect())
}

/// The metrics of the step that made `version`, by the times at which versions were committed.
pub(super) async fn of_step(
    objects: &Objects,
    run: &RunId,
    version: PolicyVersion,
    commits: &BTreeMap<String, u64>,
) -> Result<StepMetrics> {
    let mut metrics = manifest(objects, run, version).await?.metrics;
    // A trainer that reports no rewards does not report the other facts of a batch either.
    if !metrics.contains_key("reward")
        && let Some(Ok(stored)) = read_version(objects, run, version).await?
    {
        metrics.extend(stored.batch.iter().flat_map(of_batch));
    }
    let at = |version: u64| commits.get(&paths::manifest(run, PolicyVersion(version))).copied();
    let unix_ms = at(version.0).unwrap_or(0);
    let before = at(version.0.saturating_sub(1)).unwrap_or(unix_ms);
    let step_s = unix_ms.saturating_sub(before) as f64 / 1e3;
    Ok(StepMetrics { step: version.0, unix_ms, step_s, metrics })
}

/// Facts of a batch, under the names that trainers with torch report.
fn of_batch(batch: &Batch) -> Vec<(String, f64)> {
    let rollouts = || batch.groups.iter().flat_map(|group| &group.rollouts);
    let (count, staleness) = (rollouts().count().max(1) as f64, |start| batch.base.staleness(start));
    let mean = |sum: f64| sum / count;
    [
        ("reward", mean(rollouts().map(|rollout| rollout.reward).sum())),
        ("success", mean(rollouts().filter(|rollout| rollout.success).count() as f64)),
        ("staleness", mean(rollouts().map(|rollout| staleness(rollout.start_version) as f64).sum())),
        (
            "max_staleness",
            rollouts().map(|rollout| staleness(rollout.start_version)).max().unwrap_or(0) as f64,
        ),
        ("rollouts", rollouts().count() as f64),
        ("tokens", rollouts().map(|rollout| rollout.length() as f64).sum()),
        ("sampled_tokens", rollouts().map(|rollout| rollout.sampled_tokens() as f64).sum()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// A file with a line for each step, in order.
pub(super) struct MetricsFile {
    objects: Objects,
    run: RunId,
    path: PathBuf,
    /// The step of the last line; `None` until it is read from the file.
    last: Option<u64>,
}

impl MetricsFile {
    /// The file at `path`, which need not exist.
    pub(super) const fn new(objects: Objects, run: RunId, path: PathBuf) -> Self {
        Self { objects, run, path, last: None }
    }

    /// Appends the steps up to `newest` that it lacks.
    ///
    /// # Errors
    /// The object store or the file fails. What is lacking is appended the next time.
    pub(super) async fn catch_up(&mut self, newest: PolicyVersion) -> Result<()> {
        let mut last = match self.last.take() {
            Some(last) => last,
            None => repair(&self.path)?,
        };
        let mut before = self.commit(last).await?;
        while last < newest.0 {
            let next = self.commit(last + 1).await?;
            before.extend(next.clone());
            let step = of_step(&self.objects, &self.run, PolicyVersion(last + 1), &before).await?;
            append(&self.path, &(serde_json::to_string(&step)? + "\n"))?;
            (last, before) = (last + 1, next);
        }
        self.last = Some(last);
        Ok(())
    }

    /// When this version was committed.
    async fn commit(&self, version: u64) -> Result<BTreeMap<String, u64>> {
        let manifest = paths::manifest(&self.run, PolicyVersion(version));
        let folder = manifest.rsplit_once('/').map_or(manifest.as_str(), |(folder, _)| folder);
        commits(&self.objects, folder).await
    }

    /// Consumes: newest versions. Produces: lines. Waits for: the next version. Unblocked by: the end
    /// of the sender. On failure: tries again with the next version.
    pub(super) async fn follow(mut self, mut newest: watch::Receiver<PolicyVersion>) {
        while newest.changed().await.is_ok() {
            let version = *newest.borrow_and_update();
            if let Err(error) = self.catch_up(version).await {
                tracing::debug!(%error, "metrics are written with the next version");
            }
        }
    }
}

fn append(path: &Path, line: &str) -> Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.with_context(|| format!("failed to write path={}", path.display()))
}

/// Removes what a process that was killed left of a line, and returns the step of the last line; 0
/// if there is none.
fn repair(path: &Path) -> Result<u64> {
    let fail = || format!("failed to repair path={}", path.display());
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(e).with_context(fail),
    };
    let (mut sound, mut last) = (0, 0);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let step =
            serde_json::from_slice(line).ok().and_then(|line: serde_json::Value| line["step"].as_u64());
        match step {
            Some(step) if line.ends_with(b"\n") => (sound, last) = (sound + line.len(), step),
            Some(_) | None => break,
        }
    }
    if sound < text.len() {
        let file = OpenOptions::new().write(true).open(path);
        file.and_then(|file| file.set_len(sound as u64)).with_context(fail)?;
    }
    Ok(last)
}

/// A view that also tells which version is the newest.
pub(super) struct Watched {
    /// Where the run is shown.
    pub(super) view: Box<dyn View>,
    /// The newest version.
    pub(super) newest: watch::Sender<PolicyVersion>,
}

impl View for Watched {
    fn event(&mut self, line: &str) {
        self.view.event(line);
    }

    fn frame(&mut self, frame: &Frame) {
        self.newest.send_if_modified(|known| std::mem::replace(known, frame.status.version) != *known);
        self.view.frame(frame);
    }

    fn finish(&mut self) {
        self.view.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_is_removed_and_the_lines_before_it_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        assert_eq!(repair(&path).unwrap(), 0);
        let whole = "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.25}\n";
        for torn in ["", "{\"step\":3,\"lo", "{\"step\":3}", "\0\0\0\n{\"step\":9}\n"] {
            fs::write(&path, format!("{whole}{torn}")).unwrap();
            assert_eq!(repair(&path).unwrap(), 2, "{torn:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), whole, "{torn:?}");
        }
        append(&path, "{\"step\":3}\n").unwrap();
        assert_eq!(repair(&path).unwrap(), 3);
    }

    #[test]
    fn only_a_newer_version_is_told() {
        struct Nowhere;
        impl View for Nowhere {
            fn event(&mut self, _line: &str) {}
            fn frame(&mut self, _frame: &Frame) {}
            fn finish(&mut self) {}
        }
        let (newest, seen) = watch::channel(PolicyVersion(0));
        let mut view = Watched { view: Box::new(Nowhere), newest };
        let mut frame = |version| {
            let status = crate::sample::status(version);
            view.frame(&Frame {
                status,
                tokens_per_s: 0.0,
                generate_busy: None,
                train_busy: None,
                restarts: None,
            });
        };
        let mut seen = seen;
        for (version, is_new) in [(3, true), (3, false), (4, true)] {
            frame(version);
            assert_eq!(seen.has_changed().unwrap(), is_new, "{version}");
            seen.mark_unchanged();
        }
    }
}
