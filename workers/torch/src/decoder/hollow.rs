//! Decoders whose weights are there only while they are needed.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::model::view;
use super::{Config, Decoder, Part, kind};

impl Decoder {
    /// A decoder to train on `device` whose weights are brought by [`Self::lay`]. `flat`
    /// `[layout.len]` are those of a version; they stay in the host's memory.
    #[must_use]
    pub fn hollow(config: Config, flat: &Tensor, device: Device) -> Self {
        let flat = flat.to_device(Device::Cpu).to_kind(kind(&config)).contiguous();
        let absent = absent(flat.size()[0], (flat.kind(), device));
        let mut decoder = Self::of(config, &absent, true).for_training();
        (decoder.flat, decoder.hollow) = (flat, true);
        decoder
    }

    /// Whether its weights are there only while they are needed.
    #[must_use]
    pub const fn is_hollow(&self) -> bool {
        self.hollow
    }

    /// The leaves of a layer, by their places among [`Self::leaves`]. Those of the layer
    /// [`Self::depth`] are the last norm.
    #[must_use]
    pub fn leaves_of(&self, layer: usize) -> Range<usize> {
        let each = self.layers.first().map_or(0, |layer| layer.leaves().count());
        let from = 1 + layer * each;
        from..if layer < self.depth() { from + each } else { from + 1 }
    }

    /// Makes these leaves views of `buffer`, in which they lie one after another.
    pub fn lay(&self, leaves: Range<usize>, buffer: &Tensor) {
        let parts: Vec<&[Part]> = self.layout.leaves().collect();
        let (parts, from) = (&parts[leaves.clone()], parts[leaves.start][0].offset);
        for (leaf, parts) in self.leaves()[leaves].iter().zip(parts) {
            leaf.shallow_clone().set_data(&view(parts, buffer, from));
        }
    }

    /// Takes these leaves away. What reads them all the same gets NaN.
    pub fn withdraw(&self, leaves: Range<usize>) {
        let len = self.layout.leaf_lengths()[leaves.clone()].iter().sum();
        self.lay(leaves, &absent(len, (self.flat.kind(), self.device())));
    }

    /// Replaces the weights in the host's memory.
    pub fn set_flat(&mut self, flat: Tensor) {
        self.flat = flat;
    }
}

/// `[len]` numbers in the memory of one, so that what is not there has its shape.
fn absent(len: i64, options: (Kind, Device)) -> Tensor {
    Tensor::full([1], f64::NAN, options).expand([len], false)
}
