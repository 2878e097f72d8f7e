//! The sandbox of the reward `code`, tried before anything is started: by the worker's own program, which will use it.

use anyhow::{Result, bail};
use millrace_schemas::RunSpec;
use millrace_schemas::reward::RewardRule;

use crate::worker;

/// Has the sandbox tried, if a reward of the run needs all of it.
///
/// # Errors
/// Says which wall is missing, and how to get it.
pub(super) async fn check(spec: &RunSpec) -> Result<()> {
    let mut rewards = spec.parts().flat_map(|domain| domain.rewards);
    // What a run lets a machine lack, workers see to.
    if !rewards.any(|reward| reward.rule == RewardRule::Code && !reward.settings.contains_key("may_lack")) {
        return Ok(());
    }
    if let Err(told) = worker::check(&worker::find()?, ["check-sandbox"], b"").await? {
        bail!(
            "a reward has rule = \"code\", and its sandbox does not stand on this machine, so nothing is started:\n{told}"
        );
    }
    Ok(())
}
