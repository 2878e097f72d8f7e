//! How much memory the KV cache of an engine may have.

use std::sync::OnceLock;

use millrace_kernels::cuda;
use tch::Device;

use super::EngineSettings;
use super::blocks::Blocks;
use crate::decoder::{Decoder, KvCache};

/// Of a CPU's memory.
const CPU_CACHE: usize = 512 << 20;
/// Blocks of a new cache on a CPU.
const CPU_FIRST_BLOCKS: usize = 64;
/// Bytes of a new cache on a GPU: each time that it grows, steps are captured again.
const GPU_FIRST_BYTES: usize = 1 << 30;
/// The default of [`set_cache_share`].
const SHARE: f64 = 0.5;

static CACHE_SHARE: OnceLock<f64> = OnceLock::new();

/// Sets how far the KV cache may grow: a share, above 0 to 1, of the GPU memory that is free when an engine starts,
/// after the next version of its weights is subtracted. Call it before the first engine.
pub fn set_cache_share(share: f64) {
    let _ = CACHE_SHARE.set(share.clamp(0.01, 1.0));
}

/// A cache without blocks, and the allocator of those that it may get.
pub(super) fn new_cache(decoder: &Decoder, settings: EngineSettings, device: Device) -> (KvCache, Blocks) {
    let most = settings.cache_bytes.or_else(|| of_device(decoder, device)).unwrap_or(CPU_CACHE);
    (no_cache(decoder, device), Blocks::new(most / bytes_per_block(decoder)))
}

/// A cache without blocks.
pub(super) fn no_cache(decoder: &Decoder, device: Device) -> KvCache {
    KvCache::new(decoder.config(), 0, decoder.flat().kind(), device)
}

/// Blocks that a cache begins with.
pub(super) fn first_blocks(decoder: &Decoder, device: Device) -> usize {
    if device.is_cuda() { (GPU_FIRST_BYTES / bytes_per_block(decoder)).max(1) } else { CPU_FIRST_BLOCKS }
}

fn bytes_per_block(decoder: &Decoder) -> usize {
    KvCache::bytes_per_block(decoder.config(), decoder.flat().kind()).max(1)
}

/// A share of what is free beside the next version of the weights, which is read while these are used.
fn of_device(decoder: &Decoder, device: Device) -> Option<usize> {
    let free = device.is_cuda().then(cuda::free_bytes).flatten()?;
    let next = decoder.flat().numel() * decoder.flat().kind().elt_size_in_bytes();
    Some((free.saturating_sub(next) as f64 * CACHE_SHARE.get_or_init(|| SHARE)) as usize)
}
