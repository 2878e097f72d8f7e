//! The gradient of an update: where backward puts it, and how the members reduce it. By default
//! each member adds up the gradient of all its forwards and reduces it once. With the gradient
//! sharded (ZeRO, second stage: Rajbhandari et al., 2020) it is reduced after each forward, and a
//! member keeps its own parts alone.

use tch::{Kind, Tensor};

use super::gathering::gather;
use super::zero_partition::{Bucket, ZeroPartition};
use crate::decoder::Decoder;
use crate::gang::{GangError, Group, Reducer, add_gradient_to, drop_gradient};

/// Reductions of a sharded gradient that are under way at most: each holds its bucket.
const UNDER_WAY: u32 = 4;

/// The gradient of one update. Backward adds each leaf's to its place, over all forwards. The
/// embedding's, the head's and the critic's are written by hand.
#[derive(Debug)]
pub(super) struct Gradients<'a> {
    group: Option<&'a Group>,
    /// The leaves whose gradient backward puts into a bucket.
    led: Vec<Tensor>,
    embedding: ByHand,
    head: ByHand,
    critic: Option<ByHand>,
    /// Each bucket, padded: `[part · world]`. `None` where it is only there while it is reduced.
    /// `[buckets]`
    padded: Vec<Option<Tensor>>,
    /// This member's parts of the sum. `[partition.own_len]`
    own: Tensor,
    /// Starts reductions while backward runs; `None` for a gang of one.
    reducer: Option<Reducer>,
    sharded: bool,
    /// Buckets whose reduction has ended since [`Self::begin`].
    reduced: u32,
    /// Since the beginning: buckets whose reduction began before their backward ended, and all
    /// buckets.
    overlapped: (u64, u64),
}

/// Whether a bucket has a leaf whose gradient is written by hand: it is whole then, even where the
/// others are sharded. The embedding is the first leaf; a head of its own is the last, and after it a
/// critic.
pub(super) fn stays(decoder: &Decoder, bucket: &Bucket) -> bool {
    by_hand(decoder).into_iter().flatten().any(|leaf| bucket.leaves.contains(&leaf))
}

/// The leaves of the embedding, the head and the critic.
fn by_hand(decoder: &Decoder) -> [Option<usize>; 3] {
    let leaves = decoder.leaves().len();
    let critic = decoder.critic().map(|_| leaves - 1);
    let last = critic.unwrap_or(leaves) - 1;
    [Some(0), Some(if decoder.config().tie_word_embeddings { 0 } else { last }), critic]
}

/// A gradient that no backward writes.
#[derive(Debug)]
struct ByHand {
    /// As the leaf.
    gradient: Tensor,
    bucket: u32,
}

impl<'a> Gradients<'a> {
    /// Gradients of the decoder's leaves; with `sharded` a member of a gang keeps its own parts.
    pub(super) fn new(
        decoder: &Decoder,
        partition: &ZeroPartition,
        group: Option<&'a Group>,
        sharded: bool,
    ) -> Self {
        let sharded = sharded && group.is_some();
        let zeros = |len: i64| Tensor::zeros([len], (Kind::Float, decoder.device()));
        let leaves = decoder.leaves();
        let lengths = decoder.layout().leaf_lengths();
        let written = by_hand(decoder);
        let is_by_hand = |index: usize| written.contains(&Some(index));
        let padded: Vec<Option<Tensor>> = partition
            .buckets
            .iter()
            .map(|bucket| (!sharded || stays(decoder, bucket)).then(|| zeros(bucket.part * partition.world)))
            .collect();
        let place = |index: usize| {
            let (bucket, at) = partition.gradient_at(index, &lengths);
            Some((bucket, padded[bucket].as_ref()?.narrow(0, at, lengths[index])))
        };
        let place_by_hand = |index: usize| {
            let (bucket, place) = place(index).expect("a gradient by hand lies in a bucket that stays");
            ByHand { gradient: place.view_as(leaves[index]), bucket: bucket as u32 }
        };
        let mut led = Vec::new();
        for (index, leaf) in leaves.iter().enumerate().filter(|(index, _)| !is_by_hand(*index)) {
            if let Some((_, place)) = place(index) {
                add_gradient_to(leaf, &place);
                led.push(leaf.shallow_clone());
            }
        }
        let [embedding, head, critic] = written.map(|leaf| leaf.map(place_by_hand));
        let [embedding, head] = [embedding, head].map(|there| there.expect("every decoder has both"));
        let own = match (group, &padded[..]) {
            (None, [Some(whole)]) => whole.shallow_clone(),
            _ => zeros(partition.own_len),
        };
        let reducer = group.map(|group| {
            let mut reducer = group.reducer(sharded);
            for (bucket, padded) in partition.buckets.iter().zip(&padded) {
                let own = own.narrow(0, bucket.own_at, bucket.part);
                match padded {
                    Some(padded) => reducer.add_bucket(&own, padded),
                    None => reducer.add_transient_bucket(&own, bucket.part * partition.world),
                }
                for index in bucket.leaves.clone() {
                    if is_by_hand(index) {
                        reducer.add_leaf_by_hand();
                    } else {
                        reducer.add_leaf(leaves[index]);
                    }
                }
            }
            reducer
        });
        Self {
            group,
            led,
            embedding,
            head,
            critic,
            padded,
            own,
            reducer,
            sharded,
            reduced: 0,
            overlapped: (0, 0),
        }
    }

