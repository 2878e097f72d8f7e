//! The optimiser's state as files: `optimizer-<rank>-of-<world>.safetensors`, one per member. Each
//! lists the ranges of the flat buffer that it has, so that a gang of another size can read its own
//! parts.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use millrace_policy::{OPTIMIZER_PREFIX, PolicyError};
use millrace_schemas::BlobRef;
use millrace_schemas::publish_weights::Manifest;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::state::Optimiser;
use super::zero_partition::{OwnedRange, ZeroPartition, copy_shared};
use crate::decoder::Config;

const FIRST: &str = "exp_avg";
const SECOND: &str = "exp_avg_sq";
/// The weights in f32, where the model computes in fewer bits.
const MASTERS: &str = "master_weights";
/// The key of [`Header`] in a file's metadata; the only one, so that the same state gives the same
/// bytes.
const HEADER: &str = "shard";

/// The metadata of a shard.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    rank: i64,
    world: i64,
    /// Updates that the moments include.
    updates: u64,
    /// Start and length of each range in the flat buffer, in the order of the tensors' elements.
    ranges: Vec<(i64, i64)>,
}

/// The file's name.
pub(super) fn name(rank: i64, world: i64) -> String {
    format!("{OPTIMIZER_PREFIX}-{rank}-of-{world}.safetensors")
}

fn world_of(name: &str) -> Option<u32> {
    let rest = name.strip_prefix(OPTIMIZER_PREFIX)?.strip_prefix('-')?.strip_suffix(".safetensors")?;
    let (rank, world) = rest.split_once("-of-")?;
    let (rank, world) = (rank.parse::<u32>().ok()?, world.parse::<u32>().ok()?);
    (rank < world).then_some(world)
}

/// A complete set of shards of a version, by rank; `None` if the version is no checkpoint.
pub(super) fn complete_set(manifest: &Manifest) -> Option<Vec<(String, BlobRef)>> {
    let worlds: BTreeSet<u32> = manifest.files.iter().filter_map(|file| world_of(&file.name)).collect();
    let set = |world: u32| {
        let shard = |rank| {
            let name = name(i64::from(rank), i64::from(world));
            Some((name.clone(), *manifest.file(&name)?))
        };
        (0..world).map(shard).collect::<Option<Vec<_>>>()
    };
    worlds.into_iter().find_map(set)
}

/// Writes a member's shard.
pub(super) fn write(partition: &ZeroPartition, optimiser: &Optimiser, config: &Config) -> Bytes {
    let owned = partition.ranges();
    let ranges: Vec<(i64, i64)> = owned.iter().map(|range| (range.flat_at, range.len)).collect();
    let header = Header { rank: partition.rank, world: partition.world, updates: optimiser.updates, ranges };
    let header = serde_json::to_string(&header).expect("numbers are JSON");
    let content: Vec<Vec<u8>> = optimiser.stored(config).map(|tensor| bytes(tensor, &owned)).collect();
    let view = |bytes| {
        let shape = vec![<[u8]>::len(bytes) / size_of::<f32>()];
        TensorView::new(Dtype::F32, shape, bytes).expect("the shape comes from the bytes")
    };
    let tensors = [FIRST, SECOND, MASTERS].into_iter().zip(&content).map(|(name, bytes)| (name, view(bytes)));
    let tensors: BTreeMap<&str, TensorView<'_>> = tensors.collect();
    let metadata = HashMap::from([(HEADER.to_owned(), header)]);
    Bytes::from(safetensors::serialize(tensors, Some(metadata)).expect("tensors of whole numbers of f32"))
}

fn bytes(own: &Tensor, ranges: &[OwnedRange]) -> Vec<u8> {
    let ranges: Vec<Tensor> = ranges.iter().map(|range| own.narrow(0, range.own_at, range.len)).collect();
    if ranges.is_empty() {
        return Vec::new();
    }
    let joined = Tensor::cat(&ranges, 0).to_device(Device::Cpu);
    let elements = joined.numel();
    let mut bytes = vec![0; elements * size_of::<f32>()];
    joined.copy_data_u8(&mut bytes, elements);
    bytes
}

/// How many elements of a member's parts the shards had.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Covered {
    moments: i64,
    masters: i64,
}

impl Covered {
    pub(super) const fn add(&mut self, more: Self) {
        self.moments += more.moments;
        self.masters += more.masters;
    }

    /// Whether they had the moments of all `own` elements, and the masters of all or of none.
    pub(super) const fn all(&self, own: i64) -> bool {
        self.moments == own && (self.masters == own || self.masters == 0)
    }
}

/// Reads what a shard has of `partition`'s parts.
///
/// # Errors
/// It is no shard, or holds a number that is not finite.
pub(super) fn read(
    file: &str,
    bytes: &[u8],
    partition: &ZeroPartition,
    optimiser: &mut Optimiser,
) -> Result<Covered, PolicyError> {
    let fail = |why: String| PolicyError::Impossible(format!("failed to read {file}: {why}"));
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| fail(e.to_string()))?;
    let header = metadata.metadata().as_ref().and_then(|words| words.get(HEADER));
    let header = header.ok_or_else(|| fail(format!("its metadata has no {HEADER}")))?;
    let header: Header = serde_json::from_str(header).map_err(|e| fail(e.to_string()))?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| fail(e.to_string()))?;
    let mut ranges = Vec::new();
    let mut own_at = 0;
    for &(flat_at, len) in &header.ranges {
        ranges.push(OwnedRange { flat_at, own_at, len });
        own_at += len;
    }
    let tensor = |name: &str| {
        let view = tensors.tensor(name).map_err(|e| fail(e.to_string()))?;
        if view.dtype() != Dtype::F32 || view.data().len() as i64 != own_at * size_of::<f32>() as i64 {
            return Err(fail(format!("{name} has shape={:?}, expected [{own_at}]", view.shape())));
        }
        let tensor = Tensor::from_data_size(view.data(), &[own_at], Kind::Float);
        if !bool::try_from(tensor.isfinite().all()).unwrap_or(false) {
            return Err(fail(format!("{name} has a number that is not finite")));
        }
        Ok(tensor)
    };
    let (first, second) = (tensor(FIRST)?, tensor(SECOND)?);
    optimiser.updates = header.updates;
    let own = partition.ranges();
    copy_shared(&ranges, &first, &own, &optimiser.first);
    let moments = copy_shared(&ranges, &second, &own, &optimiser.second);
    let masters = if tensors.names().contains(&MASTERS) {
        copy_shared(&ranges, &tensor(MASTERS)?, &own, optimiser.masters_to_fill())
    } else {
        0
    };
    Ok(Covered { moments, masters })
}
