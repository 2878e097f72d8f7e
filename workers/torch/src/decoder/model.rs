//! The decoder's weights and its forward.

use millrace_kernels::{self as kernels, Turn};
use tch::{Device, Kind, Tensor};

use super::init::initial_weights;
use super::linear::{Matrix, linear, linear_onto};
use super::one_pass;
use super::rope::{Angles, Rope};
use super::{Attend, Config, Layout, Part, kind};
use crate::gpu_kernels;

/// A decoder on a device. All weights are views of one flat buffer.
#[derive(Debug)]
pub struct Decoder {
    pub(super) config: Config,
    pub(super) layout: Layout,
    /// `[layout.len]`.
    pub(super) flat: Tensor,
    pub(super) rope: Rope,
    pub(super) embedding: Tensor,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Tensor,
    /// The embedding where they are tied.
    pub(super) head: Matrix,
    critic: Option<Tensor>,
    between: Between,
    /// Made by [`Self::for_sampling`].
    samples: bool,
    /// Made by [`Self::hollow`].
    pub(super) hollow: bool,
}

/// How it computes what is between the products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    /// By libtorch's operators.
    Plain,
    /// By kernels of a CPU, in one pass each and without gradients.
    Fused,
    /// In one pass each, with gradients: see [`one_pass`].
    OnePass,
}

/// One layer's weights; matrices that are applied to the same input are one.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attention_norm: Tensor,
    /// `[query_width + 2 kv_width, width]`.
    pub(super) qkv: Matrix,
    /// `[query_width + 2 kv_width]`.
    pub(super) qkv_bias: Option<Tensor>,
    /// Norms of each head's queries and of its keys. `[head_width]`
    pub(super) head_norms: Option<[Tensor; 2]>,
    pub(super) output: Matrix,
    pub(super) output_bias: Option<Tensor>,
    pub(super) feed_forward_norm: Tensor,
    /// `[2 inner, width]`.
    pub(super) gate_up: Matrix,
    /// `[2 inner]`.
    pub(super) gate_up_bias: Option<Tensor>,
    pub(super) down: Matrix,
    pub(super) down_bias: Option<Tensor>,
}

impl Layer {
    /// Takes a layer's tensors, in the order of the layout.
    fn of(config: &Config, views: &mut Views<'_>) -> Self {
        let biases = config.biases;
        Self {
            attention_norm: views.next(),
            qkv: Matrix::of(views.next()),
            qkv_bias: biases.qkv.then(|| views.next()),
            head_norms: config.normalises_heads().then(|| [views.next(), views.next()]),
            output: Matrix::of(views.next()),
            output_bias: biases.output.then(|| views.next()),
            feed_forward_norm: views.next(),
            gate_up: Matrix::of(views.next()),
            gate_up_bias: biases.feed_forward.then(|| views.next()),
            down: Matrix::of(views.next()),
            down_bias: biases.feed_forward.then(|| views.next()),
        }
    }

    fn matrices_mut(&mut self) -> [&mut Matrix; 4] {
        [&mut self.qkv, &mut self.output, &mut self.gate_up, &mut self.down]
    }

    /// Norms and biases.
    fn vectors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        let biases = [&mut self.qkv_bias, &mut self.output_bias, &mut self.gate_up_bias, &mut self.down_bias];
        [&mut self.attention_norm, &mut self.feed_forward_norm]
            .into_iter()
            .chain(self.head_norms.iter_mut().flatten())
            .chain(biases.into_iter().flatten())
    }

    /// Its tensors, in the order of the layout.
    pub(super) fn leaves(&self) -> impl Iterator<Item = &Tensor> {
        [&self.attention_norm, self.qkv.plain()]
            .into_iter()
            .chain(&self.qkv_bias)
            .chain(self.head_norms.iter().flatten())
            .chain([self.output.plain()])
            .chain(&self.output_bias)
            .chain([&self.feed_forward_norm, self.gate_up.plain()])
            .chain(&self.gate_up_bias)
            .chain([self.down.plain()])
            .chain(&self.down_bias)
    }
}

/// The rows of one forward.
#[derive(Debug)]
pub struct Rows {
    /// `[N]`.
    pub tokens: Tensor,
    /// Place of each token in its sequence. `[N]`
    pub positions: Tensor,
    /// Rows whose logits the forward returns. `[M]`
    pub logit_rows: Tensor,
}

