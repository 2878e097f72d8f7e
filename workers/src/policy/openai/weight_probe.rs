//! The weight probe tells one version's weights from another's. It compares the log-probabilities
//! of a fixed prompt, measured at the server, with those that the trainer recorded when it made the
//! version.
//!
//! With a record, it proves two things. First, the server's numbers are within the tolerance of the
//! record, and at most `FARTHER` times as far off as with its best version: a server's rounding
//! stays the same, an old part of its weights does not. Second, they moved from the version before
//! as the trainer's did, as far as that is more than the tolerance. And it proves that the numbers
//! are not bit for bit those of the version before, unless the trainer's are the same, too: a step
//! in which all rewards are equal has no gradient, and its version is the last one's weights in
//! another file. So a reload that did nothing is found wherever it matters, but two versions that
//! differ by less than the tolerance on the probe are not told apart.

use std::collections::BTreeMap;

use millrace_policy::probe::{PROBE_FILE, ProbeRecord};
use millrace_policy::{LoadedVersion, PolicyError, is_for_training};
use millrace_schemas::{BlobRef, PolicyVersion};

use super::ServerError;

/// The share of the trainer's change that the server must make at least.
const MOVED: f64 = 0.5;
/// A server may be this many times as far off a record as with its best version.
const FARTHER: f64 = 10.0;
/// A difference that is always allowed, nats a token: rounding in f32 explains it.
const ROUNDING: f64 = 1e-4;
/// Records that differ by less, nats a token, are of the same weights, to the last bit of a number.
const UNMOVED: f64 = 1e-6;
/// The context of a model whose version has no record. Servers take more.
const CONTEXT: usize = 1024;

/// A version, with what the probe needs of it.
#[derive(Debug, Clone)]
pub(crate) struct ProbedWeights {
    pub(crate) version: PolicyVersion,
    /// The prompt of the probe.
    pub(crate) tokens: Vec<u32>,
    record: Option<Vec<f32>>,
    /// Its model files: two versions may have the same.
    files: BTreeMap<String, BlobRef>,
}

impl ProbedWeights {
    /// Reads the probe of a version.
    ///
    /// # Errors
    /// The record is malformed.
    pub(crate) fn of(weights: &LoadedVersion, vocabulary: u32) -> Result<Self, PolicyError> {
        let refuse = |why| {
            PolicyError::Impossible(format!("failed to read {PROBE_FILE} of {}: {why}", weights.version))
        };
        let record = weights.files.get(PROBE_FILE).map(|content| ProbeRecord::read(content));
        let (tokens, record) = match record.transpose().map_err(refuse)? {
            Some(ProbeRecord { tokens, logprobs }) => (tokens, Some(logprobs)),
            None => (ProbeRecord::prompt(vocabulary, CONTEXT), None),
        };
        let is_model = |name: &str| !is_for_training(name) && name != PROBE_FILE;
        let files = weights.manifest.files.iter().filter(|file| is_model(&file.name));
        let files = files.map(|file| (file.name.clone(), file.blob)).collect();
        Ok(Self { version: weights.version, tokens, record, files })
    }
}

/// A version that a server has proved.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) weights: ProbedWeights,
    /// The server's log-probabilities. `[T - 1]`
    pub(crate) logprobs: Vec<f32>,
    /// The smallest distance from a record over all versions that the server has proved; nats a
    /// token, mean over the probe. `None` before the first record.
    pub(crate) nearest: Option<f64>,
}

/// Proves by the measurement `after` that a server has the weights of `target`. `before` is what it
/// proved last. `comparable` tells whether the server measures what trainers record.
pub(crate) fn prove(
    before: Option<&Measured>,
    target: &ProbedWeights,
    after: &[f32],
    comparable: bool,
    tolerance: f64,
) -> Result<Measured, ServerError> {
    let mut nearest = before.and_then(|before| before.nearest);
    if let Some(record) = target.record.as_deref().filter(|_| comparable) {
        let off = near(target.version, distance(after, record), nearest, tolerance)?;
        nearest = Some(nearest.map_or(off, |nearest| nearest.min(off)));
    }
    has_moved(before, target, after, comparable, tolerance)?;
    Ok(Measured { weights: target.clone(), logprobs: after.to_vec(), nearest })
}

