//! Kernels that libtorch lacks or that are slow in it on a CPU: products with weights that oneDNN
//! has packed, attention to blocks, and the operations between products in one pass each. The C++
//! is beside it. All calls that could break memory are in this file. None takes gradients.
#![expect(unsafe_code, reason = "C++ is called, with tensors as pointers")]
#![expect(unreachable_pub, reason = "the macro makes what it declares public")]
#![expect(clippy::too_many_arguments, reason = "the arguments of C++ are flat")]

use tch::Tensor;

use crate::tensors::{pointer, pointer_if};

#[cxx::bridge(namespace = "millrace::kernels")]
mod ffi {
    unsafe extern "C++" {
        include!("millrace-kernels/src/kernels.h");

        #[namespace = "at"]
        type Tensor = crate::tensors::ffi::Tensor;

        unsafe fn attend_rows(
            q: *const Tensor,
            own_keys: *const Tensor,
            own_values: *const Tensor,
            cells: *const Tensor,
            keys: *const Tensor,
            values: *const Tensor,
            tables: *const Tensor,
            lengths: *const Tensor,
            block: i64,
            heads: i64,
            out: *const Tensor,
        ) -> Result<()>;

        unsafe fn multiply_rows(x: *const Tensor, weight: *const Tensor, out: *const Tensor) -> Result<()>;

        unsafe fn normalise(
            x: *const Tensor,
            weight: *const Tensor,
            epsilon: f64,
            out: *const Tensor,
        ) -> Result<()>;
        unsafe fn turn_heads(
            x: *const Tensor,
            queries: i64,
            query_norm: *const Tensor,
            key_norm: *const Tensor,
            epsilon: f64,
            cos: *const Tensor,
            sin: *const Tensor,
        ) -> Result<()>;
        unsafe fn gate(both: *const Tensor, out: *const Tensor) -> Result<()>;

        fn has_bf16_products() -> bool;
        unsafe fn pack(weight: *const Tensor, rows: i64) -> Result<*mut Tensor>;
        unsafe fn multiply(
            x: *const Tensor,
            weight: *const Tensor,
            bias: *const Tensor,
            onto: *const Tensor,
        ) -> Result<*mut Tensor>;
    }
}

/// A layer of the KV cache, and the positions that each row sees.
#[derive(Debug, Clone, Copy)]
pub struct Pages<'a> {
    /// `[cells, kv_width]`
    pub keys: &'a Tensor,
    /// `[cells, kv_width]`
    pub values: &'a Tensor,
    /// The blocks of each row's positions, in order. `[R, W]` of i64
    pub tables: &'a Tensor,
    /// Positions that each row sees, 1 to W × `block`. `[R]` of i64
    pub lengths: &'a Tensor,
    /// Positions of a block.
    pub block: usize,
}

/// Keys and values of the rows themselves, and the cells that they are written to first.
#[derive(Debug, Clone, Copy)]
pub struct Own<'a> {
    /// `[R, kv_width]`
    pub keys: &'a Tensor,
    /// `[R, kv_width]`
    pub values: &'a Tensor,
    /// `[R]` of i64; no two are the same, and no row sees another's.
    pub cells: &'a Tensor,
}

/// Attention of each row of `q` `[R, query_width]` to its pages, on a CPU: each key and value is
/// read once for all query heads that share it, and nothing is copied. Rows of `q` and of what they
/// bring may lie apart. `queries` is the number of query heads. Gives `[R, query_width]`.
pub fn attend_rows(q: &Tensor, own: Option<Own<'_>>, pages: &Pages<'_>, queries: i64) -> Tensor {
    let out = Tensor::empty(q.size(), (q.kind(), q.device()));
    let own = |which: fn(Own<'_>) -> &Tensor| pointer_if(own.map(which));
    // SAFETY: all pointers hold for the call; shapes and kinds are checked on the other side.
    unsafe {
        ffi::attend_rows(
            pointer(q),
            own(|own| own.keys),
            own(|own| own.values),
            own(|own| own.cells),
            pointer(pages.keys),
            pointer(pages.values),
            pointer(pages.tables),
            pointer(pages.lengths),
            pages.block as i64,
            queries,
            pointer(&out),
        )
    }
    .expect("rows, tables and pages fit one another");
    out
}

/// RMSNorm of the rows of `x` `[R, width]` by `weight` `[width]`.
pub fn normalise(x: &Tensor, weight: &Tensor, epsilon: f64) -> Tensor {
    let out = Tensor::empty(x.size(), (x.kind(), x.device()));
    // SAFETY: as above.
    unsafe { ffi::normalise(pointer(x), pointer(weight), epsilon, pointer(&out)) }
        .expect("rows are as wide as the norm");
    out
}

/// Heads as they are turned: see [`turn_heads`].
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// Query heads; those after them are keys.
    pub queries: i64,
    /// Norms of each head's queries and of its keys, and their epsilon. `[head_width]`
    pub norms: Option<&'a [Tensor; 2]>,
    /// Added to the mean square.
    pub epsilon: f64,
    /// `[R, 1, head_width]`
    pub cos: &'a Tensor,
    /// `[R, 1, head_width]`; negative in the first half.
    pub sin: &'a Tensor,
}

