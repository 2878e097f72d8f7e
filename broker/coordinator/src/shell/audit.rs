//! Recounts a run from its committed versions alone: the manifests and the batches in the object
//! store. It shares no counter with the coordinator, so that it reveals mistakes in the books.
//!
//! [`Recount`] is pure; [`audit`] reads the object store for it.

use std::collections::HashMap;

use millrace_schemas::api::Status;
use millrace_schemas::blob::Sha;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::train_shard::{Batch, BatchRollout};
use millrace_schemas::{PolicyVersion, RolloutId, RunId};

mod read;

pub use read::{AuditError, audit, read_version};

/// Findings that are listed; of further ones only the number is reported.
const MAX_FINDINGS: usize = 50;

/// The coordinator's books, which the recount is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The run.
    pub run: RunId,
    /// The newest version.
    pub version: PolicyVersion,
    /// Greatest staleness that a trained rollout may have, in versions.
    pub max_staleness: u64,
    /// Rollouts trained.
    pub trained: u64,
    /// Trained rollouts; the index is the staleness, in versions.
    pub staleness: Vec<u64>,
}

impl Claim {
    /// What a run's status claims.
    #[must_use]
    pub fn of(status: &Status) -> Self {
        Self {
            run: status.run.clone(),
            version: status.version,
            max_staleness: status.alpha.ceil() as u64,
            trained: status.ledger.trained,
            staleness: status.staleness.clone(),
        }
    }
}

/// What the recount found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Audit {
    /// Versions found, version 0 included.
    pub versions: u64,
    /// Rollouts found in the batches that they were trained on.
    pub trained: u64,
    /// Rollouts found; the index is the staleness, in versions.
    pub staleness: Vec<u64>,
    /// Everything that is wrong, for people; empty if nothing is.
    pub findings: Vec<String>,
}

impl Audit {
    /// Whether nothing is wrong.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Greatest staleness of a trained rollout, in versions.
    #[must_use]
    pub fn max_staleness(&self) -> u64 {
        greatest(&self.staleness)
    }
}

/// The greatest index with a count.
fn greatest(staleness: &[u64]) -> u64 {
    staleness.iter().rposition(|count| *count > 0).unwrap_or(0) as u64
}

/// One version as stored.
#[derive(Debug, Clone)]
pub struct StoredVersion {
    /// Hash of the manifest's bytes.
    pub sha256: Sha,
    /// The manifest.
    pub manifest: Manifest,
    /// The batch that it names, proven by its hash.
    pub batch: Option<Batch>,
}

/// Counts versions one after another.
#[derive(Debug)]
pub struct Recount {
    claim: Claim,
    audit: Audit,
    findings: usize,
    /// Hash of the manifest counted last.
    parent: Option<Sha>,
    config: Option<Sha>,
    /// Which version each rollout slot (group, index) was trained for.
    seen: HashMap<(u64, u32), (RolloutId, PolicyVersion)>,
}

impl Recount {
    /// Begins a recount.
    #[must_use]
    pub fn new(claim: Claim) -> Self {
        Self { claim, audit: Audit::default(), findings: 0, parent: None, config: None, seen: HashMap::new() }
    }

    fn find(&mut self, finding: String) {
        self.findings += 1;
        if self.findings <= MAX_FINDINGS {
            self.audit.findings.push(finding);
        }
    }

    /// Counts a version. Versions come in order from 0. `Err` is the reason why it cannot be read.
    pub fn count(&mut self, version: PolicyVersion, stored: Result<StoredVersion, String>) {
        let stored = match stored {
            Ok(stored) => stored,
            Err(reason) => {
                self.find(format!("{version}: {reason}"));
                self.parent = None;
                return;
            }
        };
        self.audit.versions += 1;
        self.check_manifest(version, &stored);
        match (&stored.batch, version.0) {
            (None, 0) => {}
            (None, _) => self.find(format!("{version}: its manifest names no batch")),
            (Some(_), 0) => self.find(format!("{version}: the initial version names a batch")),
            (Some(batch), _) => self.check_batch(version, batch, &stored.manifest),
        }
        self.parent = Some(stored.sha256);
    }

    fn check_manifest(&mut self, version: PolicyVersion, stored: &StoredVersion) {
        let manifest = &stored.manifest;
        if manifest.version != version || manifest.run != self.claim.run {
            self.find(format!("{version}: its manifest is of run={} {}", manifest.run, manifest.version));
        }
        match (version.0, manifest.parent, self.parent) {
            (0, None, _) => {}
            (0, Some(parent), _) => self.find(format!("{version}: the initial version has parent={parent}")),
            (_, Some(parent), Some(expected)) if parent == expected => {}
            // The version before could not be read, which is a finding already.
            (_, Some(_), None) => {}
            (_, parent, _) => self.find(format!(
                "{version}: parent={} is not the version before",
                parent.map_or("none".into(), |sha| sha.short())
            )),
        }
        let config = *self.config.get_or_insert(manifest.config);
        if manifest.config != config {
            self.find(format!("{version}: made with another run file, config={}", manifest.config.short()));
        }
    }