/// Checks that the server's arithmetic explains its distance from a record.
fn near(
    version: PolicyVersion,
    off: Option<f64>,
    nearest: Option<f64>,
    tolerance: f64,
) -> Result<f64, ServerError> {
    let Some(off) = off.filter(|off| *off <= tolerance) else {
        return Err(ServerError::OtherWeights(format!(
            "its probe is off by {off:?} nats a token from what the trainer of {version} recorded, above \
             --engine-tolerance {tolerance}: it has other weights, or a part of them is old, or it computes in a lower \
             precision than the tolerance is for; restart the server, or raise the tolerance to what its precision \
             explains (f32 1e-4, bf16 0.2)"
        )));
    };
    match nearest {
        Some(nearest) if off > (FARTHER * nearest).max(ROUNDING) => Err(ServerError::OtherWeights(format!(
            "its probe is off by {off:.2e} nats a token from what the trainer of {version} recorded, and was off by \
             {nearest:.2e} with other versions: a part of its weights is old; restart it for each version with \
             --engine-reload-command. If it was restarted in another precision, restart this worker, too"
        ))),
        _ => Ok(off),
    }
}

/// Refuses a server whose numbers did not move as the trainer's did.
fn has_moved(
    before: Option<&Measured>,
    target: &ProbedWeights,
    after: &[f32],
    comparable: bool,
    tolerance: f64,
) -> Result<(), ServerError> {
    let version = target.version;
    let Some(before) = before.filter(|before| before.weights.tokens == target.tokens) else { return Ok(()) };
    if before.weights.files == target.files {
        return same(&before.logprobs, after, tolerance);
    }
    let old = before.weights.version;
    // As the trainer recorded it, also where a server measures something else.
    let records = before.weights.record.as_deref().zip(target.record.as_deref());
    let change = records.and_then(|(old, new)| distance(old, new));
    if before.logprobs == after && change.is_none_or(|change| change > UNMOVED) {
        let reason = format!("after reading {version} its probe is what it was with {old}, bit for bit");
        return Err(ServerError::OtherWeights(reason));
    }
    if comparable
        && let Some((old_record, record)) = records
        && change.is_some_and(|change| change > tolerance)
    {
        let moved = moved(old_record, record, &before.logprobs, after);
        if moved < MOVED {
            return Err(ServerError::OtherWeights(format!(
                "after reading {version} its probe made {moved:.2} of the change from {old} that the trainer recorded"
            )));
        }
    }
    Ok(())
}

/// Whether two measurements are of the same weights, to the tolerance.
pub(crate) fn same(before: &[f32], after: &[f32], tolerance: f64) -> Result<(), ServerError> {
    match distance(before, after) {
        Some(off) if off <= tolerance => Ok(()),
        off => Err(ServerError::OtherWeights(format!(
            "its probe is off by {off:?} nats a token from what it was, above --engine-tolerance {tolerance}"
        ))),
    }
}

/// Mean of the absolute differences; `None` for other lengths.
fn distance(a: &[f32], b: &[f32]) -> Option<f64> {
    let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).sum();
    (a.len() == b.len() && !a.is_empty()).then(|| sum / a.len() as f64)
}

/// How much of the change from `old` to `new` is in the change from `before` to `after`: 0 for
/// none, 1 for all. A constant difference between server and trainer cancels.
fn moved(old: &[f32], new: &[f32], before: &[f32], after: &[f32]) -> f64 {
    let change = |from: &[f32], to: &[f32]| -> Vec<f64> {
        to.iter().zip(from).map(|(to, from)| f64::from(to - from)).collect()
    };
    let (ours, theirs) = (change(old, new), change(before, after));
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    dot(&theirs, &ours) / dot(&ours, &ours)
}

/// Whether a server's log-probabilities of the likeliest tokens are flatter at temperature 2 than
/// at 1.
pub(super) fn is_scaled(at_one: &[(String, f64)], at_two: &[(String, f64)]) -> bool {
    let two: BTreeMap<&str, f64> = at_two.iter().map(|(token, p)| (token.as_str(), *p)).collect();
    let mut common: Vec<(f64, f64)> =
        at_one.iter().filter_map(|(token, one)| Some((*one, *two.get(token.as_str())?))).collect();
    common.sort_by(|a, b| a.0.total_cmp(&b.0));
    match (common.first(), common.last()) {
        // Where all are as likely nothing is seen, and nothing is claimed.
        (Some(low), Some(high)) if high.0 - low.0 > 1e-4 => (high.1 - low.1) / (high.0 - low.0) < 0.75,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
