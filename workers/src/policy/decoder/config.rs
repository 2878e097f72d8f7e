//! `config.json` as transformers writes and reads it, as far as this decoder can compute it.

use millrace_schemas::submit::ModelSpec;
use serde::{Deserialize, Serialize};

/// The shape of a decoder. Fields that transformers knows and this decoder does not need are ignored; those
/// that would change what it computes are refused by [`Config::read`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// `["LlamaForCausalLM"]`.
    pub architectures: Vec<String>,
    /// `llama`.
    pub model_type: String,
    /// Tokens in the vocabulary.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width of the feed-forward layers.
    pub intermediate_size: i64,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: i64,
    /// Key and value heads; each serves the same number of query heads. As many as query heads if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_key_value_heads: Option<i64>,
    /// Width of a head; `hidden_size / num_attention_heads` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<i64>,
    /// Tokens that a sequence may have.
    pub max_position_embeddings: usize,
    /// Added to the mean square before its root is taken.
    pub rms_norm_eps: f64,
    /// Base of the rotary embedding's wavelengths.
    #[serde(default = "ten_thousand")]
    pub rope_theta: f64,
    /// The output layer is the embedding's.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// `silu`.
    #[serde(default = "silu")]
    pub hidden_act: String,
    /// Biases of the attention's projections; only `false` is computed.
    #[serde(default)]
    pub attention_bias: bool,
    /// Biases of the feed-forward layers; only `false` is computed.
    #[serde(default)]
    pub mlp_bias: bool,
    /// Standard deviation of the initial weights.
    #[serde(default = "point_zero_two")]
    pub initializer_range: f64,
    /// Another wavelength scheme; only none is computed.
    #[serde(default)]
    pub rope_scaling: Option<serde_json::Value>,
    /// How later releases of transformers write `rope_theta` and `rope_scaling`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_parameters: Option<RopeParameters>,
    /// `float32`: what the weights are stored in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torch_dtype: Option<String>,
    /// None: ids of special tokens are the environment's matter.
    #[serde(default)]
    pub bos_token_id: Option<serde_json::Value>,
    /// None, as above.
    #[serde(default)]
    pub eos_token_id: Option<serde_json::Value>,
}

/// `rope_parameters` of `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeParameters {
    /// Only `default` is computed.
    pub rope_type: String,
    /// Base of the wavelengths.
    pub rope_theta: f64,
}

fn ten_thousand() -> f64 {
    10_000.0
}
fn silu() -> String {
    "silu".to_owned()
}
fn point_zero_two() -> f64 {
    0.02
}

/// Why a `config.json` is not one of a decoder that can be computed here.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or a field is missing.
    #[error("failed to read config.json: {0}")]
    Json(#[from] serde_json::Error),
    /// A field asks for what this decoder does not compute.
    #[error("config.json has {field}={value}; {remedy}")]
    Unsupported {
        /// Which.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        remedy: &'static str,
    },
    /// The run's model is no decoder.
    #[error("the model is no decoder")]
    NoDecoder,
}

impl Config {
    /// The shape of a model of the run file. Embedding and output layer are not tied.
    ///
    /// # Errors
    /// The model is no decoder, or its width cannot be divided among its heads.
    pub fn of_spec(spec: &ModelSpec) -> Result<Self, ConfigError> {
        let &ModelSpec::Decoder { vocabulary, layers, width, heads, feed_forward, context, init_std } = spec
        else {
            return Err(ConfigError::NoDecoder);
        };
        let config = Self {
            architectures: vec!["LlamaForCausalLM".to_owned()],
            model_type: "llama".to_owned(),
            vocab_size: i64::from(vocabulary),
            hidden_size: i64::from(width),
            intermediate_size: i64::from(feed_forward),
            num_hidden_layers: layers as usize,
            num_attention_heads: i64::from(heads),
            num_key_value_heads: Some(i64::from(heads)),
            head_dim: Some(i64::from(width) / i64::from(heads.max(1))),
            max_position_embeddings: context as usize,
            rms_norm_eps: 1e-5,
            rope_theta: ten_thousand(),
            tie_word_embeddings: false,
            hidden_act: silu(),
            attention_bias: false,
            mlp_bias: false,
            initializer_range: init_std,
            rope_scaling: None,
            rope_parameters: None,
            torch_dtype: Some("float32".to_owned()),
            bos_token_id: None,
            eos_token_id: None,
        };
        config.check()?;
        Ok(config)
    }

    /// Reads `config.json`.
    ///
    /// # Errors
    /// A field is missing, or asks for what this decoder does not compute.
    pub fn read(json: &[u8]) -> Result<Self, ConfigError> {
        let mut config: Self = serde_json::from_slice(json)?;
        if let Some(rope) = &config.rope_parameters {
            config.rope_theta = rope.rope_theta;
        }
        config.check()?;
        Ok(config)
    }

    /// The bytes of `config.json`, the same for the same shape.
    ///
    /// # Panics
    /// Never: a config holds only what JSON can express.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("a config holds only what JSON can express");
        text.push(b'\n');
        text
    }

    /// Width of a head.
    #[must_use]
    pub fn head_width(&self) -> i64 {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Key and value heads.
    #[must_use]
    pub fn kv_heads(&self) -> i64 {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Width of all query heads together.
    #[must_use]
    pub fn query_width(&self) -> i64 {
        self.num_attention_heads * self.head_width()
    }

    /// Width of all key heads together; the value heads' is the same.
    #[must_use]
    pub fn kv_width(&self) -> i64 {
        self.kv_heads() * self.head_width()
    }

    fn check(&self) -> Result<(), ConfigError> {
        let rope_type = self.rope_parameters.as_ref().map_or("default", |rope| rope.rope_type.as_str());
        let (heads, kv, width) = (self.num_attention_heads, self.kv_heads(), self.head_width());
        let rows: [(bool, &'static str, String, &'static str); 9] = [
            (self.model_type == "llama", "model_type", self.model_type.clone(), "only llama is computed"),
            (self.hidden_act == "silu", "hidden_act", self.hidden_act.clone(), "only silu is computed"),
            (!self.attention_bias, "attention_bias", "true".into(), "only false is computed"),
            (!self.mlp_bias, "mlp_bias", "true".into(), "only false is computed"),
            (self.rope_scaling.is_none(), "rope_scaling", "set".into(), "only null is computed"),
            (rope_type == "default", "rope_type", rope_type.to_owned(), "only default is computed"),
            (
                heads > 0 && kv > 0 && heads % kv == 0,
                "num_key_value_heads",
                kv.to_string(),
                "it must divide num_attention_heads",
            ),
            (width > 0 && width % 2 == 0, "head_dim", width.to_string(), "it must be even and above 0"),
            (
                self.sizes_are_positive(),
                "hidden_size",
                self.hidden_size.to_string(),
                "all sizes must be above 0",
            ),
        ];
        match rows.into_iter().find(|(fits, ..)| !fits) {
            Some((_, field, value, remedy)) => Err(ConfigError::Unsupported { field, value, remedy }),
            None => Ok(()),
        }
    }

    fn sizes_are_positive(&self) -> bool {
        let sizes = [self.vocab_size, self.hidden_size, self.intermediate_size];
        sizes.iter().all(|&size| size > 0)
            && self.num_hidden_layers > 0
            && self.max_position_embeddings > 0
            && self.rms_norm_eps > 0.0
    }
}
