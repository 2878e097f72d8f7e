//! Kernels of a step: the calls of C++. All of them that could break memory are in this file.
#![expect(unsafe_code, reason = "C++ is called, with tensors as pointers")]
#![expect(unreachable_pub, reason = "the macro makes what it declares public")]
#![expect(clippy::too_many_arguments, reason = "the arguments of C++ are flat")]

use std::sync::Once;

use tch::Tensor;

use crate::tensors::{pointer, pointer_if};

#[cxx::bridge(namespace = "millrace::cuda")]
mod ffi {
    unsafe extern "C++" {
        include!("millrace-kernels/src/cuda/launch.h");

        #[namespace = "at"]
        type Tensor = crate::tensors::ffi::Tensor;

        fn set_source(arguments: &str, rows: &str);
        fn has_device() -> bool;

        unsafe fn product(
            x: *const Tensor,
            weight: *const Tensor,
            bias: *const Tensor,
            onto: *const Tensor,
            norm: *const Tensor,
            epsilon: f64,
            gated: bool,
            out: *const Tensor,
        ) -> Result<()>;
        unsafe fn attend(
            qkv: *const Tensor,
            keys: *const Tensor,
            values: *const Tensor,
            rows: *const Tensor,
            tables: *const Tensor,
            query_norm: *const Tensor,
            key_norm: *const Tensor,
            epsilon: f64,
            cos: *const Tensor,
            sin: *const Tensor,
            heads: i64,
            parts: *const Tensor,
            done: *const Tensor,
            out: *const Tensor,
        ) -> Result<()>;
        unsafe fn normalise(
            x: *const Tensor,
            weight: *const Tensor,
            epsilon: f64,
            out: *const Tensor,
        ) -> Result<()>;
        unsafe fn gate(both: *const Tensor, out: *const Tensor) -> Result<()>;
        unsafe fn embed(table: *const Tensor, rows: *const Tensor, out: *const Tensor) -> Result<()>;
        unsafe fn draw(logits: *const Tensor, rows: *const Tensor, out: *const Tensor) -> Result<()>;
    }
}

/// Positions of a block of the KV cache; the kernels have the same number.
pub const BLOCK: usize = 16;
/// Rows of [`multiply`] at most.
pub const MOST_ROWS: usize = 4;
/// Words of a [`StepRow`].
pub const ROW_WORDS: usize = 8;

/// What the kernels are compiled from.
const DEVICE: &str = include_str!("device.h");
const ARGUMENTS: &str = include_str!("arguments.h");
const KERNELS: [&str; 3] = [include_str!("rows.cu"), include_str!("attention.cu"), include_str!("draw.cu")];

fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        ffi::set_source(&format!("{DEVICE}\n{}", ARGUMENTS.replace("#pragma once", "")), &KERNELS.concat());
    });
}

/// Whether kernels can be launched on a device here.
pub fn has_device() -> bool {
    ffi::has_device()
}

/// One new token of a lane, as the kernels read it.
#[derive(Debug, Clone, Copy)]
pub struct StepRow {
    /// The token.
    pub token: u32,
    /// Its place in its sequence.
    pub position: usize,
    /// Where its key and value go, in a cache seen as `[cells, kv_width]`.
    pub cell: usize,
    /// Positions that it sees, itself included.
    pub length: usize,
    /// Only tokens below this are drawn.
    pub below: u32,
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Which token is drawn, in [0, 1).
    pub random: f64,
}

impl StepRow {
    /// Its words.
    #[must_use]
    pub fn words(&self) -> [i32; ROW_WORDS] {
        let random = self.random.to_bits();
        let small = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        [
            self.token.cast_signed(),
            small(self.position),
            small(self.cell),
            small(self.length),
            i32::try_from(self.below).unwrap_or(i32::MAX),
            self.temperature.to_bits().cast_signed(),
            (random as u32).cast_signed(),
            ((random >> 32) as u32).cast_signed(),
        ]
    }
}

/// A layer of the KV cache, the rows of [`StepRow`]s, and the blocks that they see.
#[derive(Debug, Clone, Copy)]
pub struct Cells<'a> {
    /// `[cells, kv_width]`
    pub keys: &'a Tensor,
    /// `[cells, kv_width]`
    pub values: &'a Tensor,
    /// `[R, ROW_WORDS]` of i32
    pub rows: &'a Tensor,
    /// `[R, W]` of i32
    pub tables: &'a Tensor,
}

/// The heads of a layer, and what attention needs besides.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'a> {
    /// Query heads.
    pub queries: i64,
    /// Norms of each head's queries and of its keys, and their epsilon. `[head_width]`
    pub norms: Option<&'a [Tensor; 2]>,
    /// Added to the mean square.
    pub epsilon: f64,
    /// `[positions, head_width]` of f32
    pub cos: &'a Tensor,
    /// The same, negative in the first half.
    pub sin: &'a Tensor,
    /// Room for what shares of a row come to: `[R or more, kv heads, shares, queries / kv heads, head_width + 2]` of f32.
    pub parts: &'a Tensor,
    /// 0 between calls: `[R or more, kv heads]` of i32.
    pub done: &'a Tensor,
}

