//! Settings of the rotary embedding's wavelengths: `rope_parameters` of `config.json`, or
//! `rope_theta` and `rope_scaling` in older files.

use serde::Deserialize;
use serde_json::Value;

use super::config::ConfigError;

/// Wavelengths of the rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeParameters {
    /// The base of the wavelengths.
    pub theta: f64,
    /// How they are stretched for contexts longer than the model was first trained on.
    pub scaling: RopeScaling,
}

/// A stretch of wavelengths, each as transformers computes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// None. `dynamic` is this, too: it stretches only what is longer than
    /// `max_position_embeddings`, and no context here is.
    Default,
    /// All by the same factor.
    Linear {
        /// How much longer.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths by the factor, short ones not, in between smoothly.
    Llama3 {
        /// How much longer.
        factor: f64,
        /// Wavelengths above `original / low` are stretched.
        low: f64,
        /// Wavelengths below `original / high` are not.
        high: f64,
        /// The context that the model was first trained on.
        original: f64,
    },
    /// YaRN (Peng et al., 2023): by the number of turns within the original context, and attention
    /// is sharpened.
    Yarn {
        /// How much longer.
        factor: f64,
        /// Multiplies cosines and sines.
        attention: f64,
        /// Turns above which a wavelength is not stretched.
        fast: f64,
        /// Turns below which it is stretched fully.
        slow: f64,
        /// The context that the model was first trained on.
        original: f64,
        /// The bounds between are rounded to whole dimensions.
        truncate: bool,
    },
}

/// The fields of `config.json`.
#[derive(Debug, Default, Deserialize)]
struct RopeFields {
    #[serde(default)]
    rope_type: Option<String>,
    /// The older name.
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    rope_theta: Option<f64>,
    #[serde(default)]
    partial_rotary_factor: Option<f64>,
    #[serde(default)]
    factor: Option<f64>,
    #[serde(default)]
    low_freq_factor: Option<f64>,
    #[serde(default)]
    high_freq_factor: Option<f64>,
    #[serde(default)]
    original_max_position_embeddings: Option<f64>,
    #[serde(default)]
    attention_factor: Option<f64>,
    #[serde(default)]
    beta_fast: Option<f64>,
    #[serde(default)]
    beta_slow: Option<f64>,
    #[serde(default)]
    mscale: Option<f64>,
    #[serde(default)]
    mscale_all_dim: Option<f64>,
    #[serde(default)]
    truncate: Option<bool>,
}

/// The fields of `config.json` beside `rope_parameters` that matter to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside {
    pub(super) theta: Option<f64>,
    pub(super) partial: Option<f64>,
    pub(super) original: Option<f64>,
    pub(super) longest: f64,
}

impl RopeParameters {
    /// Reads `rope_parameters` or `rope_scaling`; `null` if neither exists.
    pub(super) fn read(fields: &Value, beside: Beside) -> Result<Self, ConfigError> {
        let empty = fields.is_null() || fields.as_object().is_some_and(serde_json::Map::is_empty);
        let fields: RopeFields =
            if empty { RopeFields::default() } else { serde_path_to_error::deserialize(fields)? };
        let kind = fields.rope_type.as_deref().or(fields.kind.as_deref()).unwrap_or("default");
        let partial = fields.partial_rotary_factor.or(beside.partial).unwrap_or(1.0);
        if (partial - 1.0).abs() > f64::EPSILON {
            return Err(unsupported("partial_rotary_factor", &partial, "only 1 is computed"));
        }
        let theta = fields.rope_theta.or(beside.theta).unwrap_or(10_000.0);
        let theta = positive("rope_theta", Some(theta))?;
        // Beside the parameters it has priority, as in transformers.
        let original = beside.original.or(fields.original_max_position_embeddings).unwrap_or(beside.longest);
        let scaling = match kind {
            "default" | "dynamic" => RopeScaling::Default,
            "linear" => RopeScaling::Linear { factor: positive("factor", fields.factor)? },
            "llama3" => RopeScaling::Llama3 {
                factor: positive("factor", fields.factor)?,
                low: positive("low_freq_factor", fields.low_freq_factor)?,
                high: positive("high_freq_factor", fields.high_freq_factor)?,
                original: positive("original_max_position_embeddings", Some(original))?,
            },
            "yarn" => {
                let factor = positive("factor", fields.factor.or(Some(beside.longest / original)))?;
                RopeScaling::Yarn {
                    factor,
                    attention: fields.attention(factor),
                    fast: fields.beta_fast.filter(|turns| *turns != 0.0).unwrap_or(32.0),
                    slow: fields.beta_slow.filter(|turns| *turns != 0.0).unwrap_or(1.0),
                    original: positive("original_max_position_embeddings", Some(original))?,
                    truncate: fields.truncate.unwrap_or(true),
                }
            }
            other => {
                let remedy = "only default, linear, dynamic, llama3 and yarn are computed";
                return Err(unsupported("rope_type", other, remedy));
            }
        };
        Ok(Self { theta, scaling })
    }
}

impl RopeFields {
    /// What YaRN multiplies cosines and sines by.
    fn attention(&self, factor: f64) -> f64 {
        let scale = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
        let fields = |number: Option<f64>| number.filter(|number| *number != 0.0);
        match (self.attention_factor, fields(self.mscale), fields(self.mscale_all_dim)) {
            (Some(attention), ..) => attention,
            (None, Some(one), Some(all)) => scale(one) / scale(all),
            (None, ..) => scale(1.0),
        }
    }
}

fn unsupported(field: &'static str, value: &(impl ToString + ?Sized), remedy: &'static str) -> ConfigError {
    ConfigError::Unsupported { field, value: value.to_string(), remedy: remedy.to_owned() }
}

fn positive(field: &'static str, value: Option<f64>) -> Result<f64, ConfigError> {
    match value {
        Some(number) if number > 0.0 && number.is_finite() => Ok(number),
        Some(number) => Err(unsupported(field, &number, "it must be above 0")),
        None => Err(unsupported(field, "null", "this rope_type needs it; it must be above 0")),
    }
}
