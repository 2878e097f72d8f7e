//! Sandboxes that live for a while: a file system that can be written to, processes as the caller
//! starts them, snapshots and forks. `spec.rs` is what a caller asks for, `wire.rs` what travels,
//! `host.rs` and `keeper.rs` start sandboxes, `handle.rs` and `process.rs` are how one is used,
//! `layers.rs` and `store.rs` are what remains of its files, `images.rs` is what others packed.

mod spec;
pub mod wire;
mod keeper;
mod layers;
mod host;
mod store;
mod images;
mod process;
mod handle;

pub use handle::{LiveSandbox, Stopped};
pub use host::{Host, Settings};
pub use images::{ImageCache, LAYER_BYTES};
pub use layers::Snapshot;
pub use process::{Event, Process};
pub use spec::{Bounds, Exec, Forward, LiveError, Output, Spec, Terminal, TerminalSize, Wall};
pub use store::Digest;
pub use wire::{Entry, Fault, FileKind, Stream};
