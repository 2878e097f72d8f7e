//! Where each parameter lies in one flat buffer. All weights of a decoder are views of that buffer, so that
//! the optimiser, the gradient's norm and an all-reduce are single passes over it.

use super::Config;

/// One tensor of `model.safetensors`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The Hugging Face name.
    pub name: String,
    /// Its axes: `[rows, columns]`, or `[width]` of a norm.
    pub shape: Vec<i64>,
    /// Where it begins in the flat buffer, in elements.
    pub offset: i64,
}

impl Part {
    /// Its elements.
    #[must_use]
    pub fn len(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Whether it has no element; no parameter of a decoder is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is a matrix: norms start at one and are not decayed.
    #[must_use]
    pub fn is_matrix(&self) -> bool {
        self.shape.len() == 2
    }
}

/// All parameters in the order of the flat buffer. Query, key and value of a layer lie side by side, as do
/// gate and up, so that each pair or triple is also one matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The parameters.
    pub parts: Vec<Part>,
    /// Elements of the buffer.
    pub len: i64,
}

/// Parameters of one layer.
pub(super) const LAYER_PARTS: usize = 9;

impl Layout {
    /// The layout of a decoder of this shape.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let mut layout = Self { parts: Vec::new(), len: 0 };
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let (query, kv) = (config.query_width(), config.kv_width());
        layout.push("model.embed_tokens.weight".into(), &[config.vocab_size, width]);
        for layer in 0..config.num_hidden_layers {
            let mut add = |name: &str, shape: &[i64]| {
                layout.push(format!("model.layers.{layer}.{name}.weight"), shape);
            };
            add("input_layernorm", &[width]);
            add("self_attn.q_proj", &[query, width]);
            add("self_attn.k_proj", &[kv, width]);
            add("self_attn.v_proj", &[kv, width]);
            add("self_attn.o_proj", &[width, query]);
            add("post_attention_layernorm", &[width]);
            add("mlp.gate_proj", &[inner, width]);
            add("mlp.up_proj", &[inner, width]);
            add("mlp.down_proj", &[width, inner]);
        }
        layout.push("model.norm.weight".into(), &[width]);
        if !config.tie_word_embeddings {
            layout.push("lm_head.weight".into(), &[config.vocab_size, width]);
        }
        layout
    }

    /// Elements of each tensor that takes gradients, as a decoder joins the parts, in order.
    #[must_use]
    pub fn leaf_lengths(&self) -> Vec<i64> {
        /// Parts that each of a layer's tensors is joined from.
        const JOINED: [usize; 6] = [1, 3, 1, 1, 2, 1];
        let layers = (self.parts.len() - 1) / LAYER_PARTS;
        let after = self.parts.len() - 1 - layers * LAYER_PARTS;
        let counts = std::iter::once(1).chain(JOINED.repeat(layers)).chain(std::iter::repeat_n(1, after));
        let mut parts = self.parts.iter().map(Part::len);
        counts.map(|count| parts.by_ref().take(count).sum()).collect()
    }

    fn push(&mut self, name: String, shape: &[i64]) {
        let part = Part { name, shape: shape.to_vec(), offset: self.len };
        self.len += part.len();
        self.parts.push(part);
    }
}
