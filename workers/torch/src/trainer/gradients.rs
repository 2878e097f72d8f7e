//! The gradient of an update: where backward puts it, and how the members reduce it.

use tch::{Kind, Tensor};

use super::zero_partition::ZeroPartition;
use crate::decoder::Decoder;
use crate::gang::{GangError, Group, Reducer, add_gradient_to};

/// The gradient of one update. Backward adds each leaf's to its place, over all forwards. The
/// embedding's, the head's and the critic's are written by hand.
#[derive(Debug)]
pub(super) struct Gradients {
    embedding: ByHand,
    head: ByHand,
    critic: Option<ByHand>,
    /// All buckets, padded. `[partition.padded_len]`
    padded: Tensor,
    /// This member's parts of the sum. `[partition.own_len]`
    own: Tensor,
    /// Starts reductions while backward runs; `None` for a gang of one.
    reducer: Option<Reducer>,
    /// Since the beginning: buckets whose reduction began before the last backward ended, and all
    /// buckets.
    overlapped: (u64, u64),
}

/// A gradient that no backward writes.
#[derive(Debug)]
struct ByHand {
    /// As the leaf.
    gradient: Tensor,
    bucket: u32,
}

impl Gradients {
    /// Gradients of the decoder's leaves.
    pub(super) fn new(decoder: &Decoder, partition: &ZeroPartition, group: Option<&Group>) -> Self {
        let options = (Kind::Float, decoder.flat().device());
        let padded = Tensor::zeros([partition.padded_len], options);
        let leaves = decoder.leaves();
        let lengths = decoder.layout().leaf_lengths();
        let place = |index: usize| padded.narrow(0, partition.gradient_at(index, &lengths), lengths[index]);
        let by_hand = |index: usize| ByHand {
            gradient: place(index).view_as(leaves[index]),
            bucket: partition.buckets.iter().position(|bucket| bucket.leaves.contains(&index)).unwrap_or(0)
                as u32,
        };
        // The embedding is the first leaf; a head of its own is the last, and after it a critic.
        let critic = decoder.critic().map(|_| leaves.len() - 1);
        let last = critic.unwrap_or(leaves.len()) - 1;
        let head = if decoder.config().tie_word_embeddings { 0 } else { last };
        let is_by_hand = |index: usize| [0, head].contains(&index) || critic == Some(index);
        for (index, leaf) in leaves.iter().enumerate().filter(|(index, _)| !is_by_hand(*index)) {
            add_gradient_to(leaf, &place(index));
        }
        let (embedding, head_by_hand, critic) = (by_hand(0), by_hand(head), critic.map(by_hand));
        let (mut own, mut reducer) = (padded.shallow_clone(), None);
        if let Some(group) = group {
            own = Tensor::zeros([partition.own_len], options);
            reducer = Some(group.reducer());
        }
        for bucket in &partition.buckets {
            let Some(reducer) = &mut reducer else { break };
            reducer.add_bucket(
                &own.narrow(0, bucket.own_at, bucket.part),
                &padded.narrow(0, bucket.padded_at, bucket.part * partition.world),
            );
            for index in bucket.leaves.clone() {
                if is_by_hand(index) {
                    reducer.add_leaf_by_hand();
                } else {
                    reducer.add_leaf(leaves[index]);
                }
            }
        }
        Self { embedding, head: head_by_hand, critic, own, padded, reducer, overlapped: (0, 0) }
    }

    /// Zeroes the gradient of the update before.
    pub(super) fn clear(&mut self) {
        let _ = self.padded.zero_();
    }

    /// The sum of the head's gradient. `[vocabulary, width]`
    pub(super) const fn head(&self) -> &Tensor {
        &self.head.gradient
    }

    /// The head's gradient of a forward is complete. Where the head is the embedding, more is added
    /// later.
    pub(super) fn head_is_done(&mut self) {
        let tied = self.head.gradient.data_ptr() == self.embedding.gradient.data_ptr();
        if let Some(reducer) = self.reducer.as_mut().filter(|_| !tied) {
            reducer.filled(self.head.bucket);
        }
    }

    /// The sum of the critic's gradient. `[1, width]`
    ///
    /// # Panics
    /// There is none.
    pub(super) fn critic(&self) -> &Tensor {
        &self.critic.as_ref().expect("a decoder with a critic has its gradient").gradient
    }

    /// The critic's gradient of a forward is complete.
    pub(super) fn critic_is_done(&mut self) {
        if let (Some(reducer), Some(critic)) = (&mut self.reducer, &self.critic) {
            reducer.filled(critic.bucket);
        }
    }

    /// Adds the embedding's gradient of a forward, which backward computes last. `[vocabulary,
    /// width]`
    pub(super) fn add_embedding(&mut self, gradient: &Tensor) {
        self.embedding.gradient += gradient;
        if let Some(reducer) = &mut self.reducer {
            reducer.filled(self.embedding.bucket);
        }
    }

    /// The next backward is the last of this update.
    pub(super) fn last(&mut self) {
        if let Some(reducer) = &mut self.reducer {
            reducer.arm();
        }
    }

    /// Reduces over the members, after the last backward. Returns this member's parts, padded with
    /// 0.
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn add_up(
        &mut self,
        partition: &ZeroPartition,
        group: Option<&Group>,
    ) -> Result<Tensor, GangError> {
        if let (Some(reducer), Some(group)) = (&mut self.reducer, group) {
            self.overlapped.0 += u64::from(reducer.started());
            self.overlapped.1 += partition.buckets.len() as u64;
            reducer.start_rest()?;
            for bucket in 0..partition.buckets.len() as u32 {
                group.wait(reducer.take(bucket))?;
            }
        }
        Ok(self.own.shallow_clone())
    }

    /// Gathers the members' parts `own` into the flat buffer, rounded to its kind. The gradient is
    /// overwritten meanwhile.
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn gather(
        &self,
        partition: &ZeroPartition,
        group: Option<&Group>,
        own: &Tensor,
        flat: &Tensor,
    ) -> Result<(), GangError> {
        let Some(group) = group else {
            // In a gang of one the parts are the buffer, unless they are kept in another kind.
            if own.kind() != flat.kind() {
                flat.shallow_clone().copy_(own);
            }
            return Ok(());
        };
        let whole = |bucket: &super::zero_partition::Bucket| {
            self.padded.narrow(0, bucket.padded_at, bucket.part * partition.world)
        };
        let start = |bucket: &super::zero_partition::Bucket| {
            group.start_all_gather(&whole(bucket), &own.narrow(0, bucket.own_at, bucket.part))
        };
        let under_way: Vec<_> = partition.buckets.iter().map(start).collect();
        for (bucket, work) in partition.buckets.iter().zip(under_way) {
            group.wait(work)?;
            flat.narrow(0, bucket.from, bucket.len).copy_(&whole(bucket).narrow(0, 0, bucket.len));
        }
        Ok(())
    }

    /// Since the beginning: buckets whose reduction began while backward ran, and all buckets.
    pub(super) const fn overlapped(&self) -> (u64, u64) {
        self.overlapped
    }
}