    /// Whether members reduce after each forward, so that all must make as many.
    pub(super) const fn is_sharded(&self) -> bool {
        self.sharded
    }

    /// Zeroes the gradient of the update before. The buckets of a sharded one are zeroed for each
    /// forward.
    pub(super) fn clear(&mut self) {
        if self.sharded {
            let _ = self.own.zero_();
        } else {
            self.clear_padded();
        }
    }

    fn clear_padded(&self) {
        for padded in self.padded.iter().flatten() {
            let _ = padded.shallow_clone().zero_();
        }
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

    /// The members reduce what the next backward fills.
    pub(super) fn begin(&mut self) {
        if self.sharded {
            self.clear_padded();
        }
        self.reduced = 0;
        if let Some(reducer) = &mut self.reducer {
            reducer.arm();
        }
    }

    /// Between two layers of a backward: waits until few reductions of a sharded gradient are under
    /// way.
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn settle(&mut self) -> Result<(), GangError> {
        let started = self.reducer.as_ref().filter(|_| self.sharded).map_or(0, Reducer::started);
        self.wait_for(started.saturating_sub(UNDER_WAY))
    }

    /// Waits for the reductions of the first `count` buckets, which have started.
    fn wait_for(&mut self, count: u32) -> Result<(), GangError> {
        let (Some(reducer), Some(group)) = (&mut self.reducer, self.group) else { return Ok(()) };
        while self.reduced < count {
            group.wait(reducer.take(self.reduced))?;
            self.reduced += 1;
        }
        Ok(())
    }

    /// Reduces over the members, after the backward that [`Self::begin`] announced.
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn reduce(&mut self) -> Result<(), GangError> {
        let Some(reducer) = &mut self.reducer else { return Ok(()) };
        let buckets = self.padded.len();
        self.overlapped.0 += u64::from(reducer.started());
        self.overlapped.1 += buckets as u64;
        reducer.start_rest()?;
        self.wait_for(buckets as u32)
    }

    /// This member's parts of the sum, padded with 0. `[partition.own_len]`
    pub(super) const fn own(&self) -> &Tensor {
        &self.own
    }

    /// Gathers the members' parts `own` into the flat buffer, rounded to its kind. The gradient is
    /// overwritten meanwhile.
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn gather(
        &self,
        partition: &ZeroPartition,
        own: &Tensor,
        flat: &Tensor,
    ) -> Result<(), GangError> {
        let Some(group) = self.group else {
            // In a gang of one the parts are the buffer, unless they are kept in another kind.
            if own.kind() != flat.kind() {
                flat.shallow_clone().copy_(own);
            }
            return Ok(());
        };
        let at_once = if self.sharded { UNDER_WAY as usize } else { partition.buckets.len() };
        gather(group, &partition.buckets, at_once, flat, |index| {
            let (bucket, padded) = (&partition.buckets[index], &self.padded[index]);
            let room = || Tensor::empty([bucket.part * partition.world], (Kind::Float, flat.device()));
            let whole = padded.as_ref().map_or_else(room, Tensor::shallow_clone);
            (whole, own.narrow(0, bucket.own_at, bucket.part).to_device(flat.device()))
        })
    }

    /// Since the beginning: buckets whose reduction began while backward ran, and all buckets.
    pub(super) const fn overlapped(&self) -> (u64, u64) {
        self.overlapped
    }
}

impl Drop for Gradients<'_> {
    /// The leaves stay, and would keep the buckets: 4 bytes a weight between steps, and beside those of the next step.
    fn drop(&mut self) {
        self.led.iter().for_each(drop_gradient);
    }
}

#[cfg(test)]
mod tests {
    use millrace_schemas::submit::ModelSpec;
    use tch::Device;

    use super::*;
    use crate::decoder::Config;

    #[test]
    fn no_gradient_is_left_after_its_update() {
        let spec = ModelSpec::Decoder {
            vocabulary: 8,
            layers: 2,
            width: 8,
            heads: 2,
            feed_forward: 16,
            context: 4,
            init_std: 0.02,
        };
        let config = Config::of_spec(&spec).unwrap();
        let decoder = Decoder::new(config.clone(), &Decoder::initial(&config, 1), Device::Cpu, true);
        let partition = ZeroPartition::over(None, &config, 1 << 20);
        let led = || decoder.leaves().iter().filter(|leaf| leaf.grad().defined()).count();
        let gradients = Gradients::new(&decoder, &partition, None, false);
        assert_eq!(led(), decoder.leaves().len() - 2, "all but the embedding and the head");
        drop(gradients);
        assert_eq!(led(), 0);
    }
}
