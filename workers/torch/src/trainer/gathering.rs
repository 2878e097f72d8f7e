//! Weights of which each member keeps its part (ZeRO, third stage: Rajbhandari et al., 2020). The
//! members gather a bucket when a layer needs it, the next layer's buckets meanwhile, and let go of
//! it after the layer. So all members must visit the same layers in the same order.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use tch::{Device, Tensor};

use super::gradients::stays;
use super::zero_partition::{Bucket, ZeroPartition};
use crate::decoder::Decoder;
use crate::gang::{GangError, Group, Work};

/// Buckets that are gathered at once where all are.
const AT_ONCE: usize = 4;

/// The weights of a hollow decoder. Embedding, output layer and critic, whose gradients are whole
/// too, stay from the first layer on.
#[derive(Debug)]
pub(super) struct Gathering<'a> {
    group: &'a Group,
    partition: ZeroPartition,
    /// Buckets that are not let go of. `[buckets]`
    stay: Vec<bool>,
    /// This member's parts, of f32 or as the decoder computes. `[partition.own_len]`
    own: RefCell<Tensor>,
    /// `[buckets]`
    gathered: RefCell<Vec<Option<Gathered>>>,
    /// The most elements that were there at once, without those that stay.
    most: Cell<i64>,
}

/// A bucket that is there or on its way.
struct Gathered {
    /// `[part · world]`
    whole: Tensor,
    /// The collective reads it.
    _part: Tensor,
    /// Until it has arrived.
    work: Option<Result<Work, GangError>>,
}

impl std::fmt::Debug for Gathered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gathered {{ arrived: {} }}", self.work.is_none())
    }
}

impl<'a> Gathering<'a> {
    /// Of this decoder, whose weights are these parts `own`.
    pub(super) fn new(group: &'a Group, partition: &ZeroPartition, decoder: &Decoder, own: &Tensor) -> Self {
        let stay = partition.buckets.iter().map(|bucket| stays(decoder, bucket)).collect();
        let gathered = partition.buckets.iter().map(|_| None).collect();
        Self {
            group,
            partition: partition.clone(),
            stay,
            own: RefCell::new(near(decoder, own)),
            gathered: RefCell::new(gathered),
            most: Cell::new(0),
        }
    }

    /// This member's parts have changed: what was gathered is let go of.
    pub(super) fn renew(&self, decoder: &Decoder, own: &Tensor) {
        self.let_all_go(decoder);
        *self.own.borrow_mut() = near(decoder, own);
    }

    /// Has the leaves of a layer there, and gathers those of the `next` meanwhile. What neither
    /// needs is let go of.
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn hold(&self, decoder: &Decoder, layer: usize, next: Option<usize>) -> Result<(), GangError> {
        let [now, soon] = [Some(layer), next].map(|layer| layer.map(|layer| self.buckets_of(decoder, layer)));
        let is_in =
            |range: &Option<Range<usize>>, index| range.as_ref().is_some_and(|range| range.contains(&index));
        let is_needed = |index: usize| self.stay[index] || is_in(&now, index);
        self.let_go(decoder, |index| is_needed(index) || is_in(&soon, index));
        let mut gathered = self.gathered.borrow_mut();
        let all = 0..gathered.len();
        let first = all.clone().filter(|&index| is_needed(index));
        for index in first.clone().chain(all.filter(|&index| is_in(&soon, index))) {
            gathered[index].get_or_insert_with(|| self.start(decoder, &self.partition.buckets[index]));
        }
        for index in first {
            if let Some(work) = gathered[index].as_mut().and_then(|gathered| gathered.work.take()) {
                self.group.wait(work)?;
                let whole = &gathered[index].as_ref().expect("it was started").whole;
                decoder.lay(self.partition.buckets[index].leaves.clone(), whole);
            }
        }
        let there = self.partition.buckets.iter().enumerate();
        let there = there.filter(|(index, _)| !self.stay[*index] && gathered[*index].is_some());
        self.most.set(self.most.get().max(there.map(|(_, bucket)| bucket.len).sum()));
        Ok(())
    }

