//! The ZeRO partition (Rajbhandari et al., 2020): which member owns which part of the flat buffer.
//! Buckets of whole leaves are reduced one by one. Each member owns one part of each bucket, all of
//! equal length. It updates the weights of its parts, and it alone has their moments.

use millrace_policy::Place;
use tch::{Device, Kind, Tensor};

use crate::decoder::{Config, Layout, Part};
use crate::gang::Group;

/// Bytes of a bucket of gradients: enough to be worth a collective, few enough that the first is
/// full early in backward. NCCL's collectives reach the speed of a link with tens of megabytes.
pub(super) const fn bucket_bytes(device: Device) -> i64 {
    match device {
        Device::Cuda(_) => 64 << 20,
        _ => 4 << 20,
    }
}

/// Neighbouring leaves whose gradients are reduced together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bucket {
    /// Its leaves, by index in the decoder's list.
    pub(super) leaves: std::ops::Range<usize>,
    /// Its start in the flat buffer.
    pub(super) from: i64,
    /// Its elements.
    pub(super) len: i64,
    /// Elements of each member's part; the last parts may be padding.
    pub(super) part: i64,
    /// Its part's start among a member's parts.
    pub(super) own_at: i64,
}

/// A range of the flat buffer that one member owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OwnedRange {
    pub(super) flat_at: i64,
    pub(super) own_at: i64,
    pub(super) len: i64,
}

/// The buckets, and the parts of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ZeroPartition {
    pub(super) rank: i64,
    pub(super) world: i64,
    /// In the order of their reduction: backward computes the last leaves first.
    pub(super) buckets: Vec<Bucket>,
    /// Elements of this member's parts with their padding.
    pub(super) own_len: i64,
}

impl ZeroPartition {
    /// This member's place in the gang.
    pub(super) const fn place(&self) -> Place {
        Place { rank: self.rank as u32, world: self.world as u32 }
    }

    /// Partitions a decoder of this config over the members of a gang, or over one.
    pub(super) fn over(group: Option<&Group>, config: &Config, bucket_bytes: i64) -> Self {
        let assigned = |group: &Group| (group.assignment().rank, group.assignment().world);
        let (rank, world) = group.map_or((0, 1), assigned);
        Self::of(&Layout::of(config).leaf_lengths(), rank, world, bucket_bytes)
    }

    /// Partitions leaves of these lengths, which fill the flat buffer in order. In a gang of one
    /// there is one bucket, the flat buffer as it is.
    pub(super) fn of(leaves: &[i64], rank: u32, world: u32, bucket_bytes: i64) -> Self {
        let (rank, world) = (i64::from(rank), i64::from(world));
        let most = if world == 1 { i64::MAX } else { bucket_bytes / size_of::<f32>() as i64 };
        let mut partition = Self { rank, world, buckets: Vec::new(), own_len: 0 };
        let mut end: i64 = leaves.iter().sum();
        let mut last = leaves.len();
        while last > 0 {
            let (mut first, mut len) = (last - 1, leaves[last - 1]);
            while first > 0 && len + leaves[first - 1] <= most {
                first -= 1;
                len += leaves[first];
            }
            let part = (len + world - 1) / world;
            end -= len;
            let own_at = partition.own_len;
            partition.buckets.push(Bucket { leaves: first..last, from: end, len, part, own_at });
            partition.own_len += part;
            last = first;
        }
        partition
    }

    /// The ranges that this member owns, without padding.
    pub(super) fn ranges(&self) -> Vec<OwnedRange> {
        let range = |bucket: &Bucket| {
            let skipped = bucket.part * self.rank;
            let len = (bucket.len - skipped).min(bucket.part);
            (len > 0).then_some(OwnedRange { flat_at: bucket.from + skipped, own_at: bucket.own_at, len })
        };
        self.buckets.iter().filter_map(range).collect()
    }

    /// The ranges of this member's parts with weight decay.
    pub(super) fn decayed(&self, layout: &Layout, decays: impl Fn(&Part) -> bool) -> Vec<OwnedRange> {
        let mut decayed: Vec<OwnedRange> = Vec::new();
        for range in self.ranges() {
            for part in layout.parts.iter().filter(|part| decays(part)) {
                let from = part.offset.max(range.flat_at);
                let len = (part.offset + part.len()).min(range.flat_at + range.len) - from;
                let own_at = range.own_at + from - range.flat_at;
                match decayed.last_mut() {
                    Some(last) if len > 0 && last.own_at + last.len == own_at => last.len += len,
                    _ if len > 0 => decayed.push(OwnedRange { flat_at: from, own_at, len }),
                    _ => {}
                }
            }
        }
        decayed
    }