/// What all layers of one forward have in common.
#[derive(Debug)]
pub struct LayerContext {
    angles: Angles,
    logit_angles: Angles,
    logit_rows: Tensor,
}

impl Decoder {
    /// A decoder from flat weights `[layout.len]`, as [`super::read_tensors`] gives them; they are
    /// moved to `device`, and rounded to what the config computes in. With `train`, they take
    /// gradients.
    #[must_use]
    pub fn new(config: Config, flat: &Tensor, device: Device, train: bool) -> Self {
        Self::plain(config, flat, device, train).for_training()
    }

    /// The same, with one pass of each kind where it computes fast with them.
    pub(super) fn for_training(self) -> Self {
        let one_pass = one_pass::serves(&self.config) && gpu_kernels::train(self.device());
        Self { between: if one_pass { Between::OnePass } else { Between::Plain }, ..self }
    }

    /// The same for sampling, which is all that it serves: see [`Self::packed`].
    #[must_use]
    pub fn for_sampling(config: Config, flat: &Tensor, device: Device) -> Self {
        Self { samples: true, ..Self::plain(config, flat, device, false) }.packed()
    }

    fn plain(config: Config, flat: &Tensor, device: Device, train: bool) -> Self {
        let flat = flat.to_device(device).to_kind(kind(&config)).contiguous();
        Self::of(config, &flat, train)
    }

