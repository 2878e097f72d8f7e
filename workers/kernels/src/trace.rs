//! What libtorch and the device do while something is computed, written as a trace.

mod bridge;

pub use bridge::trace;