fn product(
    x: &Tensor,
    weight: &Tensor,
    [bias, onto, norm]: [Option<&Tensor>; 3],
    epsilon: f64,
    gated: bool,
) -> Tensor {
    prepare();
    let columns = weight.size()[0] / if gated { 2 } else { 1 };
    let out = Tensor::empty([x.size()[0], columns], (x.kind(), x.device()));
    // SAFETY: all pointers hold for the call; shapes and kinds are checked on the other side, and the memory of tensors outlives
    // the kernel by libtorch's order on a stream.
    unsafe {
        ffi::product(
            pointer(x),
            pointer(weight),
            pointer_if(bias),
            pointer_if(onto),
            pointer_if(norm),
            epsilon,
            gated,
            pointer(&out),
        )
    }
    .expect("rows are as wide as the matrix");
    out
}

/// 1, 2 or 4 rows `x` `[R, in]`, normalised first where there is a `norm` (its weight `[in]`, its epsilon), times the transpose of
/// `weight` `[out, in]`, plus `bias` `[out]` and `onto` `[R, out]`: `[R, out]`. The matrix is read once, at the memory's speed.
pub fn multiply(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    onto: Option<&Tensor>,
    norm: Option<(&Tensor, f64)>,
) -> Tensor {
    let epsilon = norm.map_or(0.0, |(_, epsilon)| epsilon);
    product(x, weight, [bias, onto, norm.map(|(weight, _)| weight)], epsilon, false)
}

/// The same for SwiGLU: `weight` `[2 inner, in]` gives gates and ups, of which comes `silu(gate) * up` `[R, inner]`.
pub fn multiply_gated(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, norm: (&Tensor, f64)) -> Tensor {
    product(x, weight, [bias, None, Some(norm.0)], norm.1, true)
}

/// Attention of one new token a row, of `qkv` `[R, query_width + 2 kv_width]`: heads are normalised and turned, key and value are
/// cached, and the queries attend to the blocks of their row. Gives `[R, query_width]`.
pub fn attend(qkv: &Tensor, cells: &Cells<'_>, heads: &Heads<'_>) -> Tensor {
    prepare();
    let kv_width = cells.keys.size()[1];
    let out = Tensor::empty([qkv.size()[0], qkv.size()[1] - 2 * kv_width], (qkv.kind(), qkv.device()));
    let norm = |which: usize| pointer_if(heads.norms.map(|norms| &norms[which]));
    // SAFETY: as above; nobody else holds the cells of these rows.
    unsafe {
        ffi::attend(
            pointer(qkv),
            pointer(cells.keys),
            pointer(cells.values),
            pointer(cells.rows),
            pointer(cells.tables),
            norm(0),
            norm(1),
            heads.epsilon,
            pointer(heads.cos),
            pointer(heads.sin),
            heads.queries,
            pointer(heads.parts),
            pointer(heads.done),
            pointer(&out),
        )
    }
    .expect("rows, tables and cells fit one another");
    out
}

/// RMSNorm of the rows of `x` `[R, width]` by `weight` `[width]`.
pub fn normalise(x: &Tensor, weight: &Tensor, epsilon: f64) -> Tensor {
    prepare();
    let out = x.empty_like();
    // SAFETY: as above.
    unsafe { ffi::normalise(pointer(x), pointer(weight), epsilon, pointer(&out)) }
        .expect("rows are as wide as the norm");
    out
}

/// SwiGLU's middle: of `both` `[R, 2 inner]`, gates and ups, `silu(gate) * up` `[R, inner]`.
pub fn gate(both: &Tensor) -> Tensor {
    prepare();
    let out = Tensor::empty([both.size()[0], both.size()[1] / 2], (both.kind(), both.device()));
    // SAFETY: as above.
    unsafe { ffi::gate(pointer(both), pointer(&out)) }.expect("a gate for each");
    out
}

/// The rows of `table` `[vocabulary, width]` of the tokens of `rows` `[R, ROW_WORDS]`: `[R, width]`.
pub fn embed(table: &Tensor, rows: &Tensor) -> Tensor {
    prepare();
    let out = Tensor::empty([rows.size()[0], table.size()[1]], (table.kind(), table.device()));
    // SAFETY: as above; tokens are below the vocabulary, which the caller has checked.
    unsafe { ffi::embed(pointer(table), pointer(rows), pointer(&out)) }.expect("rows of tokens");
    out
}

/// Draws a token for each row of `logits` `[R, vocabulary]`, into `out` `[R, 2]` of i32: the token, and its log-probability's bits.
pub fn draw(logits: &Tensor, rows: &Tensor, out: &Tensor) {
    prepare();
    // SAFETY: as above; nobody else holds `out`.
    unsafe { ffi::draw(pointer(logits), pointer(rows), pointer(out)) }.expect("a row of logits for each");
}
