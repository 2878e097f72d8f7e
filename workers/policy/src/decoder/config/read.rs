//! `config.json` as it is written, by this and by earlier releases of transformers.

use millrace_schemas::submit::Precision;
use serde::Deserialize;
use serde_json::Value;

use super::{Config, ConfigError};
use crate::decoder::architecture::{Architecture, Biases};
use crate::decoder::rope_parameters::{Beside, RopeParameters};

/// The fields that name the architecture.
#[derive(Debug, Deserialize)]
pub(super) struct Named {
    #[serde(default)]
    architectures: Option<Vec<String>>,
    model_type: String,
}

impl Named {
    pub(super) fn architecture(&self) -> Result<Architecture, ConfigError> {
        let unknown = |field, value: &str| {
            ConfigError::unsupported(field, value, format!("known are {}", Architecture::known()))
        };
        let of = Architecture::of(&self.model_type);
        let known = of.ok_or_else(|| unknown("model_type", &self.model_type))?;
        match self.architectures.as_deref() {
            // A classifier of the same architecture has another head.
            Some(named) if !named.is_empty() && named.iter().all(|name| name != known.class()) => {
                Err(unknown("architectures", &named.join(",")))
            }
            _ => Ok(known),
        }
    }
}

/// The fields of `config.json` that are read. Those that transformers knows and this decoder does
/// not need are left out.
#[derive(Debug, Deserialize)]
pub(super) struct ConfigFields {
    vocab_size: i64,
    hidden_size: i64,
    intermediate_size: i64,
    num_hidden_layers: usize,
    num_attention_heads: i64,
    #[serde(default)]
    num_key_value_heads: Option<i64>,
    #[serde(default)]
    head_dim: Option<i64>,
    max_position_embeddings: usize,
    #[serde(default)]
    millrace_context: Option<usize>,
    rms_norm_eps: f64,
    #[serde(default)]
    rope_theta: Option<f64>,
    #[serde(default)]
    rope_scaling: Value,
    #[serde(default)]
    rope_parameters: Value,
    #[serde(default)]
    partial_rotary_factor: Option<f64>,
    #[serde(default)]
    original_max_position_embeddings: Option<f64>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default = "silu")]
    hidden_act: String,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default = "point_zero_two")]
    initializer_range: f64,
    #[serde(default)]
    use_sliding_window: Option<bool>,
    /// Absent it is what transformers takes then; `null` is none.
    #[serde(default = "four_thousand_ninety_six")]
    sliding_window: Option<usize>,
    #[serde(default)]
    max_window_layers: Option<usize>,
    #[serde(default)]
    layer_types: Option<Vec<String>>,
    #[serde(default)]
    dtype: Option<String>,
    #[serde(default)]
    torch_dtype: Option<String>,
}

fn silu() -> String {
    "silu".to_owned()
}
#[expect(clippy::unnecessary_wraps, reason = "the default of an optional field")]
const fn four_thousand_ninety_six() -> Option<usize> {
    Some(4_096)
}
const fn point_zero_two() -> f64 {
    0.02
}

impl ConfigFields {
    pub(super) fn config(&self, architecture: Architecture) -> Result<Config, ConfigError> {
        if self.hidden_act != "silu" {
            return Err(ConfigError::unsupported("hidden_act", &self.hidden_act, "only silu is computed"));
        }
        let heads = self.num_attention_heads;
        let head_dim = self.head_dim.unwrap_or(match architecture {
            Architecture::Qwen3 => 128,
            _ => self.hidden_size / heads.max(1),
        });
        let longest = self.max_position_embeddings;
        let context = self.millrace_context.unwrap_or(longest);
        if context > longest {
            let remedy = format!("the model takes {longest} tokens (max_position_embeddings)");
            return Err(ConfigError::unsupported("model.context", &context, remedy));
        }
        Ok(Config {
            architecture,
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: heads,
            num_key_value_heads: self.num_key_value_heads.unwrap_or(heads),
            head_dim,
            context,
            max_position_embeddings: longest,
            rms_norm_eps: self.rms_norm_eps,
            rope: self.rope()?,
            tie_word_embeddings: self.tie_word_embeddings,
            biases: self.biases(architecture),
            initializer_range: self.initializer_range,
            precision: self.precision(),
            critic: false,
        })
    }

    fn biases(&self, architecture: Architecture) -> Biases {
        let attention = self.attention_bias;
        match architecture {
            Architecture::Llama => Biases { qkv: attention, output: attention, feed_forward: self.mlp_bias },
            Architecture::Mistral => Biases { qkv: false, output: false, feed_forward: false },
            Architecture::Qwen2 => Biases { qkv: true, output: false, feed_forward: false },
            Architecture::Qwen3 => Biases { qkv: attention, output: attention, feed_forward: false },
        }
    }

    fn rope(&self) -> Result<RopeParameters, ConfigError> {
        let older = self.rope_scaling.as_object().is_some_and(|fields| !fields.is_empty());
        let fields = if older { &self.rope_scaling } else { &self.rope_parameters };
        let beside = Beside {
            theta: self.rope_theta,
            partial: self.partial_rotary_factor,
            original: self.original_max_position_embeddings,
            longest: self.max_position_embeddings as f64,
        };
        RopeParameters::read(fields, beside)
    }

    /// What versions say; any other word is that of a directory, which is read in any case.
    fn precision(&self) -> Precision {
        match self.dtype.as_deref().or(self.torch_dtype.as_deref()) {
            Some("bfloat16") => Precision::Bf16,
            _ => Precision::F32,
        }
    }

    /// A window is refused where a context could be longer.
    pub(super) fn check_window(&self, config: &Config) -> Result<(), ConfigError> {
        let slides = match config.architecture {
            Architecture::Llama => false,
            Architecture::Mistral => true,
            Architecture::Qwen2 | Architecture::Qwen3 => {
                let first = self.max_window_layers.unwrap_or(28);
                let some = self.layer_types.as_ref().map_or(first < self.num_hidden_layers, |types| {
                    types.iter().any(|layer| layer == "sliding_attention")
                });
                self.use_sliding_window == Some(true) && some
            }
        };
        match self.sliding_window {
            Some(window) if slides && window < config.context => {
                let remedy = format!("sliding windows are not computed; choose model.context up to {window}");
                Err(ConfigError::unsupported("sliding_window", &window, remedy))
            }
            _ => Ok(()),
        }
    }
}
