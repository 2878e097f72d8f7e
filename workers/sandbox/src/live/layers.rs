//! What remains of a sandbox's files: layers, each over those before it.

use std::sync::Arc;

use crate::live::keeper::Layer;

/// The files of a sandbox as they were at one moment. Processes and their memory are not in it.
/// Cheap to clone; the files are there as long as a snapshot or a sandbox needs them, and end with
/// their [`Host`](crate::live::Host).
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Topmost first. `[L]`; none: an empty tree.
    pub(crate) layers: Vec<Arc<Layer>>,
}

impl Snapshot {
    /// How many layers it has.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.layers.iter().map(|layer| layer.number).collect()
    }

    /// The same with another layer on top.
    pub(crate) fn with(&self, top: Arc<Layer>) -> Self {
        Self { layers: [vec![top], self.layers.clone()].concat() }
    }
}
