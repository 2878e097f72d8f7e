//! Workers of a `millrace up` that come and go as its coordinator decides.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use millrace_queue::ConnectArgs;
use millrace_schemas::scale::ScaleStatus;

use super::folder::Folder;
use super::supervisor::Supervisor;
use super::workers::WorkerPool;
use crate::connect::{Api, SERVICE_PATIENCE};

/// Between two looks at the decisions.
const LOOK: Duration = Duration::from_millis(500);

/// Writes the scaling file of this machine, for pools of at most so many workers. A process starts
/// within a second, so decisions are quick.
pub(super) fn write_file(folder: &Folder, pools: &[WorkerPool]) -> Result<PathBuf> {
    let mut text = String::from("interval_s = 1.0\n");
    for WorkerPool { name, stages, count, .. } in pools.iter().filter(|pool| pool.may_leave) {
        let stages = stages.split(',').map(|stage| format!("{stage:?}")).collect::<Vec<_>>().join(", ");
        let _ = write!(
            text,
            "\n[[pool]]\nname = {name:?}\nstages = [{stages}]\nmax = {count}\nstep = {count}\ncooldown_s = 10.0\n\
             start_up_s = 1.0\ntarget = {{ kind = \"local\" }}\n"
        );
    }
    let path = folder.path("scale.toml");
    std::fs::write(&path, text).with_context(|| format!("failed to write path={}", path.display()))?;
    Ok(path)
}

/// Consumes the decisions about `pools`, produces workers. Waits for the timer. A worker that is to
/// leave is asked by the coordinator; here it only is not replaced. Never ends.
pub(super) async fn follow(
    url: String,
    who: ConnectArgs,
    pools: Vec<WorkerPool>,
    supervisor: Arc<Supervisor>,
) {
    let api = loop {
        match Api::connect(&url, &who, SERVICE_PATIENCE).await {
            Ok(api) => break api,
            Err(error) => tracing::debug!(%error, "the queue is not there yet"),
        }
    };
    loop {
        // No answer while the coordinator restarts: its workers stay as they are.
        if let Ok(decisions) = api.call::<ScaleStatus>("scale", &serde_json::Value::Null).await {
            let running = supervisor.names();
            for pool in &pools {
                let desired = decisions.get(pool.name).map_or(0, |known| known.last.desired);
                let names = (0..pool.count).map(|number| (number, pool.worker(number)));
                let (kept, free): (Vec<_>, Vec<_>) = names.partition(|(_, name)| running.contains(name));
                let lacking = (desired as usize).saturating_sub(kept.len());
                for (number, _) in free.into_iter().take(lacking) {
                    supervisor.keep(pool.role(number));
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
