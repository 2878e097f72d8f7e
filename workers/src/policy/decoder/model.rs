//! The decoder's weights and its forward.

use tch::{Device, Kind, Tensor};

use super::init::initial_weights;
use super::layout::LAYER_PARTS;
use super::rope::{Angles, Rope};
use super::{Attend, Config, Layout};

/// A decoder on a device. All weights are views of one flat buffer.
#[derive(Debug)]
pub struct Decoder {
    config: Config,
    layout: Layout,
    /// `[layout.len]`.
    flat: Tensor,
    rope: Rope,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    /// `None` where the embedding serves.
    head: Option<Tensor>,
}

/// One layer's weights; matrices that are applied to the same input are one.
#[derive(Debug)]
struct Layer {
    attention_norm: Tensor,
    /// `[query_width + 2 kv_width, width]`.
    qkv: Tensor,
    output: Tensor,
    feed_forward_norm: Tensor,
    /// `[2 inner, width]`.
    gate_up: Tensor,
    down: Tensor,
}

/// The rows of one forward.
#[derive(Debug)]
pub struct Rows {
    /// `[N]`.
    pub tokens: Tensor,
    /// Place of each token in its sequence. `[N]`
    pub positions: Tensor,
    /// Rows whose logits are wanted. `[M]`
    pub wanted: Tensor,
}

/// What all layers of one forward have in common.
#[derive(Debug)]
pub struct Shared {
    angles: Angles,
    wanted_angles: Angles,
    wanted: Tensor,
}

impl Decoder {
    /// A decoder from flat weights `[layout.len]`, as [`super::read_tensors`] gives them; they are moved to
    /// `device`. With `train`, its weights take gradients.
    #[must_use]
    pub fn new(config: Config, flat: &Tensor, device: Device, train: bool) -> Self {
        let layout = Layout::of(&config);
        let flat = flat.to_device(device).contiguous();
        let views = Views { layout: &layout, flat: &flat, train };
        let layers = (0..config.num_hidden_layers)
            .map(|layer| {
                let at = 1 + layer * LAYER_PARTS;
                Layer {
                    attention_norm: views.join(at, 1),
                    qkv: views.join(at + 1, 3),
                    output: views.join(at + 4, 1),
                    feed_forward_norm: views.join(at + 5, 1),
                    gate_up: views.join(at + 6, 2),
                    down: views.join(at + 8, 1),
                }
            })
            .collect();
        let after = 1 + config.num_hidden_layers * LAYER_PARTS;
        Self {
            rope: Rope::new(&config, device),
            embedding: views.join(0, 1),
            layers,
            norm: views.join(after, 1),
            head: (!config.tie_word_embeddings).then(|| views.join(after + 1, 1)),
            config,
            layout,
            flat,
        }
    }

    /// Initial weights `[layout.len]` from a seed, on the CPU.
    pub fn initial(config: &Config, seed: u64) -> Tensor {
        let layout = Layout::of(config);
        Tensor::from_slice(&initial_weights(&layout, seed, config.initializer_range))
    }

    /// The shape.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Where each parameter is in [`Self::flat`].
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// All weights, `[layout.len]`. Writing to it changes the decoder.
    pub const fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// The weights that take gradients, in the order of the flat buffer and without gaps.
    #[must_use]
    pub fn leaves(&self) -> Vec<&Tensor> {
        let mut leaves = vec![&self.embedding];
        for layer in &self.layers {
            leaves.extend([
                &layer.attention_norm,
                &layer.qkv,
                &layer.output,
                &layer.feed_forward_norm,
                &layer.gate_up,
                &layer.down,
            ]);
        }
        leaves.push(&self.norm);
        leaves.extend(&self.head);
        leaves
    }

    /// Logits `[M, vocabulary]` of the wanted rows.
    pub fn forward(&self, rows: &Rows, attend: &mut impl Attend) -> Tensor {
        let shared = self.shared(rows);
        let mut x = self.embed(rows);
        for index in 0..self.layers.len() {
            x = self.layer(index, &x, &shared, attend);
        }
        self.finish(&x).linear(self.head(), None::<Tensor>)
    }

    /// What all layers of a forward over `rows` have in common.
    pub fn shared(&self, rows: &Rows) -> Shared {
        let angles = self.rope.at(&rows.positions);
        Shared { wanted_angles: angles.select(&rows.wanted), angles, wanted: rows.wanted.shallow_clone() }
    }