    fn check_batch(&mut self, version: PolicyVersion, batch: &Batch, manifest: &Manifest) {
        if batch.run != self.claim.run || batch.base.next() != version {
            self.find(format!("{version}: its batch is of run={} base={}", batch.run, batch.base));
        }
        if self.parent.is_some_and(|parent| parent != batch.manifest) {
            self.find(format!("{version}: its batch is meant for manifest={}", batch.manifest.short()));
        }
        if batch.config != manifest.config {
            self.find(format!("{version}: its batch is of another run file"));
        }
        // Staleness is counted from the version that the step made, and not from the batch's own
        // `base`.
        let base = PolicyVersion(version.0.saturating_sub(1));
        for group in &batch.groups {
            for rollout in &group.rollouts {
                if rollout.id.group != group.group {
                    self.find(format!("{version}: rollout {} is in group {}", rollout.id, group.group));
                }
                self.check_rollout(version, base, rollout);
            }
        }
    }

    fn check_rollout(&mut self, version: PolicyVersion, base: PolicyVersion, rollout: &BatchRollout) {
        let id = rollout.id;
        self.audit.trained += 1;
        if let Some((other, at)) = self.seen.insert((id.group, id.index), (id, version)) {
            self.find(format!("{version}: rollout {id} was trained already, as {other} for {at}"));
        }
        if rollout.start_version > base {
            self.find(format!("{version}: rollout {id} starts at {}, after {base}", rollout.start_version));
        }
        let staleness = base.staleness(rollout.start_version);
        let bound = self.claim.max_staleness;
        if staleness > bound {
            self.find(format!("{version}: rollout {id} has staleness={staleness}, more than {bound}"));
        }
        let at = usize::try_from(staleness).unwrap_or(usize::MAX).min(1 << 16);
        if self.audit.staleness.len() <= at {
            self.audit.staleness.resize(at + 1, 0);
        }
        self.audit.staleness[at] += 1;
        self.check_segments(version, base, rollout);
    }

    /// The start version must be that of the oldest token, and no token may be of a version after
    /// the base.
    fn check_segments(&mut self, version: PolicyVersion, base: PolicyVersion, rollout: &BatchRollout) {
        let mut segments = rollout.turns.iter().flat_map(|turn| &turn.segments).map(|s| s.version);
        let first = segments.clone().min();
        if first != Some(rollout.start_version) {
            let first = first.map_or("none".into(), |v| v.to_string());
            let (id, start) = (rollout.id, rollout.start_version);
            self.find(format!(
                "{version}: rollout {id} claims to start at {start}; its oldest token is {first}"
            ));
        }
        if let Some(late) = segments.find(|segment| *segment > base) {
            self.find(format!("{version}: rollout {} holds tokens of {late}, after {base}", rollout.id));
        }
    }

    /// Reports a committed version after the last that the run made.
    pub fn beyond(&mut self, version: PolicyVersion) {
        self.find(format!("{version}: committed, though the run ended before"));
    }

    /// Compares the count with the claim.
    #[must_use]
    pub fn finish(mut self) -> Audit {
        let (trained, claimed) = (self.audit.trained, self.claim.trained);
        if trained != claimed {
            self.find(format!("the batches hold rollouts={trained}; the ledger says trained={claimed}"));
        }
        let (most, claimed) = (self.audit.max_staleness(), greatest(&self.claim.staleness));
        if most != claimed {
            self.find(format!("greatest staleness is {most}; the status has {claimed}"));
        } else if trimmed(&self.audit.staleness) != trimmed(&self.claim.staleness) {
            let (found, claimed) = (&self.audit.staleness, &self.claim.staleness);
            let finding = format!("rollouts by staleness are {found:?}; the status has {claimed:?}");
            self.find(finding);
        }
        if self.findings > MAX_FINDINGS {
            self.audit.findings.push(format!("and {} more", self.findings - MAX_FINDINGS));
        }
        self.audit
    }
}

/// Without the zeros at the end.
fn trimmed(counts: &[u64]) -> &[u64] {
    &counts[..counts.iter().rposition(|count| *count > 0).map_or(0, |at| at + 1)]
}

#[cfg(test)]
mod tests;
