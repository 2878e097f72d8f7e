//! The key-value cache: one slot per sequence, and attention to it.

use tch::{Device, Kind, Tensor};

use super::attention::{Heads, causal_mask};
use super::{Attend, Config, Rows};

/// Keys and values of all layers: slot `s` holds one sequence's, position by position.
#[derive(Debug)]
pub struct KvCache {
    heads: Heads,
    slots: i64,
    positions: i64,
    /// Per layer, `[slots, positions, kv_width]`.
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    /// What one layer's lanes see, copied together: kept, since fresh pages cost more than the copy.
    seen_keys: Scratch,
    seen_values: Scratch,
}

/// Memory that is used again and again.
#[derive(Debug)]
struct Scratch(Tensor);

impl Scratch {
    /// Memory of this shape; what it holds is left over from before.
    fn shaped(&mut self, shape: [i64; 3]) -> Tensor {
        let len: i64 = shape.iter().product();
        if len > self.0.numel() as i64 {
            self.0 = Tensor::empty([len + len / 2], (self.0.kind(), self.0.device()));
        }
        self.0.narrow(0, 0, len).view(shape)
    }
}

/// One sequence's share of a forward: `tokens` come after `cached` positions of its slot.
#[derive(Debug, Clone, Copy)]
pub struct Lane<'a> {
    /// Where its keys and values are.
    pub slot: i64,
    /// Positions that the slot holds already.
    pub cached: i64,
    /// The tokens to compute, 1 or more; the logits of the last are wanted.
    pub tokens: &'a [u32],
}

impl KvCache {
    /// Bytes of one position of one slot.
    #[must_use]
    pub fn bytes_per_position(config: &Config) -> usize {
        let numbers = 2 * config.num_hidden_layers as i64 * config.kv_width();
        usize::try_from(numbers).unwrap_or(usize::MAX).saturating_mul(size_of::<f32>())
    }

    /// An empty cache. It is zeroed, since attention multiplies what a mask hides by zero: NaN would pass.
    #[must_use]
    pub fn new(config: &Config, slots: i64, positions: i64, device: Device) -> Self {
        let make = || {
            let shape = [slots, positions, config.kv_width()];
            (0..config.num_hidden_layers).map(|_| Tensor::zeros(shape, (Kind::Float, device))).collect()
        };
        let scratch = || Scratch(Tensor::empty([0], (Kind::Float, device)));
        Self {
            heads: Heads::of(config),
            slots,
            positions,
            keys: make(),
            values: make(),
            seen_keys: scratch(),
            seen_values: scratch(),
        }
    }

    /// Sequences that it has room for.
    #[must_use]
    pub const fn slots(&self) -> i64 {
        self.slots
    }

    /// Positions of each.
    #[must_use]
    pub const fn positions(&self) -> i64 {
        self.positions
    }

    /// The rows of one forward over `lanes`, and the attention that goes with them. After the forward, the
    /// slots hold the new positions too. A lane's tokens must fit its slot.
    pub fn prepare(&mut self, lanes: &[Lane<'_>]) -> (Rows, Cached<'_>) {
        let device = self.keys[0].device();
        let longest = lanes.iter().map(|lane| lane.tokens.len()).max().unwrap_or(0);
        let mut rows = LaneRows::with_capacity(lanes.len(), longest);
        for lane in lanes {
            rows.push(lane, longest, self.positions);
        }
        let upload = |numbers: &[i64]| Tensor::from_slice(numbers).to_device(device);
        let ragged = rows.tokens.len() != lanes.len() * longest;
        let (batch, longest) = (lanes.len() as i64, longest as i64);
        let mask = causal_mask(&upload(&rows.padded_positions).view([batch, longest]), rows.seen);
        let last = upload(&rows.last_positions).view([batch, 1]);
        let cached = Cached {
            batch,
            seen: rows.seen,
            slots: upload(&rows.slots),
            cells: upload(&rows.cells),
            pad: ragged.then(|| (upload(&rows.padded_rows), upload(&rows.row_places))),
            // A step of one new token for each needs the mask of the last positions alone.
            last_mask: if longest == 1 { mask.shallow_clone() } else { causal_mask(&last, rows.seen) },
            mask,
            cache: self,
        };
        let rows = Rows {
            tokens: upload(&rows.tokens),
            positions: upload(&rows.positions),
            wanted: upload(&rows.last_rows),
        };
        (rows, cached)
    }
}

/// The numbers of [`KvCache::prepare`] before they are tensors. N rows in all, B lanes, T the longest.
#[derive(Debug, Default)]
struct LaneRows {
    /// `[N]`
    tokens: Vec<i64>,
    /// `[N]`
    positions: Vec<i64>,
    /// Where each row's key and value go, in a cache seen as `[slots * positions]`. `[N]`
    cells: Vec<i64>,
    /// `[B]`
    slots: Vec<i64>,
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
    /// Positions that any lane sees.
    seen: i64,
}

impl LaneRows {
    fn with_capacity(lanes: usize, longest: usize) -> Self {
        Self { padded_rows: Vec::with_capacity(lanes * longest), ..Self::default() }
    }

    fn push(&mut self, lane: &Lane<'_>, longest: usize, capacity: i64) {
        let (first, place) = (self.tokens.len() as i64, self.padded_rows.len() as i64);
        let last = lane.tokens.len() as i64 - 1;
        for (index, &token) in lane.tokens.iter().enumerate() {
            let position = lane.cached + index as i64;
            self.tokens.push(i64::from(token));
            self.positions.push(position);
            self.cells.push(lane.slot * capacity + position);
            self.row_places.push(place + index as i64);
        }
        for index in 0..longest as i64 {
            self.padded_rows.push(first + index.min(last));
            self.padded_positions.push(lane.cached + index.min(last));
        }
        self.slots.push(lane.slot);
        self.last_rows.push(first + last);
        self.last_positions.push(lane.cached + last);
        self.seen = self.seen.max(lane.cached + last + 1);
    }
}

/// Attention of new rows to their slots.
#[derive(Debug)]
pub struct Cached<'a> {
    cache: &'a mut KvCache,
    batch: i64,
    seen: i64,
    slots: Tensor,
    cells: Tensor,
    /// The row at each padded place and the place of each row; `None` where all lanes are equally long.
    pad: Option<(Tensor, Tensor)>,
    mask: Tensor,
    last_mask: Tensor,
}

impl Attend for Cached<'_> {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor, wanted: bool) -> Tensor {
        let shape = [self.batch, self.seen, k.size()[1]];
        let seen = |all: &Tensor, new: &Tensor, scratch: &mut Scratch| {
            let _ = all.view([-1, shape[2]]).index_copy_(0, &self.cells, new);
            all.narrow(1, 0, self.seen).index_select_out(&scratch.shaped(shape), 0, &self.slots)
        };
        let keys = seen(&self.cache.keys[layer], k, &mut self.cache.seen_keys);
        let values = seen(&self.cache.values[layer], v, &mut self.cache.seen_values);
        let heads = self.cache.heads;
        let width = q.size()[1];
        match &self.pad {
            Some((padded_rows, row_places)) if !wanted => {
                let q = q.index_select(0, padded_rows).view([self.batch, -1, width]);
                heads.attend(&q, &keys, &values, Some(&self.mask)).index_select(0, row_places)
            }
            _ => {
                let mask = if wanted { &self.last_mask } else { &self.mask };
                heads.attend(&q.reshape([self.batch, -1, width]), &keys, &values, Some(mask))
            }
        }
    }
}
