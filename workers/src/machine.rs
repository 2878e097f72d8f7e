//! The machine below a worker: why and when it will be taken back. The worker drains before, and the
//! last worker of a machine lets it go.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use millrace_schemas::notice::Machine;
use tokio::sync::watch;

use crate::runtime::Departure;
use ec2::Ec2;

mod ec2;

/// Where a worker learns that its machine will be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MachineKind {
    /// The metadata service of an EC2 instance (IMDSv2).
    Ec2,
}

/// Arguments about the machine.
#[derive(Debug, Clone, clap::Args)]
pub struct MachineArgs {
    /// Watch for notices that this machine will be taken back, and drain before
    #[arg(long, env = "MILLRACE_MACHINE", value_enum)]
    machine: Option<MachineKind>,
    /// Lifecycle hook of the scaling group in which the machine waits until its workers are drained
    #[arg(long, env = "MILLRACE_LIFECYCLE_HOOK", default_value = "drain", value_name = "NAME")]
    lifecycle_hook: String,
    /// Scaling group of the machine. Default: the group that the instance's tags name
    #[arg(long, env = "MILLRACE_SCALING_GROUP", value_name = "NAME")]
    scaling_group: Option<String>,
    /// File that all workers of this machine share: the last of them to leave lets the machine go
    #[arg(long, env = "MILLRACE_MACHINE_LOCK", value_name = "FILE", default_value_os_t = default_lock())]
    machine_lock: PathBuf,
}

fn default_lock() -> PathBuf {
    std::env::temp_dir().join("millrace-machine.lock")
}

/// A machine that is watched.
pub struct WatchedMachine {
    ec2: Ec2,
    lock: MachineLock,
}

impl MachineArgs {
    /// Watches the machine, and requests `departure` before it is taken back; `None` where no kind of
    /// machine is given. `of_machine` gets its name, and its end once that is known.
    ///
    /// # Errors
    /// The lock's file cannot be opened.
    pub fn watch(
        self,
        departure: Departure,
        of_machine: watch::Sender<Option<Machine>>,
    ) -> io::Result<Option<WatchedMachine>> {
        let Some(MachineKind::Ec2) = self.machine else { return Ok(None) };
        let lock = MachineLock::share(&self.machine_lock)?;
        let ec2 = Ec2::watch(self.lifecycle_hook, self.scaling_group, departure, of_machine);
        Ok(Some(WatchedMachine { ec2, lock }))
    }
}

impl WatchedMachine {
    /// The worker has drained. If it is the last one of the machine, the machine may go.
    pub async fn left(self) {
        if self.lock.is_last() {
            self.ec2.let_go().await;
        }
    }
}

/// A lock that each worker of a machine shares. A process that dies loses its share.
struct MachineLock(File);

impl MachineLock {
    fn share(path: &Path) -> io::Result<Self> {
        let named =
            |e: io::Error| io::Error::new(e.kind(), format!("--machine-lock {}: {e}", path.display()));
        let file = File::options().create(true).truncate(false).write(true).open(path).map_err(named)?;
        file.lock_shared().map_err(named)?;
        Ok(Self(file))
    }

    /// Gives this share up. Returns whether no other worker has one.
    fn is_last(&self) -> bool {
        // Of two that leave at once, both may be the last: the second completion of a hook is refused.
        let released = self.0.unlock();
        released.is_ok() && !matches!(self.0.try_lock(), Err(TryLockError::WouldBlock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_worker_of_a_machine_lets_it_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("machine.lock");
        let (first, second) = (MachineLock::share(&path).unwrap(), MachineLock::share(&path).unwrap());
        assert!(!first.is_last(), "the second one still works");
        drop(first);
        assert!(second.is_last());
    }

    #[test]
    fn a_worker_that_was_killed_does_not_keep_its_machine() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("machine.lock");
        drop(MachineLock::share(&path).unwrap());
        assert!(MachineLock::share(&path).unwrap().is_last());
    }
}