    /// What the first layer is given: `[N, width]`.
    pub fn embed(&self, rows: &Rows) -> Tensor {
        Tensor::embedding(&self.embedding, &rows.tokens, -1, false, false)
    }

    /// Layers.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.layers.len()
    }

    /// One layer: from `[N, width]` to the same. The last computes only the wanted rows, besides the keys and
    /// values of all, and gives `[M, width]`.
    pub fn layer(&self, index: usize, x: &Tensor, shared: &Shared, attend: &mut impl Attend) -> Tensor {
        let layer = &self.layers[index];
        let (query, kv) = (self.config.query_width(), self.config.kv_width());
        let h = self.normalise(x, &layer.attention_norm);
        if index + 1 < self.layers.len() {
            let qkv = h.linear(&layer.qkv, None::<Tensor>);
            let [qk, v] = split(&qkv, [query + kv, kv]);
            let [q, k] = split(&shared.angles.rotate(&qk), [query, kv]);
            let attended = attend.attend(index, &q, &k, &v, false);
            self.rest(x, &attended, layer)
        } else {
            let [for_q, for_kv] = split_rows(&layer.qkv, [query, 2 * kv]);
            let [k, v] = split(&h.linear(&for_kv, None::<Tensor>), [kv, kv]);
            let (x, h) = (x.index_select(0, &shared.wanted), h.index_select(0, &shared.wanted));
            let q = shared.wanted_angles.rotate(&h.linear(&for_q, None::<Tensor>));
            let attended = attend.attend(index, &q, &shared.angles.rotate(&k), &v, true);
            self.rest(&x, &attended, layer)
        }
    }

    /// What comes after a layer's attention.
    fn rest(&self, x: &Tensor, attended: &Tensor, layer: &Layer) -> Tensor {
        let x = x + attended.linear(&layer.output, None::<Tensor>);
        let forward = self.feed_forward(&x, layer);
        x + forward
    }

    /// What the head is given: the last layer's rows, normalised.
    pub fn finish(&self, x: &Tensor) -> Tensor {
        self.normalise(x, &self.norm)
    }

    /// `[vocabulary, width]`: what makes logits of [`Self::finish`]'s rows. The embedding where they are tied.
    #[must_use]
    pub fn head(&self) -> &Tensor {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// SwiGLU: `down(silu(gate(x)) * up(x))`.
    fn feed_forward(&self, x: &Tensor, layer: &Layer) -> Tensor {
        let inner = self.config.intermediate_size;
        let both = self.normalise(x, &layer.feed_forward_norm).linear(&layer.gate_up, None::<Tensor>);
        let [gate, up] = split(&both, [inner, inner]);
        let gated = gate.silu() * up;
        gated.linear(&layer.down, None::<Tensor>)
    }

    /// RMSNorm: `x / √(mean(x²) + ε) * weight`.
    fn normalise(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        let scale =
            (x.square().mean_dim([-1_i64].as_slice(), true, Kind::Float) + self.config.rms_norm_eps).rsqrt();
        x * scale * weight
    }
}

/// Cuts `[rows, columns]` by columns. The gradient of a cut is one join; that of two views is two matrices of
/// zeros and their sum.
fn split(x: &Tensor, columns: [i64; 2]) -> [Tensor; 2] {
    halves(x.split_with_sizes(columns.as_slice(), 1))
}

/// As [`split`], by rows.
fn split_rows(x: &Tensor, rows: [i64; 2]) -> [Tensor; 2] {
    halves(x.split_with_sizes(rows.as_slice(), 0))
}

fn halves(parts: Vec<Tensor>) -> [Tensor; 2] {
    parts.try_into().expect("two sizes give two parts")
}

/// Makes views of the flat buffer.
struct Views<'a> {
    layout: &'a Layout,
    flat: &'a Tensor,
    train: bool,
}

impl Views<'_> {
    /// `count` neighbouring parts from `first` as one tensor: their rows one after another.
    fn join(&self, first: usize, count: usize) -> Tensor {
        let parts = &self.layout.parts[first..first + count];
        let mut shape = parts[0].shape.clone();
        shape[0] = parts.iter().map(|part| part.shape[0]).sum();
        let len = parts.iter().map(super::Part::len).sum();
        let view = self.flat.narrow(0, parts[0].offset, len).view(shape.as_slice()).detach();
        view.set_requires_grad(self.train)
    }
}
