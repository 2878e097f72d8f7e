//! What members exchange about their rows, so that each knows the advantages of all: numbers, where
//! otherwise every member would have to fetch the tokens of all rows.

use millrace_policy::PolicyError;
use millrace_schemas::blob::Sha;
use millrace_schemas::submit::{Advantage, KlPlace, OldPolicy};
use millrace_schemas::train_shard::{Batch, BatchRollout};
use tch::{Device, Tensor};

use super::per_token::{Looked, Row};
use super::update::{Member, Step};

/// Digest of an observation. Those of unlike observations differ.
pub(super) type ObservationDigest = [u32; 4];

/// Adds to the rows what advantages depend on, beside lengths and rewards, and returns what was
/// observed before each turn of each row: `[rows][turns]`, or `[rows][0]` where no advantage depends
/// on it. `own` are the rows that this member computes: each row is one member's.
pub(super) fn exchange(
    step: &Step<'_>,
    rows: &mut [Row<Looked>],
    own: &[usize],
    member: &Member<'_>,
    device: Device,
) -> Result<Vec<Vec<ObservationDigest>>, PolicyError> {
    let algorithm = step.algorithm;
    let in_reward = algorithm.kl.is_some_and(|kl| kl.place == KlPlace::Reward);
    // The proximal policy's are known to all already.
    if in_reward && algorithm.old != OldPolicy::Proximal && member.group.is_some() {
        old_policies(rows, own, member, device)?;
    }
    if algorithm.advantage == Advantage::GiGpo {
        return observations(rows, step.batch, own, member, device);
    }
    Ok(vec![Vec::new(); rows.len()])
}

/// The old policy's log-probabilities, of which the KL penalty in the reward is the sum.
fn old_policies(
    rows: &mut [Row<Looked>],
    own: &[usize],
    member: &Member<'_>,
    device: Device,
) -> Result<(), PolicyError> {
    let lengths: Vec<usize> = rows.iter().map(Row::sampled).collect();
    let numbers = |index: usize| rows[index].values.old.iter().map(|number| f64::from(*number)).collect();
    let all = of_all(&lengths, own, numbers, member, device)?;
    for (row, numbers) in rows.iter_mut().zip(all) {
        if !row.is_here() {
            row.values.old = numbers.into_iter().map(|number| number as f32).collect();
        }
    }
    Ok(())
}

/// Digests of what was observed before each turn.
fn observations(
    rows: &[Row<Looked>],
    batch: &Batch,
    own: &[usize],
    member: &Member<'_>,
    device: Device,
) -> Result<Vec<Vec<ObservationDigest>>, PolicyError> {
    let rollouts: Vec<&BatchRollout> = batch.groups.iter().flat_map(|group| &group.rollouts).collect();
    let lengths: Vec<usize> = rows.iter().map(|row| row.turns.len() * WORDS).collect();
    let numbers =
        |index: usize| observed(rollouts[index]).as_flattened().iter().map(|word| f64::from(*word)).collect();
    let all = of_all(&lengths, own, numbers, member, device)?;
    let digests = |numbers: Vec<f64>| {
        let words: Vec<u32> = numbers.into_iter().map(|number| number as u32).collect();
        words.as_chunks().0.to_vec()
    };
    Ok(all.into_iter().map(digests).collect())
}

/// Numbers of an [`ObservationDigest`].
const WORDS: usize = size_of::<ObservationDigest>() / size_of::<u32>();

/// Digest of what was observed before each turn.
fn observed(rollout: &BatchRollout) -> Vec<ObservationDigest> {
    let mut seen = 0;
    let digest = |tokens: &[u32]| {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let sha = Sha::of(&bytes);
        std::array::from_fn(|word| {
            u32::from_le_bytes(std::array::from_fn(|byte| sha.0[word * size_of::<u32>() + byte]))
        })
    };
    let states = rollout.turns.iter().map(|turn| {
        let at = turn.at as usize;
        let state = digest(&rollout.tokens[seen..at]);
        seen = at + turn.logprobs.len();
        state
    });
    states.collect()
}

/// The numbers of all rows, of these lengths. Each member gives those of its `own`; every number is
/// one member's and 0 at the others, so their sum is exact.
fn of_all(
    lengths: &[usize],
    own: &[usize],
    numbers: impl Fn(usize) -> Vec<f64>,
    member: &Member<'_>,
    device: Device,
) -> Result<Vec<Vec<f64>>, PolicyError> {
    let mut rows: Vec<Vec<f64>> = lengths.iter().map(|length| vec![0.0; *length]).collect();
    own.iter().for_each(|&index| rows[index] = numbers(index));
    if member.group.is_none() {
        return Ok(rows);
    }
    let whole = Tensor::from_slice(&rows.concat()).to_device(device);
    member.add_up(&whole)?;
    let whole = Vec::<f64>::try_from(&whole).expect("one axis of f64");
    let mut whole = whole.into_iter();
    Ok(lengths.iter().map(|length| whole.by_ref().take(*length).collect()).collect())
}
