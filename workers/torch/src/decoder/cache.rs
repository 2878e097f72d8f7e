//! The KV cache: blocks of positions, and attention to them. A sequence's block table names its
//! blocks, in any order; sequences may share blocks.

use millrace_kernels::{Own, Pages, attend_rows};
use tch::{Device, Kind, Tensor};

use super::attention::{Heads, causal_mask};
use super::sequences::{LaneSequences, serves};
use super::{Attend, Config, Rows};
use crate::gpu_kernels;

/// Positions of a block.
pub const BLOCK: usize = 16;

/// Blocks that are nobody's: rows that fill up a step read and write there.
const SPARE: usize = 1;

/// The KV cache of all layers.
#[derive(Debug)]
pub struct KvCache {
    heads: Heads,
    blocks: usize,
    /// Whether several new tokens of a lane are attended to by flash attention.
    flash: bool,
    /// Per layer, `[(blocks + SPARE) * BLOCK, kv_width]`.
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    /// Keys and values of one layer's lanes, copied together. The memory is kept, since fresh pages
    /// cost more than the copy.
    seen_keys: Scratch,
    seen_values: Scratch,
}

/// Memory that is reused.
#[derive(Debug)]
struct Scratch(Tensor);

impl Scratch {
    /// Memory of this shape with arbitrary content.
    fn shaped(&mut self, shape: [i64; 3]) -> Tensor {
        let len: i64 = shape.iter().product();
        if len > self.0.numel() as i64 {
            self.0 = Tensor::empty([len + len / 2], (self.0.kind(), self.0.device()));
        }
        self.0.narrow(0, 0, len).view(shape)
    }
}

/// One sequence's share of a forward: `tokens` come after `cached` positions.
#[derive(Debug, Clone, Copy)]
pub struct Lane<'a> {
    /// The blocks of its positions, in order: enough for the cached and the new.
    pub blocks: &'a [usize],
    /// Positions that are cached already.
    pub cached: usize,
    /// The tokens to compute, 1 or more; the forward returns the logits of the last.
    pub tokens: &'a [u32],
}

impl KvCache {
    /// Bytes of one block.
    #[must_use]
    pub fn bytes_per_block(config: &Config, kind: Kind) -> usize {
        let numbers = 2 * config.num_hidden_layers as i64 * config.kv_width();
        usize::try_from(numbers).unwrap_or(usize::MAX).saturating_mul(BLOCK * kind.elt_size_in_bytes())
    }

    /// A cache of so many blocks, of numbers of `kind`.
    #[must_use]
    pub fn new(config: &Config, blocks: usize, kind: Kind, device: Device) -> Self {
        let make =
            || (0..config.num_hidden_layers).map(|_| zeros(blocks + SPARE, config.kv_width(), kind, device));
        let scratch = || Scratch(Tensor::empty([0], (kind, device)));
        Self {
            heads: Heads::of(config),
            flash: serves(config, kind) && gpu_kernels::train(device),
            blocks,
            keys: make().collect(),
            values: make().collect(),
            seen_keys: scratch(),
            seen_values: scratch(),
        }
    }

    /// The same with flash attention or without, wherever it computes: for tests, which compare the
    /// two. On a CPU it is slow.
    #[must_use]
    pub fn with_flash(self, flash: bool) -> Self {
        Self { flash, ..self }
    }

