//! `config.json` as transformers writes and reads it, for the shapes that this decoder can compute.

use millrace_schemas::limits::MAX_PARAMETERS;
use millrace_schemas::submit::{ModelSpec, Precision};
use serde::Deserialize;
use serde_json::json;

use super::architecture::{Architecture, Biases};
use super::rope_parameters::{RopeParameters, RopeScaling};
use read::{ConfigFields, Named};

mod read;

/// The key in `config.json` for the tokens that a run's rollouts may have; transformers ignores it.
pub const CONTEXT_KEY: &str = "millrace_context";

/// The shape of a decoder, and the other settings of its forward.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Decides the biases and norms of heads.
    pub architecture: Architecture,
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
    /// Key and value heads; each serves the same number of query heads.
    pub num_key_value_heads: i64,
    /// Width of a head.
    pub head_dim: i64,
    /// Tokens of a sequence at most: the model's, or fewer if the run sets fewer.
    pub context: usize,
    /// Tokens that the model was made for.
    pub max_position_embeddings: usize,
    /// Added to the mean square before its root is taken.
    pub rms_norm_eps: f64,
    /// Wavelengths of the rotary embedding.
    pub rope: RopeParameters,
    /// The output layer is the embedding's.
    pub tie_word_embeddings: bool,
    /// Biases of the projections.
    pub biases: Biases,
    /// Standard deviation of the initial weights.
    pub initializer_range: f64,
    /// What the weights are kept in and the forward is computed in.
    pub precision: Precision,
    /// There is a critic: one more row of the head, which only training computes and which is not
    /// in `config.json`.
    pub critic: bool,
}

/// Why a `config.json` is not one of a decoder that can be computed here.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or a field is missing or no such value.
    #[error("failed to read config.json: field={field}: {reason}")]
    Json {
        /// Path to the field, `.` for the whole.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A field asks for what this decoder does not compute.
    #[error("config.json has {field}={value}; {remedy}")]
    Unsupported {
        /// The field.
        field: &'static str,
        /// The value that it has.
        value: String,
        /// What would be accepted.
        remedy: String,
    },
    /// The run's model is no decoder made from scratch.
    #[error("the model is no decoder")]
    NoDecoder,
}

impl From<serde_path_to_error::Error<serde_json::Error>> for ConfigError {
    fn from(error: serde_path_to_error::Error<serde_json::Error>) -> Self {
        Self::Json { field: error.path().to_string(), reason: error.inner().to_string() }
    }
}

impl ConfigError {
    /// Reads JSON; what is wrong with it is named by its field.
    fn reading<'de, T: Deserialize<'de>>(json: &'de [u8]) -> Result<T, Self> {
        Ok(serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(json))?)
    }

    fn unsupported(field: &'static str, value: &(impl ToString + ?Sized), remedy: impl Into<String>) -> Self {
        Self::Unsupported { field, value: value.to_string(), remedy: remedy.into() }
    }
}

impl Config {
    /// The shape of a model that a run file describes. Embedding and output layer are not tied.
    ///
    /// # Errors
    /// It is no decoder, or cannot be computed.
    pub fn of_spec(spec: &ModelSpec) -> Result<Self, ConfigError> {
        let &ModelSpec::Decoder { vocabulary, layers, width, heads, feed_forward, context, init_std } = spec
        else {
            return Err(ConfigError::NoDecoder);
        };
        let config = Self {
            architecture: Architecture::Llama,
            vocab_size: i64::from(vocabulary),
            hidden_size: i64::from(width),
            intermediate_size: i64::from(feed_forward),
            num_hidden_layers: layers as usize,
            num_attention_heads: i64::from(heads),
            num_key_value_heads: i64::from(heads),
            head_dim: i64::from(width) / i64::from(heads.max(1)),
            context: context as usize,
            max_position_embeddings: context as usize,
            rms_norm_eps: 1e-5,
            rope: RopeParameters { theta: 10_000.0, scaling: RopeScaling::Default },
            tie_word_embeddings: false,
            biases: Biases { qkv: false, output: false, feed_forward: false },
            initializer_range: init_std,
            precision: Precision::F32,
            critic: false,
        };
        config.check()?;
        Ok(config)
    }