/// Normalises the heads of `x` `[R, heads * head_width]`, where they have norms, and rotates them,
/// in place.
pub fn turn_heads(x: &Tensor, turn: Turn<'_>) {
    let norm = |which: usize| pointer_if(turn.norms.map(|norms| &norms[which]));
    let (cos, sin) = (pointer(turn.cos), pointer(turn.sin));
    // SAFETY: as above; nobody else holds the rows.
    unsafe { ffi::turn_heads(pointer(x), turn.queries, norm(0), norm(1), turn.epsilon, cos, sin) }
        .expect("rows are whole heads");
}

/// SwiGLU's middle: of `both` `[R, 2 inner]`, gates and ups, `silu(gate) * up` `[R, inner]`.
pub fn gate(both: &Tensor) -> Tensor {
    let (rows, width) = (both.size()[0], both.size()[1]);
    let out = Tensor::empty([rows, width / 2], (both.kind(), both.device()));
    // SAFETY: as above.
    unsafe { ffi::gate(pointer(both), pointer(&out)) }.expect("a gate for each");
    out
}

/// Whether this processor multiplies bf16 by itself; oneDNN widens the numbers elsewhere.
pub fn has_bf16_products() -> bool {
    ffi::has_bf16_products()
}

/// A matrix `[out, in]` on the CPU, laid out for products with about `rows` rows; other numbers of
/// rows work too. `None` where this libtorch has no oneDNN.
pub fn pack(weight: &Tensor, rows: i64) -> Option<Tensor> {
    // SAFETY: the pointer holds for the call, and what comes back is a new tensor that nobody else
    // owns.
    unsafe { ffi::pack(pointer(weight), rows).ok().map(|packed| Tensor::from_ptr(packed.cast())) }
}

/// `x` `[R, in]` times the transpose of what [`pack`] gave, plus `bias` `[out]` and `onto` `[R,
/// out]`: `[R, out]`.
pub fn multiply(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, onto: Option<&Tensor>) -> Tensor {
    // SAFETY: as above; what is not there is a null pointer, which is not read.
    unsafe {
        let product = ffi::multiply(pointer(x), pointer(weight), pointer_if(bias), pointer_if(onto));
        Tensor::from_ptr(product.expect("rows are as wide as the matrix").cast())
    }
}

/// A few rows `x` `[R, in]` times the transpose of `weight` `[out, in]`, all bf16 on a CPU; sums
/// are in f32. The matrix is read once, at the memory's speed.
pub fn multiply_rows(x: &Tensor, weight: &Tensor) -> Tensor {
    let (x, weight) = (x.contiguous(), weight.contiguous());
    let out = Tensor::empty([x.size()[0], weight.size()[0]], (x.kind(), x.device()));
    // SAFETY: all pointers hold for the call; shapes and kinds are checked on the other side.
    unsafe { ffi::multiply_rows(pointer(&x), pointer(&weight), pointer(&out)) }
        .expect("rows are as wide as the matrix");
    out
}

unsafe extern "C" {
    safe fn millrace_limit_lanes(most: i64);
}

/// Limits vectors to `most` numbers from now on, in the whole process. For tests, which compare the processor's widths.
pub fn limit_lanes(most: i64) {
    millrace_limit_lanes(most);
}
