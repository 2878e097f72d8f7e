//! Attention within rollouts packed one after another; no token sees another rollout. The plain way pads
//! rollouts of similar length into one batch; flash attention (bf16 on CUDA) pads nothing. Rollouts may share
//! the rows of a common prefix: everything but attention is computed once for them.

use tch::{Device, Tensor};

use super::attention::{Heads, causal_mask};
use super::sequences::Sequences;
use super::{Attend, Config};
use crate::gpu_kernels;

/// Up to this many tokens rollouts are attended to together whatever their length: a call costs
/// more than padding.
const SHORT: i64 = 64;

/// One rollout of a forward.
#[derive(Debug, Clone, Copy)]
pub struct Extent<'a> {
    /// Its tokens, 1 or more.
    pub tokens: i64,
    /// Its positions whose logits the forward returns, 1 or more.
    pub logit_positions: &'a [i64],
}

/// Rollouts one after another: N rows, M of them logit_rows.
#[derive(Debug)]
pub struct Packed {
    way: Way,
    shared: Option<SharedRows>,
}

/// How rows that are a token's each are attended to.
#[derive(Debug)]
enum Way {
    Padded(Padded),
    Sequences(Sequences),
}

/// Rollouts in classes of like length.
#[derive(Debug)]
struct Padded {
    heads: Heads,
    /// Rows of each class.
    rows: Vec<i64>,
    /// Wanted rows of each class.
    logit_rows: Vec<i64>,
    classes: Vec<Class>,
}

/// Rows of U that stand for the N tokens of all rollouts.
#[derive(Debug)]
struct SharedRows {
    /// The row of each token. `[N]`
    rows: Tensor,
    /// A token of each row: any, since all that stand on a row see the same. `[U]`
    tokens: Tensor,
}

/// Neighbouring rollouts of like length: B of at most T tokens, at most R logit_rows.
#[derive(Debug)]
struct Class {
    all: Grid,
    logit_rows: Grid,
    /// `[B, 1, R, T]`, for the logit_rows rows.
    mask: Tensor,
}

/// Where rows of unlike counts lie in `[B, longest]`.
#[derive(Debug)]
struct Grid {
    shape: [i64; 2],
    /// The place of each row in `[B * longest]`; `None` if they fill it.
    places: Option<Tensor>,
}

