//! The calls of the C++ beside it. All that could break memory is in this file.
#![expect(unsafe_code, reason = "C++ is called, with tensors as pointers")]
#![expect(unreachable_pub, reason = "the macro makes what it declares public")]
#![expect(clippy::too_many_arguments, reason = "the arguments of C++ are flat")]

use tch::{Device, Tensor};

use crate::tensors::{pointer, pointer_if};

#[cxx::bridge(namespace = "millrace::training")]
mod ffi {
    unsafe extern "C++" {
        include!("millrace-kernels/src/training/training.h");

        #[namespace = "at"]
        type Tensor = crate::tensors::ffi::Tensor;

        unsafe fn attend_sequences(
            q: *const Tensor,
            k: *const Tensor,
            v: *const Tensor,
            query_starts: *const Tensor,
            key_starts: *const Tensor,
            most_queries: i64,
            most_keys: i64,
        ) -> Result<*mut Tensor>;
        unsafe fn gate(both: *const Tensor) -> Result<*mut Tensor>;
        unsafe fn turn_heads(
            x: *const Tensor,
            norm: *const Tensor,
            epsilon: f64,
            cos: *const Tensor,
            sin: *const Tensor,
        ) -> Result<*mut Tensor>;
        unsafe fn exponential_sums(
            logits: *const Tensor,
            largest: *const Tensor,
            inverse_temperature: f64,
        ) -> Result<*mut Tensor>;
        unsafe fn logits_gradient(logits: *const Tensor, rows: *const Tensor) -> Result<*mut Tensor>;
        unsafe fn adamw(
            weights: *const Tensor,
            gradient: *const Tensor,
            first: *const Tensor,
            second: *const Tensor,
            ranges: &[i64],
            step: f64,
            rate: f64,
            beta1: f64,
            beta2: f64,
            weight_decay: f64,
            epsilon: f64,
        ) -> Result<()>;
    }
}

/// A new tensor that C++ made.
///
/// # Panics
/// As libtorch's operators do: it threw.
fn made(result: Result<*mut ffi::Tensor, cxx::Exception>) -> Tensor {
    let tensor = result.unwrap_or_else(|error| panic!("{error}"));
    // SAFETY: what C++ returns is a new tensor that nobody else owns.
    unsafe { Tensor::from_ptr(tensor.cast()) }
}

/// Where S sequences lie among rows, one after another.
#[derive(Debug)]
pub struct Starts {
    /// The first row of each, and the number of all rows. `[S + 1]` of i32
    of: Tensor,
    /// Rows of the longest.
    longest: i64,
}

impl Starts {
    /// Of sequences of so many rows each.
    ///
    /// # Panics
    /// All of them pass 31 bits.
    #[must_use]
    pub fn new(lengths: impl Iterator<Item = i64>, device: Device) -> Self {
        let (mut starts, mut end, mut longest) = (vec![0], 0, 0);
        for length in lengths {
            end += length;
            longest = longest.max(length);
            starts.push(i32::try_from(end).expect("the rows of a forward fit 31 bits"));
        }
        Self { of: Tensor::from_slice(&starts).to_device(device), longest }
    }
}

/// Causal attention within sequences that lie one after another, with gradients: flash attention of
/// variable lengths (Dao, "FlashAttention-2", 2023). `q` is `[N, heads, head_width]`, `k` and `v` `[M, key
/// heads, head_width]`, bf16 on CUDA; a key head serves neighbouring query heads. `queries` says where the
/// sequences lie in the N rows, the longest of 2 or more, `keys` where in the M. The last query of each
/// sees all its keys. Gives `[N, heads, head_width]`.
pub fn attend_sequences(q: &Tensor, k: &Tensor, v: &Tensor, queries: &Starts, keys: &Starts) -> Tensor {
    let (query_starts, key_starts) = (pointer(&queries.of), pointer(&keys.of));
    let (q, k, v) = (pointer(q), pointer(k), pointer(v));
    // SAFETY: all pointers hold for the call; shapes and kinds are checked on the other side.
    made(unsafe { ffi::attend_sequences(q, k, v, query_starts, key_starts, queries.longest, keys.longest) })
}

/// SwiGLU's middle with its gradient: of `both` `[R, 2 inner]` of bf16, gates and ups, `silu(gate) * up`
/// `[R, inner]`, computed in f32 and rounded once. `inner` is a multiple of 4.
pub fn gate(both: &Tensor) -> Tensor {
    // SAFETY: as above.
    made(unsafe { ffi::gate(pointer(both)) })
}

/// Normalises the heads of `x` `[R, heads * head_width]` of bf16 by `norm` `[head_width]`, if there is one,
/// and rotates them, with gradients; computed in f32 and rounded once. Rows of `x` may lie apart. `cos` and
/// `sin` are `[R, 1, head_width]` of bf16, the sines negative in the first half. `head_width` is a multiple
/// of 8.
pub fn turn_heads(x: &Tensor, norm: Option<(&Tensor, f64)>, cos: &Tensor, sin: &Tensor) -> Tensor {
    let (weight, epsilon) = (norm.map(|(weight, _)| weight), norm.map_or(0.0, |(_, epsilon)| epsilon));
    // SAFETY: as above; what is not there is a null pointer, which is not read.
    made(unsafe { ffi::turn_heads(pointer(x), pointer_if(weight), epsilon, pointer(cos), pointer(sin)) })
}

/// Of each row of `logits` `[R, V]` of bf16: `Σ e^u` and `Σ u e^u` with `u = (logit − largest) /
/// temperature`; `[R, 2]` of f32. `largest` is `[R]` of f32, and V a multiple of 16. A logit of −∞ counts
/// nothing.
pub fn exponential_sums(logits: &Tensor, largest: &Tensor, temperature: f64) -> Tensor {
    // SAFETY: as above.
    made(unsafe { ffi::exponential_sums(pointer(logits), pointer(largest), temperature.recip()) })
}

/// `p (a + b log p)` of all `logits` `[R, V]` of bf16, rounded to it, where `log p = logit · s − l`. `rows`
/// `[R, 4]` of f32 are each row's l, a, b and s.
pub fn logits_gradient(logits: &Tensor, rows: &Tensor) -> Tensor {
    // SAFETY: as above.
    made(unsafe { ffi::logits_gradient(pointer(logits), pointer(rows)) })
}

/// The constants of [`adamw`].
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    /// Updates made, this one included.
    pub step: f64,
    /// The learning rate.
    pub rate: f64,
    /// Decay of the first moment and of the second.
    pub betas: [f64; 2],
    /// The decoupled weight decay.
    pub weight_decay: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
}

/// One update of AdamW in one pass over parts of `weights`, whose moments are `moments`, `[n]` of f32 all.
/// `ranges` are start and length of each part, one after another.
pub fn adamw(weights: &Tensor, gradient: &Tensor, moments: [&Tensor; 2], ranges: &[i64], by: AdamW) {
    let [first, second] = moments.map(pointer);
    // SAFETY: as above; nobody else holds the tensors meanwhile.
    unsafe {
        ffi::adamw(
            pointer(weights),
            pointer(gradient),
            first,
            second,
            ranges,
            by.step,
            by.rate,
            by.betas[0],
            by.betas[1],
            by.weight_decay,
            by.epsilon,
        )
    }
    .unwrap_or_else(|error| panic!("{error}"));
}
