//! The forward of one new token of each lane on a GPU. All that it launches depends on shapes alone, so that it can be captured
//! once and replayed: tokens, positions and blocks are read from the device's memory.

use millrace_kernels::cuda::{self, Cells, Heads, MOST_ROWS};
use tch::{Device, Kind, Tensor};

use super::linear::Matrix;
use super::{Config, Decoder, KvCache};

/// Bytes of rows that fit the shared memory of a block.
const MOST_SHARED: usize = 96 << 10;
/// Blocks of threads that attention should have at least, to keep all multiprocessors of a large device busy.
const BUSY_BLOCKS: i64 = 264;
/// Shares of one row's positions at most.
const MOST_SHARES: i64 = 32;

/// The inputs of one such forward, and room for its intermediate results.
#[derive(Debug)]
pub struct StepInputs {
    /// `[R, ROW_WORDS]` of i32
    pub rows: Tensor,
    /// The blocks of each row's positions. `[R, W]` of i32
    pub tables: Tensor,
    parts: Tensor,
    done: Tensor,
}

impl StepInputs {
    /// For `rows` and `tables` of this model.
    pub fn new(config: &Config, rows: Tensor, tables: Tensor) -> Self {
        let (count, device) = (rows.size()[0], rows.device());
        let (groups, each) = (config.kv_heads(), config.num_attention_heads / config.kv_heads());
        let shares = (BUSY_BLOCKS / (count * groups)).clamp(1, MOST_SHARES);
        let parts = [count, groups, shares, each, config.head_width() + 2];
        Self {
            parts: Tensor::empty(parts, (Kind::Float, device)),
            done: Tensor::zeros([count, groups], (Kind::Int, device)),
            rows,
            tables,
        }
    }
}

/// A weight of a product, and what is done to its input and output.
#[derive(Debug, Clone, Copy)]
struct Product<'a> {
    weight: &'a Matrix,
    bias: Option<&'a Tensor>,
    /// The input is normalised first.
    norm: Option<&'a Tensor>,
    /// Added to the output.
    onto: Option<&'a Tensor>,
}

impl Decoder {
    /// Whether the kernels have this model's shape.
    #[must_use]
    pub fn has_steps(config: &Config) -> bool {
        let head = config.head_width();
        let each = config.num_attention_heads / config.kv_heads();
        let wide = |width: i64| width % 8 == 0;
        (16..=256).contains(&head)
            && head.count_ones() == 1
            && each <= 8
            && wide(config.hidden_size)
            && wide(config.intermediate_size)
    }

    /// Logits `[R, vocabulary]` after the new token of each row, which is cached.
    pub fn step(&self, inputs: &StepInputs, cache: &KvCache) -> Tensor {
        let (cos, sin) = self.rope.tables();
        let mut x = cuda::embed(&self.embedding, &inputs.rows);
        for (index, layer) in self.layers.iter().enumerate() {
            let [keys, values] = cache.layer(index);
            let cells = Cells { keys, values, rows: &inputs.rows, tables: &inputs.tables };
            let heads = Heads {
                queries: self.config.num_attention_heads,
                norms: layer.head_norms.as_ref(),
                epsilon: self.config.rms_norm_eps,
                cos,
                sin,
                parts: &inputs.parts,
                done: &inputs.done,
            };
            let qkv = Product {
                weight: &layer.qkv,
                bias: layer.qkv_bias.as_ref(),
                norm: Some(&layer.attention_norm),
                onto: None,
            };
            let attended = cuda::attend(&self.product(&x, qkv), &cells, &heads);
            let output = Product {
                weight: &layer.output,
                bias: layer.output_bias.as_ref(),
                norm: None,
                onto: Some(&x),
            };
            x = self.product(&attended, output);
            let gate_up = Product {
                weight: &layer.gate_up,
                bias: layer.gate_up_bias.as_ref(),
                norm: Some(&layer.feed_forward_norm),
                onto: None,
            };
            let down =
                Product { weight: &layer.down, bias: layer.down_bias.as_ref(), norm: None, onto: Some(&x) };
            x = self.product(&self.gated_product(&x, gate_up), down);
        }
        self.product(&x, Product { weight: &self.head, bias: None, norm: Some(&self.norm), onto: None })
    }

    /// Rows `[R, in]` to `[R, out]`.
    fn product(&self, x: &Tensor, of: Product<'_>) -> Tensor {
        let epsilon = self.config.rms_norm_eps;
        let weight = of.weight.plain();
        if is_few(x) {
            return cuda::multiply(x, weight, of.bias, of.onto, of.norm.map(|norm| (norm, epsilon)));
        }
        let normal = of.norm.map(|norm| cuda::normalise(x, norm, epsilon));
        let x = normal.as_ref().unwrap_or(x);
        match (of.onto, of.bias) {
            (Some(onto), None) => onto.addmm(x, &weight.tr()),
            (Some(onto), Some(bias)) => onto + x.linear(weight, Some(bias)),
            (None, bias) => x.linear(weight, bias),
        }
    }

    /// The same with SwiGLU after it: to `[R, inner]`.
    fn gated_product(&self, x: &Tensor, of: Product<'_>) -> Tensor {
        match of.norm {
            Some(norm) if is_few(x) => {
                cuda::multiply_gated(x, of.weight.plain(), of.bias, (norm, self.config.rms_norm_eps))
            }
            _ => cuda::gate(&self.product(x, of)),
        }
    }
}

/// Whether one pass over the matrix serves all rows of `x`: 1, 2 or 4 rows that fit a block's shared memory.
fn is_few(x: &Tensor) -> bool {
    let (rows, width) = (x.size()[0] as usize, x.size()[1] as usize);
    rows <= MOST_ROWS && rows.is_power_of_two() && rows * width * x.kind().elt_size_in_bytes() <= MOST_SHARED
}

/// Whether the kernels compute `kind` on `device`.
pub fn can_step(kind: Kind, device: Device) -> bool {
    device.is_cuda() && cuda::has_device() && matches!(kind, Kind::Float | Kind::BFloat16)
}