impl Packed {
    /// For these rollouts in the order of their rows. Those of like length should be neighbours: where they
    /// are padded, each class of them is one call a layer.
    #[must_use]
    pub fn new(config: &Config, rollouts: &[Extent<'_>], device: Device) -> Self {
        if Sequences::serve(config, rollouts) && gpu_kernels::train(device) {
            return Self::unpadded(config, rollouts, device);
        }
        Self::padded(config, rollouts, device)
    }

    /// The same, padded wherever it computes: for tests, which compare the two ways.
    #[must_use]
    pub fn padded(config: &Config, rollouts: &[Extent<'_>], device: Device) -> Self {
        Self { way: Way::Padded(Padded::new(config, rollouts, device)), shared: None }
    }

    /// The same without padding; on a CPU slow.
    ///
    /// # Panics
    /// The config is none of bf16, or its heads are of an odd width.
    #[must_use]
    pub fn unpadded(config: &Config, rollouts: &[Extent<'_>], device: Device) -> Self {
        assert!(
            Sequences::serve(config, rollouts),
            "flash attention takes bf16, and heads of 8 to 256 numbers"
        );
        Self { way: Way::Sequences(Sequences::new(config, rollouts, device)), shared: None }
    }

    /// The same where tokens share rows: `rows` names the row of each token, from 0 and in the
    /// order in which they first come. Tokens share one that have the same before them.
    #[must_use]
    pub fn on_rows(self, rows: &[i64], device: Device) -> Self {
        let mut firsts: Vec<i64> = Vec::new();
        for (token, &row) in (0..).zip(rows) {
            if row == firsts.len() as i64 {
                firsts.push(token);
            }
        }
        let upload = |numbers: &[i64]| Tensor::from_slice(numbers).to_device(device);
        let shared =
            (firsts.len() < rows.len()).then(|| SharedRows { rows: upload(rows), tokens: upload(&firsts) });
        Self { shared, ..self }
    }

    /// Calls of attention a layer.
    #[must_use]
    pub const fn classes(&self) -> usize {
        match &self.way {
            Way::Padded(padded) => padded.classes.len(),
            Way::Sequences(_) => 1,
        }
    }

    /// Attention of rows that are a token's each.
    fn attend_tokens(&self, q: &Tensor, k: &Tensor, v: &Tensor, logits_only: bool) -> Tensor {
        match &self.way {
            Way::Padded(padded) => padded.attend(q, k, v, logits_only),
            Way::Sequences(sequences) => sequences.attend(q, k, v, logits_only),
        }
    }
}

/// Whether rollouts of these lengths go together: at most a quarter is padding.
const fn like(a: i64, b: i64) -> bool {
    let (longer, shorter) = if a > b { (a, b) } else { (b, a) };
    longer <= SHORT || shorter * 4 >= longer * 3
}

impl Attend for Packed {
    fn attend(&mut self, _layer: usize, q: &Tensor, k: &Tensor, v: &Tensor, logits_only: bool) -> Tensor {
        let Some(SharedRows { rows, tokens }) = &self.shared else {
            return self.attend_tokens(q, k, v, logits_only);
        };
        let (k, v) = (take_rows(k, rows), take_rows(v, rows));
        if logits_only {
            return self.attend_tokens(q, &k, &v, true);
        }
        take_rows(&self.attend_tokens(&take_rows(q, rows), &k, &v, false), tokens)
    }
}

impl Padded {
    fn new(config: &Config, rollouts: &[Extent<'_>], device: Device) -> Self {
        let (mut rows, mut logit_rows, mut classes) = (Vec::new(), Vec::new(), Vec::new());
        let mut rest = rollouts;
        while let Some(first) = rest.first() {
            // The first is the longest where they are in order; each is like it, not only like its
            // neighbour.
            let count = rest.iter().take_while(|rollout| like(first.tokens, rollout.tokens)).count();
            let (class, after) = rest.split_at(count);
            rest = after;
            rows.push(class.iter().map(|rollout| rollout.tokens).sum());
            logit_rows.push(class.iter().map(|rollout| rollout.logit_positions.len() as i64).sum());
            classes.push(Class::new(class, device));
        }
        Self { heads: Heads::of(config), rows, logit_rows, classes }
    }

    /// Attention of rows that are a token's each.
    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, logits_only: bool) -> Tensor {
        let queries = if logits_only { &self.logit_rows } else { &self.rows };
        let q = q.split_with_sizes(queries.as_slice(), 0);
        let [k, v] = [k, v].map(|x| x.split_with_sizes(self.rows.as_slice(), 0));
        let class = |(index, class): (usize, &Class)| {
            let (k, v) = (class.all.pad(&k[index]), class.all.pad(&v[index]));
            let (grid, mask) =
                if logits_only { (&class.logit_rows, Some(&class.mask)) } else { (&class.all, None) };
            grid.rows(&self.heads.attend(&grid.pad(&q[index]), &k, &v, mask))
        };
        let attended: Vec<Tensor> = self.classes.iter().enumerate().map(class).collect();
        if attended.len() == 1 { attended[0].shallow_clone() } else { Tensor::cat(&attended, 0) }
    }
}

impl Class {
    fn new(rollouts: &[Extent<'_>], device: Device) -> Self {
        let all = Grid::new(rollouts.iter().map(|rollout| rollout.tokens), device);
        let logit_rows =
            Grid::new(rollouts.iter().map(|rollout| rollout.logit_positions.len() as i64), device);
        let [batch, most] = logit_rows.shape;
        let mut positions = Vec::new();
        for rollout in rollouts {
            let end = positions.len() + most as usize;
            positions.extend(rollout.logit_positions);
            // What fills up the grid sees its rollout's first token: a softmax over nothing would
            // be NaN.
            positions.resize(end, 0);
        }
        let positions = Tensor::from_slice(&positions).to_device(device).view([batch, most]);
        Self { mask: causal_mask(&positions, all.shape[1]), all, logit_rows }
    }
}

impl Grid {
    fn new(counts: impl Iterator<Item = i64> + Clone, device: Device) -> Self {
        let longest = counts.clone().max().unwrap_or(0);
        let places: Vec<i64> =
            (0..).zip(counts.clone()).flat_map(|(b, count)| b * longest..b * longest + count).collect();
        let shape = [counts.count() as i64, longest];
        let full = places.len() as i64 == shape[0] * shape[1];
        Self { shape, places: (!full).then(|| Tensor::from_slice(&places).to_device(device)) }
    }

    /// `[B, longest, width]` from rows `[n, width]`, with zeros where there is none. They come
    /// after a rollout's tokens, so causality keeps them out of every row.
    fn pad(&self, rows: &Tensor) -> Tensor {
        let ([batch, longest], width) = (self.shape, rows.size()[1]);
        let Some(places) = &self.places else { return rows.view([batch, longest, width]) };
        let zeros = Tensor::zeros([batch * longest, width], (rows.kind(), rows.device()));
        zeros.index_copy(0, places, rows).view([batch, longest, width])
    }

    /// The rows out of `[B * longest, width]`.
    fn rows(&self, grid: &Tensor) -> Tensor {
        self.places.as_ref().map_or_else(|| grid.shallow_clone(), |places| take_rows(grid, places))
    }
}

/// Rows of `x` `[rows, width]` by number. As an embedding: its gradient is added up by all threads.
fn take_rows(x: &Tensor, rows: &Tensor) -> Tensor {
    Tensor::embedding(x, rows, -1, false, false)
}
