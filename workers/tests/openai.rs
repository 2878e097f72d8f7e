//! A server generates: its tokens and log-probabilities are those of the model, its weights are
//! proved, and whatever it does wrong is found out. The server is `openai/server.py`, transformers
//! behind the calls of vLLM, SGLang and llama.cpp's server; in `openai/llama_cpp.rs` it is
//! llama.cpp itself.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "openai/faults.rs"]
mod faults;
#[path = "openai/llama_cpp.rs"]
mod llama_cpp;
#[path = "openai/process.rs"]
mod process;
#[path = "openai/replies.rs"]
mod replies;
#[path = "server/process.rs"]
mod server;
#[path = "openai/support.rs"]
mod support;
#[path = "openai/weights.rs"]
mod weights;
#[cfg(feature = "torch")]
#[path = "openai/run.rs"]
mod run;