    /// Blocks that are allocated.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.blocks
    }

    /// The block that is nobody's.
    #[must_use]
    pub const fn spare(&self) -> usize {
        self.blocks
    }

    /// Keys and values of a layer, `[cells, kv_width]`.
    pub(super) fn layer(&self, index: usize) -> [&Tensor; 2] {
        [&self.keys[index], &self.values[index]]
    }

    /// Allocates `blocks` in all; the content stays. The tensors are others then.
    pub fn grow(&mut self, blocks: usize) {
        let more = blocks.saturating_sub(self.blocks);
        if more == 0 {
            return;
        }
        for layer in self.keys.iter_mut().chain(&mut self.values) {
            let count = if self.blocks == 0 { blocks + SPARE } else { more };
            let added = zeros(count, layer.size()[1], layer.kind(), layer.device());
            *layer = if self.blocks == 0 { added } else { Tensor::cat(&[&*layer, &added], 0) };
        }
        self.blocks = blocks;
    }

    /// Copies the first `positions` of a block to another.
    pub fn copy(&mut self, from: usize, to: usize, positions: usize) {
        let at = |layer: &Tensor, block| layer.narrow(0, (block * BLOCK) as i64, positions as i64);
        for layer in self.keys.iter().chain(&self.values).filter(|_| from != to) {
            at(layer, to).copy_(&at(layer, from));
        }
    }

    /// The rows of one forward over `lanes`, and its attention. After the forward the new positions
    /// are cached.
    pub fn prepare(&mut self, lanes: &[Lane<'_>]) -> (Rows, Cached<'_>) {
        let device = self.keys[0].device();
        let longest = lanes.iter().map(|lane| lane.tokens.len()).max().unwrap_or(0);
        let seen = lanes.iter().map(|lane| lane.cached + lane.tokens.len()).max().unwrap_or(0);
        let width = seen.div_ceil(BLOCK);
        let mut rows = LaneRows::with_capacity(lanes.len(), longest);
        for lane in lanes {
            assert!(
                lane.blocks.iter().all(|&block| block < self.blocks),
                "a lane's blocks are of this cache"
            );
            rows.push(lane, longest, width);
        }
        let upload = |numbers: &[i64]| Tensor::from_slice(numbers).to_device(device);
        let batch = lanes.len() as i64;
        let last = upload(&rows.last_positions).view([batch, 1]);
        let cached = Cached {
            batch,
            seen: (width * BLOCK) as i64,
            tables: upload(&rows.tables).view([batch, width as i64]),
            lengths: last.view([batch]) + 1,
            cells: upload(&rows.cells),
            several: (longest > 1).then(|| {
                if self.flash {
                    Several::Flash(LaneSequences::new(self.heads, lanes, device))
                } else {
                    Several::Padded(Ragged::of(&rows, &last, (width * BLOCK) as i64, device))
                }
            }),
            last,
            last_mask: None,
            cache: self,
        };
        let rows = Rows {
            tokens: upload(&rows.tokens),
            positions: upload(&rows.positions),
            logit_rows: upload(&rows.last_rows),
        };
        (rows, cached)
    }
}

/// Zeroed, because attention multiplies masked values by zero, and NaN would pass.
fn zeros(blocks: usize, width: i64, kind: Kind, device: Device) -> Tensor {
    Tensor::zeros([(blocks * BLOCK) as i64, width], (kind, device))
}

/// The numbers of [`KvCache::prepare`] before they are tensors. N rows in all, B lanes, T the
/// longest, W blocks of the lane that sees most.
#[derive(Debug, Default)]
struct LaneRows {
    /// `[N]`
    tokens: Vec<i64>,
    /// `[N]`
    positions: Vec<i64>,
    /// Where each row's key and value go, in a cache seen as `[blocks * BLOCK]`. `[N]`
    cells: Vec<i64>,
    /// The blocks that each lane sees; beyond, any. `[B, W]`
    tables: Vec<i64>,
    /// `[B]`
    last_rows: Vec<i64>,
    /// `[B]`
    last_positions: Vec<i64>,
    /// The row at each place of the padded `[B, T]`; padding repeats a lane's last row.
    padded_rows: Vec<i64>,
    /// Its position. `[B, T]`
    padded_positions: Vec<i64>,
    /// The place of each row in `[B, T]`. `[N]`
    row_places: Vec<i64>,
}

impl LaneRows {
    fn with_capacity(lanes: usize, longest: usize) -> Self {
        Self { padded_rows: Vec::with_capacity(lanes * longest), ..Self::default() }
    }

    fn push(&mut self, lane: &Lane<'_>, longest: usize, width: usize) {
        let (first, place) = (self.tokens.len() as i64, self.padded_rows.len() as i64);
        let (cached, last) = (lane.cached as i64, lane.tokens.len() as i64 - 1);
        for (index, &token) in lane.tokens.iter().enumerate() {
            let position = lane.cached + index;
            self.tokens.push(i64::from(token));
            self.positions.push(position as i64);
            self.cells.push((lane.blocks[position / BLOCK] * BLOCK + position % BLOCK) as i64);
            self.row_places.push(place + index as i64);
        }
        for index in 0..longest as i64 {
            self.padded_rows.push(first + index.min(last));
            self.padded_positions.push(cached + index.min(last));
        }
        let sees = (lane.cached + lane.tokens.len()).div_ceil(BLOCK);
        self.tables.extend((0..width).map(|i| if i < sees { lane.blocks[i] as i64 } else { 0 }));
        self.last_rows.push(first + last);
        self.last_positions.push(cached + last);
    }
}

/// How lanes of more than one new token are attended to.
#[derive(Debug)]
enum Several {
    Padded(Ragged),
    Flash(LaneSequences),
}

