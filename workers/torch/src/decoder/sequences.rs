//! Attention within whole rollouts, and of new rows to what their lanes see, by flash attention of unlike
//! lengths, in bf16 on CUDA: no padding, no mask.

use millrace_kernels::training::{Starts, attend_sequences};
use tch::{Device, Kind, Tensor};

use super::attention::Heads;
use super::packed::Extent;
use super::{BLOCK, Config, Lane, kind};

/// Widest head that flash attention takes.
const WIDEST: i64 = 256;

/// Whether flash attention takes heads of this model, in numbers of `kind`.
pub(super) fn serves(config: &Config, kind: Kind) -> bool {
    let width = config.head_width();
    kind == Kind::BFloat16 && width % 8 == 0 && width <= WIDEST
}

/// Where rollouts begin among the N tokens of all.
#[derive(Debug)]
pub(super) struct Sequences {
    heads: Heads,
    starts: Starts,
    /// All tokens.
    tokens: i64,
    /// The tokens whose logits the forward returns, among all. `[M]`
    logit_tokens: Tensor,
}

impl Sequences {
    /// Whether flash attention computes these rollouts. If all have one token, the plain way does: flash
    /// attention changes the layout there.
    pub(super) fn serve(config: &Config, rollouts: &[Extent<'_>]) -> bool {
        serves(config, kind(config)) && rollouts.iter().any(|rollout| rollout.tokens > 1)
    }

    pub(super) fn new(config: &Config, rollouts: &[Extent<'_>], device: Device) -> Self {
        let (mut logit_tokens, mut tokens) = (Vec::new(), 0);
        for rollout in rollouts {
            logit_tokens.extend(rollout.logit_positions.iter().map(|position| tokens + position));
            tokens += rollout.tokens;
        }
        Self {
            heads: Heads::of(config),
            starts: Starts::new(rollouts.iter().map(|rollout| rollout.tokens), device),
            tokens,
            logit_tokens: Tensor::from_slice(&logit_tokens).to_device(device),
        }
    }

    /// Attention of rows that are a token's each. Of `logits_only` those without a query get one of zeros,
    /// for one layer's attention costs less than a mask.
    pub(super) fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, logits_only: bool) -> Tensor {
        let wide = q.size()[1];
        if !logits_only {
            return self.attend_all(q, k, v).reshape([-1, wide]);
        }
        let zeros = Tensor::zeros([self.tokens, wide], (q.kind(), q.device()));
        let all = self.attend_all(&zeros.index_copy(0, &self.logit_tokens, q), k, v).reshape([-1, wide]);
        all.index_select(0, &self.logit_tokens)
    }

    fn attend_all(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let [q, k, v] = [q, k, v].map(|rows| self.heads.of_rows(rows));
        attend_sequences(&q, &k, &v, &self.starts, &self.starts)
    }
}

/// Where the new rows of lanes lie, and the positions that each lane sees.
#[derive(Debug)]
pub(super) struct LaneSequences {
    heads: Heads,
    new: Starts,
    seen: Starts,
    /// Where the keys and values are that the lanes see, one lane after another, in a cache seen as
    /// `[cells, kv_width]`; `None` where the new rows are all that is seen.
    cells: Option<Tensor>,
}

impl LaneSequences {
    /// For lanes of which at least one has two or more new tokens.
    pub(super) fn new(heads: Heads, lanes: &[Lane<'_>], device: Device) -> Self {
        let cached = lanes.iter().any(|lane| lane.cached > 0);
        let cells: Option<Vec<i64>> = cached.then(|| lanes.iter().flat_map(cells).collect());
        Self {
            heads,
            new: Starts::new(lanes.iter().map(|lane| lane.tokens.len() as i64), device),
            seen: Starts::new(lanes.iter().map(|lane| (lane.cached + lane.tokens.len()) as i64), device),
            cells: cells.map(|cells| Tensor::from_slice(&cells).to_device(device)),
        }
    }

    /// Attention of new rows, `q` `[N, query_width]`, to `keys` and `values` of a layer's cache, where the
    /// new ones `k` and `v` `[N, kv_width]` are by now.
    pub(super) fn attend(&self, q: &Tensor, new: [&Tensor; 2], cached: [&Tensor; 2]) -> Tensor {
        let [k, v] = match &self.cells {
            Some(cells) => cached.map(|all| all.index_select(0, cells)),
            None => new.map(Tensor::shallow_clone),
        };
        let [heads_q, k, v] = [q, &k, &v].map(|rows| self.heads.of_rows(rows));
        attend_sequences(&heads_q, &k, &v, &self.new, &self.seen).reshape([-1, q.size()[1]])
    }
}

/// Where in a cache the keys and values are that a lane sees, in order.
fn cells<'a>(lane: &Lane<'a>) -> impl Iterator<Item = i64> + use<'a> {
    let (seen, blocks) = (lane.cached + lane.tokens.len(), lane.blocks);
    (0..seen).map(move |at| (blocks[at / BLOCK] * BLOCK + at % BLOCK) as i64)
}