    /// The bucket of the gradient of leaf `index`, and its start within it. The leaves have these
    /// lengths.
    pub(super) fn gradient_at(&self, index: usize, leaves: &[i64]) -> (usize, i64) {
        let bucket = self.buckets.iter().position(|bucket| bucket.leaves.contains(&index));
        let bucket = bucket.expect("every leaf is in a bucket");
        (bucket, leaves[self.buckets[bucket].leaves.start..index].iter().sum())
    }

    /// This member's parts of a flat buffer, the padding 0. In a gang of one it is the buffer
    /// itself.
    pub(super) fn own(&self, flat: &Tensor) -> Tensor {
        if self.world == 1 {
            return flat.shallow_clone();
        }
        let own = Tensor::zeros([self.own_len], (Kind::Float, flat.device()));
        for range in self.ranges() {
            own.narrow(0, range.own_at, range.len).copy_(&flat.narrow(0, range.flat_at, range.len));
        }
        own
    }
}

/// Copies the elements that two sets of ranges share, from `source` to `target`. Returns how many.
pub(super) fn copy_shared(from: &[OwnedRange], source: &Tensor, to: &[OwnedRange], target: &Tensor) -> i64 {
    let mut copied = 0;
    for (a, b) in from.iter().flat_map(|a| to.iter().map(move |b| (a, b))) {
        let at = a.flat_at.max(b.flat_at);
        let len = (a.flat_at + a.len).min(b.flat_at + b.len) - at;
        if len > 0 {
            let read = source.narrow(0, a.own_at + at - a.flat_at, len);
            target.narrow(0, b.own_at + at - b.flat_at, len).copy_(&read);
            copied += len;
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_owned_once_whatever_the_world_and_the_buckets() {
        let leaves = [7, 3, 11, 1, 2, 5];
        for world in 1..=5 {
            for bucket_bytes in [4, 40, 1000] {
                let partitions: Vec<ZeroPartition> =
                    (0..world).map(|rank| ZeroPartition::of(&leaves, rank, world, bucket_bytes)).collect();
                let mut owners = [0; 29];
                for range in partitions.iter().flat_map(ZeroPartition::ranges) {
                    (range.flat_at..range.flat_at + range.len).for_each(|at| owners[at as usize] += 1);
                }
                assert_eq!(owners, [1; 29], "world={world} bucket_bytes={bucket_bytes}");
                assert!(partitions.iter().all(|partition| partition.buckets == partitions[0].buckets));
            }
        }
    }

    #[test]
    fn backward_fills_the_first_bucket_first_and_a_large_leaf_has_its_own() {
        let partition = ZeroPartition::of(&[100, 2, 3, 4], 1, 2, 40);
        let leaves: Vec<_> = partition.buckets.iter().map(|bucket| bucket.leaves.clone()).collect();
        assert_eq!(leaves, [1..4, 0..1]);
        assert_eq!((partition.buckets[0].part, partition.own_len), (5, 55));
        assert_eq!(partition.gradient_at(2, &[100, 2, 3, 4]), (0, 2));
        assert_eq!(partition.gradient_at(0, &[100, 2, 3, 4]), (1, 0));
        assert_eq!(ZeroPartition::of(&[100, 2, 3, 4], 0, 1, 40).buckets.len(), 1);
    }

    #[test]
    fn parts_move_from_one_partition_to_another() {
        let leaves = [7, 3, 11, 1, 2, 5];
        let flat = Tensor::arange(29, (Kind::Float, Device::Cpu));
        let old: Vec<ZeroPartition> = (0..3).map(|rank| ZeroPartition::of(&leaves, rank, 3, 40)).collect();
        for rank in 0..2 {
            let new = ZeroPartition::of(&leaves, rank, 2, 40);
            let target = Tensor::zeros([new.own_len], (Kind::Float, Device::Cpu));
            for old in &old {
                copy_shared(&old.ranges(), &old.own(&flat), &new.ranges(), &target);
            }
            assert_eq!(target, new.own(&flat));
        }
    }
}
