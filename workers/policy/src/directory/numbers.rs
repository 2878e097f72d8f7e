//! Numbers as files hold them: whether they are finite, and from one kind to another.

use millrace_schemas::submit::Precision;
use safetensors::tensor::Dtype;
use serde_json::{Map, Value, json};

use crate::decoder::Layout;

/// Kinds of numbers that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    Bf16,
    F16,
}

impl Kind {
    /// The kind of a tensor, if it is read.
    pub(super) const fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::BF16 => Some(Self::Bf16),
            Dtype::F16 => Some(Self::F16),
            _ => None,
        }
    }
}

/// Some numbers of a tensor, little endian.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) kind: Kind,
}

impl Chunk<'_> {
    /// Whether none is NaN or infinite: those have an exponent of ones.
    pub(super) fn is_finite(self) -> bool {
        let all = |exponent: u16| self.halves().all(|bits| bits & exponent != exponent);
        match self.kind {
            Kind::F32 => self.words().all(|bits| bits & 0x7f80_0000 != 0x7f80_0000),
            Kind::Bf16 => all(0x7f80),
            Kind::F16 => all(0x7c00),
        }
    }

    /// Appends the numbers, as `precision` keeps them.
    pub(super) fn append_to(self, to: &mut Vec<u8>, precision: Precision) {
        match (self.kind, precision) {
            (Kind::F32, Precision::F32) | (Kind::Bf16, Precision::Bf16) => to.extend_from_slice(self.bytes),
            (Kind::F32, Precision::Bf16) => {
                to.extend(self.words().flat_map(|bits| narrow(bits).to_le_bytes()));
            }
            (Kind::Bf16, Precision::F32) => {
                to.extend(self.halves().flat_map(|bits| (u32::from(bits) << 16).to_le_bytes()));
            }
            (Kind::F16, Precision::F32) => {
                to.extend(self.halves().flat_map(|bits| widen_f16(bits).to_le_bytes()));
            }
            (Kind::F16, Precision::Bf16) => {
                to.extend(self.halves().flat_map(|bits| narrow(widen_f16(bits).to_bits()).to_le_bytes()));
            }
        }
    }

    fn words(self) -> impl Iterator<Item = u32> {
        self.bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn halves(self) -> impl Iterator<Item = u16> {
        self.bytes.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes))
    }
}

/// The nearest `bf16` of a finite `f32`; of two equally near the even one.
const fn narrow(bits: u32) -> u16 {
    ((bits.wrapping_add(0x7fff + ((bits >> 16) & 1))) >> 16) as u16
}

/// A 16-bit float of IEEE 754, exactly.
fn widen_f16(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    if exponent == 0 {
        sign * fraction * 2f32.powi(-24)
    } else {
        sign * (1024.0 + fraction) * 2f32.powi(exponent - 25)
    }
}

/// What a safetensors file with the parts of `layout`, in order, begins with.
pub(super) fn header(layout: &Layout, precision: Precision) -> Vec<u8> {
    let dtype = match precision {
        Precision::F32 => "F32",
        Precision::Bf16 => "BF16",
    };
    let mut header = Map::new();
    // What transformers wants to find.
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let bytes = precision.bytes() as i64;
    for part in &layout.parts {
        let offsets = [part.offset * bytes, (part.offset + part.len()) * bytes];
        header.insert(
            part.name.clone(),
            json!({ "dtype": dtype, "shape": part.shape, "data_offsets": offsets }),
        );
    }
    let mut text = serde_json::to_vec(&Value::Object(header)).expect("names and numbers are JSON");
    // The numbers begin at a multiple of eight.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_from_one_kind_to_another() {
        // Bits of f16 and the numbers that IEEE 754 says they are.
        for (bits, number) in
            [(0x3c00, 1.0), (0xc000, -2.0), (0x0001, 2f32.powi(-24)), (0x7bff, 65504.0), (0x8000, -0.0)]
        {
            assert_eq!(widen_f16(bits).to_bits(), f32::to_bits(number), "{bits:#x}");
        }
        // Halfway between two: the even one; above it: the larger.
        for (number, bits) in [
            (1.0_f32, 0x3f80),
            (f32::from_bits(0x3f80_8000), 0x3f80),
            (f32::from_bits(0x3f81_8000), 0x3f82),
            (f32::from_bits(0x3f80_8001), 0x3f81),
            (-1.0, 0xbf80),
        ] {
            assert_eq!(narrow(number.to_bits()), bits, "{number}");
        }
    }

    #[test]
    fn numbers_that_are_not_finite_are_seen_in_every_kind() {
        let finite = |kind, bytes: &[u8]| Chunk { bytes, kind }.is_finite();
        for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let bytes = [1.0_f32.to_le_bytes(), number.to_le_bytes()].concat();
            assert!(!finite(Kind::F32, &bytes) && !finite(Kind::Bf16, &bytes[6..8]));
        }
        assert!(finite(Kind::F32, &f32::MAX.to_le_bytes()));
        assert!(
            !finite(Kind::F16, &0x7c00_u16.to_le_bytes()) && finite(Kind::F16, &0x7bff_u16.to_le_bytes())
        );
    }
}
