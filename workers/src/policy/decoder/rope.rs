//! Rotary position embedding, in the halves convention of Hugging Face (`rotate_half`).

use tch::{Device, Kind, Tensor};

use super::Config;

/// Cosines and signed sines by position.
#[derive(Debug)]
pub(super) struct Rope {
    /// `[positions, head_width]`.
    cos: Tensor,
    /// `[positions, head_width]`; the first half is negated, so that a rotation is one roll, one product and
    /// one fused product and sum.
    sin: Tensor,
}

/// The rotations of some rows.
#[derive(Debug)]
pub(super) struct Angles {
    /// `[rows, 1, head_width]`.
    cos: Tensor,
    /// As above, signed.
    sin: Tensor,
}

impl Rope {
    /// The table for all positions of `config`: angle `position / theta^(2i / head_width)`, computed in f32
    /// as transformers does, so that both see the same angles.
    pub(super) fn new(config: &Config, device: Device) -> Self {
        let half = config.head_width() / 2;
        let exponents = Tensor::arange_start_step(0, 2 * half, 2, (Kind::Float, Device::Cpu));
        let base = Tensor::full([half], config.rope_theta, (Kind::Float, Device::Cpu));
        let inverse = base.pow(&(exponents / (2 * half) as f64)).reciprocal();
        let positions = config.max_position_embeddings as i64;
        let positions = Tensor::arange(positions, (Kind::Float, Device::Cpu));
        let angles = positions.unsqueeze(1) * inverse.unsqueeze(0);
        let (cos, sin) = (angles.cos(), angles.sin());
        Self {
            cos: Tensor::cat(&[&cos, &cos], 1).to_device(device),
            sin: Tensor::cat(&[&(-&sin), &sin], 1).to_device(device),
        }
    }

    /// The rotations at `positions` `[rows]`.
    pub(super) fn at(&self, positions: &Tensor) -> Angles {
        Angles {
            cos: self.cos.index_select(0, positions).unsqueeze(1),
            sin: self.sin.index_select(0, positions).unsqueeze(1),
        }
    }
}

impl Angles {
    /// The rotations of a selection of the rows.
    pub(super) fn select(&self, rows: &Tensor) -> Self {
        Self { cos: self.cos.index_select(0, rows), sin: self.sin.index_select(0, rows) }
    }

    /// Rotates `x` `[rows, heads * head_width]`.
    pub(super) fn rotate(&self, x: &Tensor) -> Tensor {
        let (rows, width) = (x.size()[0], x.size()[1]);
        let head = self.cos.size()[2];
        let x = x.view([rows, width / head, head]);
        let rolled = x.roll([head / 2], [2]);
        (&x * &self.cos).addcmul(&rolled, &self.sin).view([rows, width])
    }
}
