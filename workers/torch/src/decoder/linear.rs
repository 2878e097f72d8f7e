//! Rows times a matrix, and matrices packed for it.

use millrace_kernels as kernels;
use tch::{Device, Kind, Tensor};

/// Elements from which a matrix is packed: below, the call costs more than the product.
const LARGE: usize = 1 << 18;
/// Rows that the layout is chosen for: a step's, of many sequences. It serves one row nearly as
/// well as its own.
const ROWS: i64 = 32;

/// Rows up to which a bf16 matrix is better read as it is, at the memory's speed, than widened by
/// libtorch's product.
const FEW: i64 = 4;
/// The same for a packed matrix.
const FEW_PACKED: i64 = 2;

/// A matrix `[out, in]` that rows are multiplied with.
#[derive(Debug)]
pub(super) struct Matrix {
    /// As the layout has it; without rows once only [`Self::packed`] is read.
    plain: Tensor,
    /// Laid out as oneDNN multiplies fastest.
    packed: Option<Tensor>,
}

impl Matrix {
    pub(super) const fn of(plain: Tensor) -> Self {
        Self { plain, packed: None }
    }

    /// As the layout has it. Not once it is packed.
    pub(super) const fn plain(&self) -> &Tensor {
        &self.plain
    }

    /// Whether [`Self::pack`] makes products faster.
    pub(super) fn is_worth_packing(&self) -> bool {
        let kind = self.plain.kind();
        let gains = kind == Kind::Float || kind == Kind::BFloat16 && kernels::has_bf16_products();
        gains && self.plain.device() == Device::Cpu && self.plain.numel() >= LARGE
    }

    /// Packs it; from then on only [`linear`] and [`linear_onto`] may read it. A bf16 matrix is
    /// kept plain too, for few rows.
    pub(super) fn pack(&mut self) {
        self.packed = kernels::pack(&self.plain, ROWS);
        if self.packed.is_some() && self.plain.kind() != Kind::BFloat16 {
            self.plain = self.plain.narrow(0, 0, 0).copy();
        }
    }

    /// Whether `x`'s rows are so few that the plain matrix is read for them.
    fn is_read_plain(&self, x: &Tensor) -> bool {
        let few = if self.packed.is_some() { FEW_PACKED } else { FEW };
        let plain = x.size()[0] <= few && x.kind() == Kind::BFloat16 && x.device() == Device::Cpu;
        plain && !x.requires_grad() && !self.plain.requires_grad()
    }
}

/// `x` `[R, in]` times the transpose of `weight` `[out, in]`, plus `bias` `[out]`: `[R, out]`.
pub(super) fn linear(x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Tensor {
    if weight.is_read_plain(x) {
        let product = kernels::multiply_rows(x, &weight.plain);
        return bias.map_or_else(|| product.shallow_clone(), |bias| &product + bias);
    }
    match &weight.packed {
        Some(packed) => kernels::multiply(x, packed, bias, None),
        None => x.linear(&weight.plain, bias),
    }
}

/// [`linear`], plus `onto` `[R, out]`.
pub(super) fn linear_onto(onto: &Tensor, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Tensor {
    match &weight.packed {
        Some(packed) if !weight.is_read_plain(x) => kernels::multiply(x, packed, bias, Some(onto)),
        _ => onto + linear(x, weight, bias),
    }
}
