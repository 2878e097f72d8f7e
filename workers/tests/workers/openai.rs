//! A server generates: its tokens and log-probabilities are those of the model, its weights are
//! proved, and whatever it does wrong is found out. The server is `openai/server.py`, transformers
//! behind the calls of vLLM, SGLang and llama.cpp's server; in `openai/llama_cpp.rs` it is
//! llama.cpp itself.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod llama_cpp;
mod process;
mod replies;
mod support;
mod tenancy;
mod weights;
#[cfg(feature = "torch")]
mod run;
