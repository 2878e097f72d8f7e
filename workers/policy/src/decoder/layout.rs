//! Where each parameter lies in one flat buffer. All weights of a decoder are views of that buffer,
//! so that the optimiser, the gradient's norm and an all-reduce are single passes over it.

use super::Config;

/// One tensor of `model.safetensors`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The Hugging Face name.
    pub name: String,
    /// Its axes: `[rows, columns]`, or `[width]` of a norm or a bias.
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

    /// Whether it is a matrix: only matrices are decayed.
    #[must_use]
    pub fn is_matrix(&self) -> bool {
        self.shape.len() == 2
    }

    /// Whether it is a bias, which starts at zero; norms start at one.
    #[must_use]
    pub fn is_bias(&self) -> bool {
        self.name.ends_with(".bias")
    }
}

/// All parameters in the order of the flat buffer. Query, key and value of a layer lie side by
/// side, as do gate and up, and so do their biases, so that each pair or triple is also one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The parameters.
    pub parts: Vec<Part>,
    /// Elements of the buffer.
    pub len: i64,
    /// Parts that each of the decoder's tensors is joined from, in order.
    joined: Vec<usize>,
}

impl Layout {
    /// The layout of a decoder of this shape.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let mut layout = Self { parts: Vec::new(), len: 0, joined: Vec::new() };
        let width = config.hidden_size;
        layout.leaf("model.", &[("embed_tokens.weight", &[config.vocab_size, width])]);
        for layer in 0..config.num_hidden_layers {
            layout.attention(config, &format!("model.layers.{layer}."));
            layout.feed_forward(config, &format!("model.layers.{layer}."));
        }
        layout.leaf("model.", &[("norm.weight", &[width])]);
        if !config.tie_word_embeddings {
            layout.leaf("", &[("lm_head.weight", &[config.vocab_size, width])]);
        }
        if config.critic {
            layout.critic(width);
        }
        layout
    }

    /// The critic's alone, as its file has it. In [`Self::of`] it comes after all others.
    #[must_use]
    pub fn of_critic(config: &Config) -> Self {
        let mut layout = Self { parts: Vec::new(), len: 0, joined: Vec::new() };
        layout.critic(config.hidden_size);
        layout
    }

    /// Elements of each tensor that takes gradients, as a decoder joins the parts, in order.
    #[must_use]
    pub fn leaf_lengths(&self) -> Vec<i64> {
        self.leaves().map(|parts| parts.iter().map(Part::len).sum()).collect()
    }

    /// The parts of each of the decoder's tensors, in order.
    pub fn leaves(&self) -> impl Iterator<Item = &[Part]> {
        let mut rest = self.parts.as_slice();
        self.joined.iter().map(move |&count| {
            let (leaf, after) = rest.split_at(count);
            rest = after;
            leaf
        })
    }

    /// One row, named as where transformers gives tokens a score.
    fn critic(&mut self, width: i64) {
        self.leaf("", &[("score.weight", &[1, width])]);
    }

    fn attention(&mut self, config: &Config, layer: &str) {
        let (width, head) = (config.hidden_size, config.head_width());
        let (query, kv) = (config.query_width(), config.kv_width());
        self.leaf(layer, &[("input_layernorm.weight", &[width])]);
        self.leaf(
            layer,
            &[
                ("self_attn.q_proj.weight", &[query, width]),
                ("self_attn.k_proj.weight", &[kv, width]),
                ("self_attn.v_proj.weight", &[kv, width]),
            ],
        );
        if config.biases.qkv {
            self.leaf(
                layer,
                &[
                    ("self_attn.q_proj.bias", &[query]),
                    ("self_attn.k_proj.bias", &[kv]),
                    ("self_attn.v_proj.bias", &[kv]),
                ],
            );
        }
        if config.normalises_heads() {
            self.leaf(layer, &[("self_attn.q_norm.weight", &[head])]);
            self.leaf(layer, &[("self_attn.k_norm.weight", &[head])]);
        }
        self.leaf(layer, &[("self_attn.o_proj.weight", &[width, query])]);
        if config.biases.output {
            self.leaf(layer, &[("self_attn.o_proj.bias", &[width])]);
        }
    }

    fn feed_forward(&mut self, config: &Config, layer: &str) {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        self.leaf(layer, &[("post_attention_layernorm.weight", &[width])]);
        self.leaf(
            layer,
            &[("mlp.gate_proj.weight", &[inner, width]), ("mlp.up_proj.weight", &[inner, width])],
        );
        if config.biases.feed_forward {
            self.leaf(layer, &[("mlp.gate_proj.bias", &[inner]), ("mlp.up_proj.bias", &[inner])]);
        }
        self.leaf(layer, &[("mlp.down_proj.weight", &[width, inner])]);
        if config.biases.feed_forward {
            self.leaf(layer, &[("mlp.down_proj.bias", &[width])]);
        }
    }

    /// Adds one tensor of the decoder, joined from these parts.
    fn leaf(&mut self, prefix: &str, parts: &[(&str, &[i64])]) {
        for (name, shape) in parts {
            let part = Part { name: format!("{prefix}{name}"), shape: shape.to_vec(), offset: self.len };
            self.len += part.len();
            self.parts.push(part);
        }
        self.joined.push(parts.len());
    }
}
