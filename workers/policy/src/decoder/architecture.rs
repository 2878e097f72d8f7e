//! The architectures that are computed, by the names that transformers has for them. All are one
//! decoder: RMSNorm, attention with rotary positions, SwiGLU. They differ in biases and in norms of
//! the heads.

/// An architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 1 to 3, SmolLM2, TinyLlama and others. Biases as configured.
    Llama,
    /// Mistral, without a sliding window.
    Mistral,
    /// Qwen2 and Qwen2.5: queries, keys and values have biases.
    Qwen2,
    /// Qwen3, dense: each head's queries and keys are normalised; heads have a width of their own.
    Qwen3,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// The architecture whose `model_type` this is.
    #[must_use]
    pub fn of(model_type: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.model_type() == model_type)
    }

    /// `model_type` of a `config.json`.
    #[must_use]
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// What `architectures` of a `config.json` names.
    #[must_use]
    pub const fn class(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// What can be computed, for people.
    #[must_use]
    pub fn known() -> String {
        Self::ALL.map(|known| format!("{} ({})", known.model_type(), known.class())).join(", ")
    }
}

/// Which projections add a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// What comes out of the attention.
    pub output: bool,
    /// The three of the feed-forward layers.
    pub feed_forward: bool,
}
