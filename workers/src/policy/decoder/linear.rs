//! Rows times a matrix, and matrices laid out for it.

use tch::{Device, Kind, Tensor};

use super::kernels;

/// Elements from which a matrix is laid out anew: below, the call costs more than the product.
const LARGE: usize = 1 << 18;
/// Rows that the layout is chosen for: a step's, of many sequences. It serves one row nearly as well as its own.
const ROWS: i64 = 32;

/// Rows up to which a bf16 matrix is better read as it is: libtorch's product widens it first, where the processor has
/// no instruction for bf16.
const FEW: i64 = 4;

/// `x` `[R, in]` times the transpose of `weight` `[out, in]`, plus `bias` `[out]`: `[R, out]`.
pub(super) fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    if weight.is_mkldnn() {
        return kernels::multiply(x, weight, bias);
    }
    let few = x.size()[0] <= FEW && x.kind() == Kind::BFloat16 && x.device() == Device::Cpu;
    if few && !x.requires_grad() && !weight.requires_grad() {
        let product = kernels::multiply_rows(x, weight);
        return bias.map_or_else(|| product.shallow_clone(), |bias| &product + bias);
    }
    x.linear(weight, bias)
}

/// Whether [`packed`] makes products with a matrix faster.
pub(super) fn is_worth_packing(weight: &Tensor) -> bool {
    weight.device() == Device::Cpu && weight.kind() == Kind::Float && weight.numel() >= LARGE
}

/// The matrix laid out as oneDNN multiplies fastest, for [`linear`] alone; a copy where it cannot be had.
pub(super) fn packed(weight: &Tensor) -> Tensor {
    kernels::pack(weight, ROWS).unwrap_or_else(|| weight.copy())
}