/// How lanes of more than one new token lie in a padded batch.
#[derive(Debug)]
struct Ragged {
    /// The row at each padded place and the place of each row; `None` where all lanes are equally
    /// long.
    pad: Option<(Tensor, Tensor)>,
    mask: Tensor,
}

impl Ragged {
    fn of(rows: &LaneRows, last: &Tensor, seen: i64, device: Device) -> Self {
        let upload = |numbers: &[i64]| Tensor::from_slice(numbers).to_device(device);
        let ragged = rows.tokens.len() != rows.padded_rows.len();
        let positions = upload(&rows.padded_positions).view([last.size()[0], -1]);
        Self {
            pad: ragged.then(|| (upload(&rows.padded_rows), upload(&rows.row_places))),
            mask: causal_mask(&positions, seen),
        }
    }
}

/// Attention of new rows to their blocks.
#[derive(Debug)]
pub struct Cached<'a> {
    cache: &'a mut KvCache,
    batch: i64,
    /// Positions that the tables cover.
    seen: i64,
    /// `[B, seen / BLOCK]`
    tables: Tensor,
    /// Positions that each lane's last row sees. `[B]`
    lengths: Tensor,
    cells: Tensor,
    /// `None` where each lane has one row.
    several: Option<Several>,
    /// Position of each lane's last row. `[B, 1]`
    last: Tensor,
    /// Its mask, once it was needed.
    last_mask: Option<Tensor>,
}

impl Attend for Cached<'_> {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor, logits_only: bool) -> Tensor {
        if self.several.is_none() && q.device() == Device::Cpu {
            let own = Own { keys: k, values: v, cells: &self.cells };
            return attend_rows(q, Some(own), &self.pages(layer), self.cache.heads.queries());
        }
        let (keys, values) = (&mut self.cache.keys[layer], &mut self.cache.values[layer]);
        let _ = keys.index_copy_(0, &self.cells, k);
        let _ = values.index_copy_(0, &self.cells, v);
        match &self.several {
            Some(Several::Flash(lanes)) if !logits_only => lanes.attend(q, [k, v], [keys, values]),
            Some(Several::Padded(ragged)) if !logits_only => {
                let width = q.size()[1];
                let (keys, values) = self.cache.seen(layer, &self.tables, self.seen);
                let q = match &ragged.pad {
                    Some((rows, _)) => q.index_select(0, rows),
                    None => q.shallow_clone(),
                };
                let q = q.reshape([self.batch, -1, width]);
                let out = self.cache.heads.attend(&q, &keys, &values, Some(&ragged.mask.to_kind(q.kind())));
                match &ragged.pad {
                    Some((_, places)) => out.index_select(0, places),
                    None => out,
                }
            }
            _ => self.attend_last(layer, q),
        }
    }
}

impl Cached<'_> {
    /// A layer of the KV cache, and the positions that the last row of each lane sees.
    fn pages(&self, layer: usize) -> Pages<'_> {
        let (keys, values) = (&self.cache.keys[layer], &self.cache.values[layer]);
        Pages { keys, values, tables: &self.tables, lengths: &self.lengths, block: BLOCK }
    }

    /// Attention of one row a lane, the last.
    fn attend_last(&mut self, layer: usize, q: &Tensor) -> Tensor {
        let heads = self.cache.heads;
        if q.device() == Device::Cpu {
            return attend_rows(q, None, &self.pages(layer), heads.queries());
        }
        let (keys, values) = self.cache.seen(layer, &self.tables, self.seen);
        let (last, seen) = (&self.last, self.seen);
        let mask = self.last_mask.get_or_insert_with(|| causal_mask(last, seen).to_kind(q.kind()));
        heads.attend(&q.reshape([self.batch, 1, -1]), &keys, &values, Some(mask))
    }
}

impl KvCache {
    /// The keys and values that lanes with these tables see in a layer: `[B, seen, kv_width]`.
    fn seen(&mut self, layer: usize, tables: &Tensor, seen: i64) -> (Tensor, Tensor) {
        let batch = tables.size()[0];
        let tables = tables.view([-1]);
        let together = |all: &Tensor, scratch: &mut Scratch| {
            let cells = BLOCK as i64 * all.size()[1];
            let out = scratch.shaped([1, tables.size()[0], cells]);
            let _ = all.view([-1, cells]).index_select_out(&out.view([-1, cells]), 0, &tables);
            out.view([batch, seen, -1])
        };
        let keys = together(&self.keys[layer], &mut self.seen_keys);
        (keys, together(&self.values[layer], &mut self.seen_values))
    }
}
