//! Attention between rows of tokens, apart from the layers around it.

use tch::{Device, Kind, Tensor};

use super::Config;

/// The attention of one forward. Called once for each layer, in order.
pub trait Attend {
    /// Attention of one layer. `q` is `[R, query_width]`: all rows of the forward, or in the last
    /// layer only those whose logits are needed (`logits_only`). `k` and `v` are `[N, kv_width]`,
    /// for all rows. Returns `[R, query_width]`.
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor, logits_only: bool) -> Tensor;
}

/// Heads and their width.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    /// Query heads.
    query: i64,
    /// Key and value heads.
    kv: i64,
    /// Width of one.
    width: i64,
}

impl Heads {
    pub(super) fn of(config: &Config) -> Self {
        Self { query: config.num_attention_heads, kv: config.kv_heads(), width: config.head_width() }
    }

    #[cfg(test)]
    pub(super) const fn with(query: i64, kv: i64, width: i64) -> Self {
        Self { query, kv, width }
    }

    /// Query heads.
    pub(super) const fn queries(self) -> i64 {
        self.query
    }

    /// Rows `[N, heads * width]` as `[N, heads, width]`.
    pub(super) fn of_rows(self, rows: &Tensor) -> Tensor {
        rows.view([rows.size()[0], -1, self.width])
    }

    /// Attention over `[B, T, query_width]` and `[B, L, kv_width]`, to `[B * T, query_width]`.
    /// Without a mask (`[B, 1, T, L]`, 0 or −∞) it is causal.
    pub(super) fn attend(self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let split = |x: &Tensor, heads: i64| {
            let (batch, length) = (x.size()[0], x.size()[1]);
            x.view([batch, length, heads, self.width]).transpose(1, 2)
        };
        let (q, k, v) = (split(q, self.query), split(k, self.kv), split(v, self.kv));
        let grouped = self.query != self.kv;
        let mask = mask.map(|mask| mask.to_kind(q.kind()));
        Tensor::scaled_dot_product_attention(&q, &k, &v, mask.as_ref(), 0.0, mask.is_none(), None, grouped)
            .transpose(1, 2)
            .reshape([-1, self.query * self.width])
    }
}

/// The additive mask `[B, 1, R, length]` by which queries at `positions` `[B, R]` see keys 0 to
/// their own.
pub(super) fn causal_mask(positions: &Tensor, length: i64) -> Tensor {
    let device: Device = positions.device();
    let keys = Tensor::arange(length, (Kind::Int64, device));
    let hidden = keys.view([1, 1, 1, length]).gt_tensor(&positions.unsqueeze(1).unsqueeze(3));
    Tensor::zeros(hidden.size(), (Kind::Float, device)).masked_fill(&hidden, f64::NEG_INFINITY)
}
