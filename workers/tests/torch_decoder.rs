//! The decoder, its engine and its trainer, on real libtorch. One binary, since linking it takes a while.
#![cfg(feature = "torch")]

#[path = "torch_decoder/support.rs"]
mod support;
#[path = "torch_decoder/speed.rs"]
mod speed;