    /// Reads `config.json`.
    ///
    /// # Errors
    /// A field is missing, or asks for what this decoder does not compute.
    pub fn read(json: &[u8]) -> Result<Self, ConfigError> {
        // First, since the fields of another architecture have other names.
        let architecture = ConfigError::reading::<Named>(json)?.architecture()?;
        let fields: ConfigFields = ConfigError::reading(json)?;
        let config = fields.config(architecture)?;
        config.check()?;
        fields.check_window(&config)?;
        Ok(config)
    }

    /// The bytes of `config.json` for [`Self::of_spec`]: the same for the same shape. The models of
    /// others keep the file that they came with.
    ///
    /// # Panics
    /// Never: a config holds only what JSON can express.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let fields = json!({
            "architectures": [self.architecture.class()],
            "model_type": self.architecture.model_type(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope.theta,
            "rope_scaling": null,
            "tie_word_embeddings": self.tie_word_embeddings,
            "hidden_act": "silu",
            "attention_bias": false,
            "mlp_bias": false,
            "initializer_range": self.initializer_range,
            "torch_dtype": self.precision.dtype(),
            // Ids of special tokens are the environment's matter.
            "bos_token_id": null,
            "eos_token_id": null,
        });
        let mut text = serde_json::to_vec_pretty(&fields).expect("a config holds only what JSON can express");
        text.push(b'\n');
        text
    }

    /// Width of a head.
    #[must_use]
    pub const fn head_width(&self) -> i64 {
        self.head_dim
    }

    /// Key and value heads.
    #[must_use]
    pub const fn kv_heads(&self) -> i64 {
        self.num_key_value_heads
    }

    /// Width of all query heads together.
    #[must_use]
    pub const fn query_width(&self) -> i64 {
        self.num_attention_heads * self.head_width()
    }

    /// Width of all key heads together; the value heads' is the same.
    #[must_use]
    pub const fn kv_width(&self) -> i64 {
        self.kv_heads() * self.head_width()
    }

    /// Whether each head's queries and keys are normalised.
    #[must_use]
    pub fn normalises_heads(&self) -> bool {
        self.architecture == Architecture::Qwen3
    }

    fn check(&self) -> Result<(), ConfigError> {
        let sizes = [self.vocab_size, self.hidden_size, self.intermediate_size, self.num_attention_heads];
        let positive = sizes.iter().all(|size| (1..=i64::from(i32::MAX)).contains(size))
            && (1..=100_000).contains(&self.num_hidden_layers)
            && self.context > 0
            && self.rms_norm_eps > 0.0;
        if !positive {
            let remedy = "all sizes must be above 0, and none beyond reason";
            return Err(ConfigError::unsupported("hidden_size", &self.hidden_size, remedy));
        }
        let (heads, kv, width) = (self.num_attention_heads, self.kv_heads(), self.head_width());
        if kv <= 0 || heads % kv != 0 {
            let remedy = "it must divide num_attention_heads";
            return Err(ConfigError::unsupported("num_key_value_heads", &kv, remedy));
        }
        if width <= 0 || width % 2 != 0 || width > i64::from(i32::MAX) {
            return Err(ConfigError::unsupported("head_dim", &width, "it must be even and above 0"));
        }
        let parameters = self.most_parameters();
        if parameters > MAX_PARAMETERS {
            let remedy = format!("its sizes make more than {MAX_PARAMETERS} parameters");
            return Err(ConfigError::unsupported("hidden_size", &self.hidden_size, remedy));
        }
        Ok(())
    }

    /// A bound on its parameters, counted so that no size can overflow.
    fn most_parameters(&self) -> u64 {
        let product = |sizes: &[i64]| {
            sizes.iter().fold(1_u64, |product, size| product.saturating_mul(size.unsigned_abs()))
        };
        let (width, head) = (self.hidden_size, self.head_dim);
        let per_layer = [
            product(&[2, self.num_attention_heads, head, width]),
            product(&[2, self.num_key_value_heads, head, width]),
            product(&[3, self.intermediate_size, width]),
        ];
        let layer = per_layer.into_iter().fold(0_u64, u64::saturating_add);
        layer.saturating_mul(self.num_hidden_layers as u64).saturating_add(product(&[
            2,
            self.vocab_size,
            width,
        ]))
    }
}
