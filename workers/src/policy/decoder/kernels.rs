//! What libtorch does not offer by its public names, or not fast enough on a CPU: products with weights that oneDNN
//! has laid out for them, and attention to blocks of positions. The C++ is in `kernels/`. All calls that could break
//! memory are made in here.
#![expect(unsafe_code, reason = "C++ is called, and is handed tensors as pointers")]
#![expect(unreachable_pub, reason = "the macro makes what it declares public")]
#![expect(clippy::too_many_arguments, reason = "what C++ is handed is flat")]

use tch::Tensor;

use super::attention::Heads;

#[cxx::bridge(namespace = "millrace::kernels")]
mod ffi {
    unsafe extern "C++" {
        include!("millrace-workers/src/policy/decoder/kernels/kernels.h");

        #[namespace = "at"]
        type Tensor;

        unsafe fn attend_rows(
            q: *const Tensor,
            keys: *const Tensor,
            values: *const Tensor,
            tables: *const Tensor,
            lengths: *const Tensor,
            block: i64,
            heads: i64,
            out: *const Tensor,
        ) -> Result<()>;

        unsafe fn multiply_rows(x: *const Tensor, weight: *const Tensor, out: *const Tensor) -> Result<()>;

        unsafe fn pack(weight: *const Tensor, rows: i64) -> Result<*mut Tensor>;
        unsafe fn multiply(
            x: *const Tensor,
            weight: *const Tensor,
            bias: *const Tensor,
        ) -> Result<*mut Tensor>;
    }
}

/// A pointer that C++ takes for the tensor. It is read during the call only.
fn pointer(tensor: &Tensor) -> *const ffi::Tensor {
    tensor.as_ptr().cast()
}

/// A layer's keys and values in blocks, and who sees which.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pages<'a> {
    /// `[cells, kv_width]`
    pub(super) keys: &'a Tensor,
    /// `[cells, kv_width]`
    pub(super) values: &'a Tensor,
    /// The blocks of each row's positions, in order. `[R, W]` of i64
    pub(super) tables: &'a Tensor,
    /// Positions that each row sees, 1 to W × `block`. `[R]` of i64
    pub(super) lengths: &'a Tensor,
    /// Positions of a block.
    pub(super) block: usize,
}

/// Attention of each row of `q` `[R, query_width]` to its pages, on a CPU: each key and value is read once for all
/// query heads that share it, and nothing is copied. Gives `[R, query_width]`.
pub(super) fn attend_rows(q: &Tensor, pages: &Pages<'_>, heads: Heads) -> Tensor {
    let q = q.contiguous();
    let out = q.empty_like();
    // SAFETY: all pointers hold for the call; shapes and kinds are checked on the other side.
    unsafe {
        ffi::attend_rows(
            pointer(&q),
            pointer(pages.keys),
            pointer(pages.values),
            pointer(pages.tables),
            pointer(pages.lengths),
            pages.block as i64,
            heads.queries(),
            pointer(&out),
        )
    }
    .expect("rows, tables and pages fit one another");
    out
}

/// A matrix `[out, in]` of f32 on the CPU, laid out for products with about `rows` rows; other numbers of rows work
/// too. `None` where this libtorch has no oneDNN.
pub(super) fn pack(weight: &Tensor, rows: i64) -> Option<Tensor> {
    // SAFETY: the pointer holds for the call, and what comes back is a new tensor that nobody else owns.
    unsafe { ffi::pack(pointer(weight), rows).ok().map(|packed| Tensor::from_ptr(packed.cast())) }
}

/// `x` `[R, in]` times the transpose of what [`pack`] gave, plus `bias` `[out]`: `[R, out]`.
pub(super) fn multiply(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let bias = bias.map_or(std::ptr::null(), pointer);
    // SAFETY: as above; no bias is a null pointer, which is not read.
    unsafe {
        let product = ffi::multiply(pointer(x), pointer(weight), bias);
        Tensor::from_ptr(product.expect("rows are as wide as the matrix").cast())
    }
}

/// A few rows `x` `[R, in]` times the transpose of `weight` `[out, in]`, all bf16 on a CPU; sums are in f32. The matrix
/// is read once, at the memory's speed. Takes no gradients.
pub(super) fn multiply_rows(x: &Tensor, weight: &Tensor) -> Tensor {
    let (x, weight) = (x.contiguous(), weight.contiguous());
    let out = Tensor::empty([x.size()[0], weight.size()[0]], (x.kind(), x.device()));
    // SAFETY: all pointers hold for the call; shapes and kinds are checked on the other side.
    unsafe { ffi::multiply_rows(pointer(&x), pointer(&weight), pointer(&out)) }
        .expect("rows are as wide as the matrix");
    out
}

#[cfg(test)]
mod tests;
