//! The sandbox of the reward `code`, tried before anything is started: by the worker's own program,
//! which will use it.

use anyhow::{Result, bail};
use millrace_schemas::RunSpec;
use millrace_schemas::reward::RewardRule;

use crate::worker;

/// Checks the sandbox, if a reward of the run needs all of its walls.
///
/// # Errors
/// A wall is missing. The message has the remedy.
pub(super) async fn check(spec: &RunSpec) -> Result<()> {
    let mut rewards = spec.parts().flat_map(|domain| domain.rewards);
    // Runs with `may_lack` are checked by the workers.
    if !rewards.any(|reward| reward.rule == RewardRule::Code && !reward.settings.contains_key("may_lack")) {
        return Ok(());
    }
    if let Err(summary) = worker::check(&worker::find()?, ["check-sandbox"], b"").await? {
        bail!(
            "a reward has rule = \"code\", and its sandbox does not work on this machine, so nothing is started:\n{summary}"
        );
    }
    Ok(())
}
