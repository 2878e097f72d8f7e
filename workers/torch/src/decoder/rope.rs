//! Rotary position embedding, in the halves convention of Hugging Face (`rotate_half`).

use tch::{Device, Kind, Tensor};

use super::{Config, RopeParameters, RopeScaling};

/// Cosines and signed sines by position.
#[derive(Debug)]
pub(super) struct Rope {
    /// `[positions, head_width]`.
    cos: Tensor,
    /// `[positions, head_width]`; the first half is negated, so that a rotation is one roll, one
    /// product and one fused product and sum.
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
    /// The table for all positions of a context: angle `position * frequency`, computed in f32 as
    /// transformers does, so that both see the same angles.
    pub(super) fn new(config: &Config, device: Device) -> Self {
        let (inverse, attention) = frequencies(config.rope, config.head_width());
        let positions = Tensor::arange(config.context as i64, (Kind::Float, Device::Cpu));
        let angles = positions.unsqueeze(1) * inverse.unsqueeze(0);
        let (cos, sin) = (angles.cos() * attention, angles.sin() * attention);
        Self {
            cos: Tensor::cat(&[&cos, &cos], 1).to_device(device),
            sin: Tensor::cat(&[&(-&sin), &sin], 1).to_device(device),
        }
    }

    /// Cosines and signed sines by position, `[positions, head_width]` of f32.
    pub(super) const fn tables(&self) -> (&Tensor, &Tensor) {
        (&self.cos, &self.sin)
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
    /// The same in the numbers that rows are in.
    pub(super) fn to_kind(&self, kind: Kind) -> Self {
        Self { cos: self.cos.to_kind(kind), sin: self.sin.to_kind(kind) }
    }

    /// Cosines and signed sines, `[rows, 1, head_width]`.
    pub(super) const fn as_tensors(&self) -> (&Tensor, &Tensor) {
        (&self.cos, &self.sin)
    }

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

/// The angle by which each pair of a head's dimensions turns from one position to the next, `[width
/// / 2]`, and what cosines and sines are multiplied by. Formulas: `modeling_rope_utils.py` of
/// transformers.
fn frequencies(rope: RopeParameters, width: i64) -> (Tensor, f64) {
    let exponents = Tensor::arange_start_step(0, width, 2, (Kind::Float, Device::Cpu));
    let base = Tensor::full([width / 2], rope.theta, (Kind::Float, Device::Cpu));
    let plain = base.pow(&(exponents / width as f64)).reciprocal();
    match rope.scaling {
        RopeScaling::Default => (plain, 1.0),
        RopeScaling::Linear { factor } => (plain / factor, 1.0),
        RopeScaling::Llama3 { factor, low, high, original } => {
            (llama3(&plain, factor, [low, high], original), 1.0)
        }
        RopeScaling::Yarn { factor, attention, fast, slow, original, truncate } => {
            let bounds = [fast, slow].map(|turns| {
                let turns = original / (turns * std::f64::consts::TAU);
                width as f64 * turns.ln() / (2.0 * rope.theta.ln())
            });
            (yarn(&plain, factor, bounds, truncate), attention)
        }
    }
}

/// Wavelengths above `original / low` are stretched, those below `original / high` are not.
fn llama3(plain: &Tensor, factor: f64, [low, high]: [f64; 2], original: f64) -> Tensor {
    let wavelengths = plain.reciprocal() * std::f64::consts::TAU;
    let smooth = (wavelengths.reciprocal() * original - low) / (high - low);
    let between = (1.0 - &smooth) * plain / factor + &smooth * plain;
    let long = wavelengths.gt(original / low);
    let short = wavelengths.lt(original / high);
    let stretched = (plain / factor).where_self(&long, &between);
    plain.where_self(&short, &stretched)
}

/// Dimensions below the first bound are not stretched, those above the second are.
fn yarn(plain: &Tensor, factor: f64, [low, high]: [f64; 2], truncate: bool) -> Tensor {
    let pairs = plain.size()[0];
    let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
    let (low, mut high) = (low.max(0.0), high.min((2 * pairs - 1) as f64));
    if low == high {
        high += 0.001;
    }
    let ramp = (Tensor::arange(pairs, (Kind::Float, Device::Cpu)) - low) / (high - low);
    let ramp = ramp.clamp(0.0, 1.0);
    plain / factor * &ramp + plain * (1.0 - &ramp)
}
