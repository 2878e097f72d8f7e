//! Landlock: which files may be read and written, no ports, and no signals beyond. It says again
//! what the namespaces say, by other code of the kernel: an error in one of them is not yet a way
//! out.

use std::path::PathBuf;

use anyhow::{Context, bail};
use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
    path_beneath_rules,
};

use super::root;

/// Puts it up around all that is seen in a long-lived sandbox: what is written and what is only read
/// is for the mounts to say there; a file that is not below this root, whatever leads to it, cannot
/// be touched.
///
/// # Errors
/// The kernel has none.
pub(crate) fn put_up_around_root() -> anyhow::Result<()> {
    let abi = ABI::V6;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()
        .context("failed to begin with Landlock")?
        .add_rules(path_beneath_rules(["/"], AccessFs::from_all(abi)))?
        .restrict_self()
        .context("failed to put up Landlock")?;
    is_there(&status.ruleset)
}

fn is_there(status: &RulesetStatus) -> anyhow::Result<()> {
    if *status == RulesetStatus::NotEnforced {
        bail!("the kernel has no Landlock (Linux 5.13, with landlock among its security modules)");
    }
    Ok(())
}

/// Puts it up, as much as the kernel knows of it; files are the least.
///
/// # Errors
/// The kernel has none.
pub(crate) fn put_up(read: &[PathBuf]) -> anyhow::Result<()> {
    let abi = ABI::V6;
    let (reading, all) = (AccessFs::from_read(abi), AccessFs::from_all(abi));
    let status = Ruleset::default()
        .handle_access(all)?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()
        .context("failed to begin with Landlock")?
        .add_rules(path_beneath_rules(root::SYSTEM, reading))?
        .add_rules(path_beneath_rules(read, reading))?
        .add_rules(path_beneath_rules(root::DEVICES, AccessFs::ReadFile | AccessFs::WriteFile))?
        .add_rules(path_beneath_rules([root::SCRATCH], all))?
        .restrict_self()
        .context("failed to put up Landlock")?;
    is_there(&status.ruleset)
}
