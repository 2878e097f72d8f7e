//! What a measurement needs besides workers: a queue and a coordinator, in this process or in others.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use millrace_schemas::Stage;
use tokio::task::JoinHandle;

use super::machines::{Host, Machines};
use super::work::{Begun, Pace};

/// How far the run is.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    pub(super) over: bool,
    /// The newest version.
    pub(super) version: u64,
    /// Turns that were sampled, and those of rollouts that a version was trained on.
    pub(super) turns: u64,
    pub(super) trained_turns: u64,
    /// Rollouts dropped, for whatever reason.
    pub(super) dropped: u64,
    /// Tasks that are queued or in flight, by stage.
    pub(super) tasks: BTreeMap<Stage, u64>,
}

/// A queue and a coordinator.
#[async_trait]
pub(super) trait Ground: Send + Sync {
    /// The pace of its work.
    fn pace(&self) -> &Pace;

    /// What an instance of it runs.
    fn host(&self) -> Arc<dyn Host>;

    /// Whether its coordinator asks workers to leave by itself.
    fn drains(&self) -> bool;

    /// Submits a run file. There is one run.
    async fn submit(&self, text: &str) -> anyhow::Result<()>;

    /// How far the run is.
    async fn progress(&self) -> anyhow::Result<Progress>;

    /// Makes the coordinator's decisions about the pools true, until the handle is aborted.
    fn follow(&self, pools: Vec<Arc<Machines>>) -> JoinHandle<()>;

    /// Every task that a worker began so far, each worker's in their order.
    fn begun(&self) -> anyhow::Result<Vec<Begun>>;

    /// Ends everything.
    async fn end(&self);
}