    /// A decoder whose weights are views of `flat` `[layout.len]`.
    pub(super) fn of(config: Config, flat: &Tensor, train: bool) -> Self {
        let layout = Layout::of(&config);
        let leaves: Vec<&[Part]> = layout.leaves().collect();
        let mut views = Views { leaves: leaves.into_iter(), flat, train };
        let embedding = views.next();
        let layers = (0..config.num_hidden_layers).map(|_| Layer::of(&config, &mut views)).collect();
        let norm = views.next();
        let head = if config.tie_word_embeddings { embedding.shallow_clone() } else { views.next() };
        Self {
            rope: Rope::new(&config, flat.device()),
            embedding,
            layers,
            norm,
            head: Matrix::of(head),
            critic: config.critic.then(|| views.next()),
            between: Between::Plain,
            samples: false,
            hollow: false,
            config,
            layout,
            flat: flat.shallow_clone(),
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

    /// All weights, `[layout.len]`. Writing to it changes the decoder, unless that is
    /// [`Self::hollow`].
    pub const fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// Where it computes.
    #[must_use]
    pub fn device(&self) -> Device {
        self.norm.device()
    }

    /// The weights that take gradients, in the order of the flat buffer and without gaps.
    #[must_use]
    pub fn leaves(&self) -> Vec<&Tensor> {
        let mut leaves = vec![&self.embedding];
        for layer in &self.layers {
            leaves.extend(layer.leaves());
        }
        leaves.push(&self.norm);
        leaves.extend((!self.config.tie_word_embeddings).then(|| self.head()));
        leaves.extend(&self.critic);
        leaves
    }

    /// Logits `[M, vocabulary]` of `logit_rows`.
    pub fn forward(&self, rows: &Rows, attend: &mut impl Attend) -> Tensor {
        let context = self.layer_context(rows);
        let mut x = self.embed(rows);
        for index in 0..self.layers.len() {
            x = self.layer(index, &x, &context, attend);
        }
        linear(&self.finish(&x), &self.head, None)
    }

    /// What all layers of a forward over `rows` have in common.
    pub fn layer_context(&self, rows: &Rows) -> LayerContext {
        let angles = self.rope.at(&rows.positions).to_kind(self.embedding.kind());
        LayerContext {
            logit_angles: angles.select(&rows.logit_rows),
            angles,
            logit_rows: rows.logit_rows.shallow_clone(),
        }
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

    /// One layer: from `[N, width]` to the same. The last computes only the rows with logits,
    /// besides the keys and values of all.
    pub fn layer(
        &self,
        index: usize,
        x: &Tensor,
        context: &LayerContext,
        attend: &mut impl Attend,
    ) -> Tensor {
        let layer = &self.layers[index];
        let (query, kv) = (self.config.query_width(), self.config.kv_width());
        let h = self.normalise(x, &layer.attention_norm);
        let last = index + 1 == self.layers.len();
        if !last || self.between == Between::Fused {
            let [q, k, v] = self.qkv(&h, layer, &context.angles);
            let select =
                |x: &Tensor| if last { x.index_select(0, &context.logit_rows) } else { x.shallow_clone() };
            let attended = attend.attend(index, &select(&q), &k, &v, last);
            self.rest(&select(x), &attended, layer)
        } else {
            let [for_q, for_kv] = split_rows(layer.qkv.plain(), [query, 2 * kv]);
            let [bias_q, bias_kv] = match &layer.qkv_bias {
                Some(bias) => split_rows(bias, [query, 2 * kv]).map(Some),
                None => [None, None],
            };
            let [k, v] = split(&h.linear(&for_kv, bias_kv), [kv, kv]);
            let k = self.turned(&k, layer, 1, &context.angles);
            let (x, h) = (x.index_select(0, &context.logit_rows), h.index_select(0, &context.logit_rows));
            let q = self.turned(&h.linear(&for_q, bias_q), layer, 0, &context.logit_angles);
            let attended = attend.attend(index, &q, &k, &v, true);
            self.rest(&x, &attended, layer)
        }
    }

    /// A layer's queries, keys and values of normalised rows `h`; the first two rotated. Their rows
    /// may lie apart.
    fn qkv(&self, h: &Tensor, layer: &Layer, angles: &Angles) -> [Tensor; 3] {
        let (query, kv) = (self.config.query_width(), self.config.kv_width());
        let qkv = linear(h, &layer.qkv, layer.qkv_bias.as_ref());
        let [qk, v] = split(&qkv, [query + kv, kv]);
        if self.between == Between::Fused {
            let (cos, sin) = angles.as_tensors();
            let (norms, epsilon) = (layer.head_norms.as_ref(), self.config.rms_norm_eps);
            kernels::turn_heads(
                &qk,
                Turn { queries: self.config.num_attention_heads, norms, epsilon, cos, sin },
            );
            let [q, k] = split(&qk, [query, kv]);
            return [q, k, v];
        }
        if layer.head_norms.is_none() && self.between == Between::Plain {
            let [q, k] = split(&angles.rotate(&qk), [query, kv]);
            return [q, k, v];
        }
        let [q, k] = split(&qk, [query, kv]);
        [self.turned(&q, layer, 0, angles), self.turned(&k, layer, 1, angles), v]
    }

    /// Heads normalised by one of the layer's norms, if it has any, and rotated.
    fn turned(&self, heads: &Tensor, layer: &Layer, which: usize, angles: &Angles) -> Tensor {
        if self.between == Between::OnePass {
            let norm = layer.head_norms.as_ref().map(|norms| (&norms[which], self.config.rms_norm_eps));
            return one_pass::turn(heads, norm, angles);
        }
        angles.rotate(&self.normalise_heads(heads, layer, which))
    }

    /// What comes after a layer's attention.
    fn rest(&self, x: &Tensor, attended: &Tensor, layer: &Layer) -> Tensor {
        let x = linear_onto(x, attended, &layer.output, layer.output_bias.as_ref());
        let gated = self.gated(&x, layer);
        linear_onto(&x, &gated, &layer.down, layer.down_bias.as_ref())
    }

    /// What the head is given: the last layer's rows, normalised.
    pub fn finish(&self, x: &Tensor) -> Tensor {
        self.normalise(x, &self.norm)
    }

    /// `[vocabulary, width]`: what makes logits of [`Self::finish`]'s rows. The embedding where
    /// they are tied.
    pub fn head(&self) -> &Tensor {
        self.head.plain()
    }

    /// `[1, width]`: what makes a value of [`Self::finish`]'s rows, where there is a critic.
    pub const fn critic(&self) -> Option<&Tensor> {
        self.critic.as_ref()
    }

    /// Replaces all weights by `flat` `[layout.len]`, in place: what was captured of this decoder computes with them.
    pub fn overwrite(&self, flat: &Tensor) {
        tch::no_grad(|| self.flat.shallow_clone().copy_(flat));
    }

    /// The same with one pass of each kind or without, wherever it computes: for tests, which compare the two.
    ///
    /// # Panics
    /// The config is none that it serves.
    #[must_use]
    pub fn with_one_pass(self, one_pass: bool) -> Self {
        assert!(!one_pass || one_pass::serves(&self.config), "heads or inner rows of an odd width, or f32");
        Self { between: if one_pass { Between::OnePass } else { Between::Plain }, ..self }
    }

    /// Moves the weights to another device. On the same one nothing changes.
    pub fn to_device(&mut self, device: Device) {
        if self.device() != device {
            let (config, flat) = (self.config.clone(), self.flat.detach());
            *self = if self.samples {
                Self { samples: true, ..Self::plain(config, &flat, device, false) }
            } else if self.hollow {
                Self::hollow(config, &flat, device)
            } else {
                Self::new(config, &flat, device, self.embedding.requires_grad())
            };
        }
    }

    /// Makes the decoder as fast as it can be on a CPU for sampling, which is all that it serves
    /// from then on. Where the matrices gain by it they are laid out anew, and [`Self::flat`] is
    /// let go of if nothing reads it any more.
    #[must_use]
    pub fn packed(mut self) -> Self {
        self.between = if self.flat.device() == Device::Cpu { Between::Fused } else { Between::Plain };
        if !self.layers.iter().all(|layer| layer.qkv.is_worth_packing()) {
            return self;
        }
        self.head.pack();
        for layer in &mut self.layers {
            layer.matrices_mut().into_iter().for_each(Matrix::pack);
        }
        if self.flat.kind() == Kind::Float {
            let vectors = self.layers.iter_mut().flat_map(Layer::vectors_mut);
            for kept in vectors.chain([&mut self.embedding, &mut self.norm]) {
                *kept = kept.copy();
            }
            self.flat = self.flat.narrow(0, 0, 0).copy();
        }
        self
    }

    /// SwiGLU's inner rows: `silu(gate(x)) * up(x)`.
    fn gated(&self, x: &Tensor, layer: &Layer) -> Tensor {
        let inner = self.config.intermediate_size;
        let h = self.normalise(x, &layer.feed_forward_norm);
        let both = linear(&h, &layer.gate_up, layer.gate_up_bias.as_ref());
        if self.between == Between::Fused {
            return kernels::gate(&both);
        }
        if self.between == Between::OnePass {
            return kernels::training::gate(&both);
        }
        let [gate, up] = split(&both, [inner, inner]);
        gate.silu() * up
    }

    /// Normalises each head of `x` `[N, heads * head_width]` by one of the layer's norms, if it has
    /// any.
    fn normalise_heads(&self, x: &Tensor, layer: &Layer, which: usize) -> Tensor {
        let Some(norms) = &layer.head_norms else { return x.shallow_clone() };
        let heads = x.view([x.size()[0], -1, self.config.head_width()]);
        self.normalise(&heads, &norms[which]).view_as(x)
    }

    /// RMSNorm: `x / √(mean(x²) + ε) * weight`.
    fn normalise(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        if self.between == Between::Fused {
            return kernels::normalise(x, weight, self.config.rms_norm_eps);
        }
        if self.between == Between::OnePass {
            return one_pass::normalise(x, weight, self.config.rms_norm_eps);
        }
        // In f32 whatever the weights are in, as transformers does.
        let wide = x.to_kind(Kind::Float);
        let mean = wide.square().mean_dim([-1_i64].as_slice(), true, Kind::Float);
        let scale = (mean + self.config.rms_norm_eps).rsqrt();
        (wide * scale).to_kind(x.kind()) * weight
    }
}

/// Cuts `[rows, columns]` by columns. The gradient of a cut is one join; that of two views is two
/// matrices of zeros and their sum.
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

/// Makes views of the flat buffer, one for each of the decoder's tensors, in order.
struct Views<'a> {
    leaves: std::vec::IntoIter<&'a [Part]>,
    flat: &'a Tensor,
    train: bool,
}

impl Views<'_> {
    /// The next tensor: the rows of its parts one after another.
    fn next(&mut self) -> Tensor {
        let parts = self.leaves.next().expect("layout and decoder have the same tensors");
        view(parts, self.flat, 0).set_requires_grad(self.train)
    }
}

/// The view of a tensor's parts in a buffer that begins at `from` of the flat one.
pub(super) fn view(parts: &[Part], buffer: &Tensor, from: i64) -> Tensor {
    let mut shape = parts[0].shape.clone();
    shape[0] = parts.iter().map(|part| part.shape[0]).sum();
    let len = parts.iter().map(Part::len).sum();
    buffer.narrow(0, parts[0].offset - from, len).view(shape.as_slice()).detach()
}