    /// All weights, `[layout.len]` in the host's memory.
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn collect(&self, decoder: &Decoder) -> Result<Tensor, GangError> {
        let flat = Tensor::empty(decoder.flat().size(), (decoder.flat().kind(), Device::Cpu));
        let buckets = &self.partition.buckets;
        gather(self.group, buckets, AT_ONCE, &flat, |index| self.room_and_part(decoder, &buckets[index]))?;
        Ok(flat)
    }

    /// The most elements that were gathered at once, without those of buckets that stay; and all of
    /// the latter.
    pub(super) fn most(&self) -> (i64, i64) {
        let buckets = self.partition.buckets.iter().zip(&self.stay);
        (self.most.get(), buckets.filter(|(_, stays)| **stays).map(|(bucket, _)| bucket.len).sum())
    }

    /// The buckets with leaves of a layer.
    fn buckets_of(&self, decoder: &Decoder, layer: usize) -> Range<usize> {
        let leaves = decoder.leaves_of(layer);
        let has = |bucket: &Bucket| bucket.leaves.start < leaves.end && leaves.start < bucket.leaves.end;
        let buckets = &self.partition.buckets;
        let first = buckets.iter().position(has).expect("every leaf is in a bucket");
        first..first + buckets[first..].iter().take_while(|bucket| has(bucket)).count()
    }

    fn start(&self, decoder: &Decoder, bucket: &Bucket) -> Gathered {
        let (whole, part) = self.room_and_part(decoder, bucket);
        let work = Some(self.group.start_all_gather(&whole, &part));
        Gathered { whole, _part: part, work }
    }

    /// Room for a whole bucket, and this member's part of it, as the decoder computes.
    fn room_and_part(&self, decoder: &Decoder, bucket: &Bucket) -> (Tensor, Tensor) {
        let kind = decoder.flat().kind();
        let room = Tensor::empty([bucket.part * self.partition.world], (kind, decoder.device()));
        (room, self.own.borrow().narrow(0, bucket.own_at, bucket.part).to_kind(kind))
    }

    /// Lets go of all that was gathered.
    pub(super) fn let_all_go(&self, decoder: &Decoder) {
        self.let_go(decoder, |_| false);
    }

    fn let_go(&self, decoder: &Decoder, but: impl Fn(usize) -> bool) {
        for (index, gathered) in self.gathered.borrow_mut().iter_mut().enumerate() {
            if !but(index) && gathered.take().is_some() {
                decoder.withdraw(self.partition.buckets[index].leaves.clone());
            }
        }
    }
}

/// Gathers all buckets into `flat` `[layout.len]`, rounded to its kind, so many at once.
/// `room_and_part` gives room for a whole bucket, `[part · world]`, and this member's part of it.
///
/// # Errors
/// A member was lost.
pub(super) fn gather(
    group: &Group,
    buckets: &[Bucket],
    at_once: usize,
    flat: &Tensor,
    room_and_part: impl Fn(usize) -> (Tensor, Tensor),
) -> Result<(), GangError> {
    for (chunk, buckets) in buckets.chunks(at_once).enumerate() {
        let start = |index| {
            let (whole, part) = room_and_part(chunk * at_once + index);
            let work = group.start_all_gather(&whole, &part);
            (whole, part, work)
        };
        let under_way: Vec<_> = (0..buckets.len()).map(start).collect();
        for (bucket, (whole, _part, work)) in buckets.iter().zip(under_way) {
            group.wait(work)?;
            flat.narrow(0, bucket.from, bucket.len).copy_(&whole.narrow(0, 0, bucket.len));
        }
    }
    Ok(())
}

/// A member's parts where they can be sent from. Those that wait in the host's memory come as the
/// decoder computes, in which they are smallest.
fn near(decoder: &Decoder, own: &Tensor) -> Tensor {
    if own.device() == decoder.device() {
        return own.shallow_clone();
    }
    own.to_device_(decoder.device(), decoder.flat().kind(), false, false)
}
