//! The exchange between the members of a formation before a step: which of them send the weights
//! and the optimiser's state to the others. Each member decides from the same records, so all
//! decide the same.

use std::collections::BTreeMap;

use millrace_policy::{LoadedVersion, TrainStep};
use tch::{Device, Kind, Tensor};

use crate::gang::{GangError, Group};

/// Numbers of a [`Record`].
const NUMBERS: usize = 15;

/// The part of the optimiser's state that a member holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    /// Number of parts.
    pub(super) world: i64,
    /// The part, below `world`.
    pub(super) rank: i64,
}

/// What a member tells the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Its step: the version and its hash, the batch's hash, and whether it is a checkpoint.
    step: [i64; 12],
    /// It has the weights of that version, and this part of the state; `None` if it has neither.
    pub(super) holds: Option<Part>,
}

impl Record {
    pub(super) fn of(base: &LoadedVersion, step: &TrainStep<'_>, holds: Option<Part>) -> Self {
        let mut numbers = [0; 12];
        numbers[0] = base.version.0 as i64;
        let hashes = base.sha.0.iter().chain(&step.blob.sha256.0).copied().collect::<Vec<u8>>();
        for (number, bytes) in numbers[1..9].iter_mut().zip(hashes.chunks_exact(8)) {
            *number = i64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        numbers[9] = i64::from(step.checkpoint);
        Self { step: numbers, holds }
    }

    fn numbers(&self) -> Vec<i64> {
        let Part { world, rank } = self.holds.unwrap_or(Part { world: 0, rank: 0 });
        let holds = [i64::from(self.holds.is_some()), world, rank];
        self.step.iter().chain(&holds).copied().collect()
    }

    fn read(numbers: &[i64]) -> Self {
        let (step, holds) = numbers.split_at(12);
        let part = Part { world: holds[1], rank: holds[2] };
        Self { step: step.try_into().expect("twelve numbers"), holds: (holds[0] == 1).then_some(part) }
    }
}

/// Exchanges records; returns those of all members by rank.
///
/// # Errors
/// A member is lost, or the members are at different steps.
pub(super) fn exchange(group: &Group, own: &Record, device: Device) -> Result<Vec<Record>, GangError> {
    let world = i64::from(group.assignment().world);
    let all = Tensor::zeros([world * NUMBERS as i64], (Kind::Int64, device));
    group.all_gather(&all, &Tensor::from_slice(&own.numbers()).to_device(device))?;
    let all = Vec::<i64>::try_from(&all).expect("one axis of i64");
    let records: Vec<Record> = all.chunks_exact(NUMBERS).map(Record::read).collect();
    match records.iter().position(|record| record.step != own.step) {
        None => Ok(records),
        Some(rank) => {
            let (theirs, ours) = (records[rank].step[0], own.step[0]);
            Err(GangError::Disagree(format!(
                "rank={rank} is at another step, on base=v{theirs}; this one on base=v{ours}"
            )))
        }
    }
}

/// Where the optimiser's state comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// Every member has its part already.
    InPlace,
    /// The members have all of it in another partition: for each part, the member that broadcasts
    /// it.
    Members(BTreeMap<Part, u32>),
    /// The newest checkpoint, and the steps since, which are redone.
    Checkpoint,
}

/// What a formation does before its step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// The member that broadcasts the weights; `None` if all have them, or none has.
    pub(super) weights_from: Option<u32>,
    /// Whether any member has the weights.
    pub(super) has_weights: bool,
    pub(super) moments: Source,
}

impl Plan {
    /// The plan that follows from the records of all members.
    pub(super) fn of(records: &[Record]) -> Self {
        let holders: Vec<(u32, Part)> =
            (0..).zip(records).filter_map(|(rank, record)| Some((rank, record.holds?))).collect();
        let first = holders.first().map(|(rank, _)| *rank);
        let weights_from = first.filter(|_| holders.len() < records.len());
        Self { weights_from, has_weights: first.is_some(), moments: Self::moments(&holders, records.len()) }
    }

    fn moments(holders: &[(u32, Part)], members: usize) -> Source {
        let in_place =
            |&(rank, part): &(u32, Part)| part == Part { world: members as i64, rank: i64::from(rank) };
        if holders.len() == members && holders.iter().all(in_place) {
            return Source::InPlace;
        }
        let mut owners: BTreeMap<i64, BTreeMap<Part, u32>> = BTreeMap::new();
        for (rank, part) in holders {
            owners.entry(part.world).or_default().entry(*part).or_insert(*rank);
        }
        let whole = owners.into_iter().find(|(world, parts)| parts.len() as i64 == *world);
        whole.map_or(Source::Checkpoint, |(_, parts)| Source::Members(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(parts: &[Option<(i64, i64)>]) -> Plan {
        let record = |part: &Option<(i64, i64)>| Record {
            step: [7; 12],
            holds: part.map(|(rank, world)| Part { world, rank }),
        };
        Plan::of(&parts.iter().map(record).collect::<Vec<_>>())
    }

    #[test]
    fn the_plan_follows_from_what_members_have() {
        let settled = plan(&[Some((0, 2)), Some((1, 2))]);
        assert_eq!((settled.weights_from, settled.moments), (None, Source::InPlace));
        // One more, and in another order.
        let grown = plan(&[None, Some((1, 2)), Some((0, 2))]);
        assert_eq!(grown.weights_from, Some(1));
        let parts = [(Part { world: 2, rank: 0 }, 2), (Part { world: 2, rank: 1 }, 1)];
        assert_eq!(grown.moments, Source::Members(parts.into()));
        // A part that nobody has.
        let lost = plan(&[Some((0, 3)), Some((2, 3))]);
        assert_eq!((lost.weights_from, lost.moments), (None, Source::Checkpoint));
        let on_policy = plan(&[None, None]);
        assert_eq!(
            (on_policy.has_weights, on_policy.weights_from, on_policy.moments),
            (false, None, Source::Checkpoint)
        );
        // The whole at one member is enough, even if others have a part of something smaller.
        let mixed = plan(&[Some((0, 2)), Some((0, 1))]);
        assert_eq!(mixed.moments, Source::Members([(Part { world: 1, rank: 0 }, 1)].into()));
    }

    #[test]
    fn a_record_survives_its_numbers() {
        let record =
            Record { step: std::array::from_fn(|n| n as i64), holds: Some(Part { world: 3, rank: 2 }) };
        assert_eq!(record.numbers().len(), NUMBERS);
        assert_eq!(Record::read(&record.numbers()), record);
        let empty = Record { holds: None, ..record };
        assert_eq!(Record::read(&empty.numbers()), empty);
    }
}
