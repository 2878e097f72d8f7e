//! A device that the trainer shares with an engine (time division): before a run's first step the
//! sizes are checked, before each step the engine releases the device.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_policy::{LoadedVersion, MODEL_FILE};
use millrace_schemas::RunId;

use super::thread::Job;
use crate::runtime::{Failure, NotReleased, Retry, StepTurn, TimeDivision};

/// Bytes of a trainer, for each byte of a version's weights: weights, gradients, and AdamW's two
/// moments. With weights in bf16 the moments and master weights are f32, which is more.
const TRAINER_SHARE: u64 = 4;

/// The trainer's side of the device.
#[derive(Debug, Clone)]
pub struct SharedDevice {
    division: TimeDivision,
    /// Bytes of host memory that may be used; `None` for what is free.
    room: Option<u64>,
    /// Whether a run's state fits, by run.
    fits: Arc<Mutex<BTreeMap<RunId, bool>>>,
}

impl SharedDevice {
    /// `room` is the most host memory that the state of a run may take, in bytes; by default what
    /// the machine and the process's cgroup have free.
    #[must_use]
    pub fn new(division: TimeDivision, room: Option<u64>) -> Self {
        Self { division, room, fits: Arc::default() }
    }

    /// The device.
    #[must_use]
    pub const fn division(&self) -> &TimeDivision {
        &self.division
    }

    fn fits(&self) -> MutexGuard<'_, BTreeMap<RunId, bool>> {
        self.fits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a step could get the device, and every run's state fitted when it was checked.
    pub(super) fn is_well(&self) -> bool {
        self.division.is_well() && self.fits().values().all(|fits| *fits)
    }

    /// Takes the device for a job. At a run's first step it checks that the host's memory has room
    /// for what will be moved there; turns continue if it has not.
    pub(super) async fn begin_step(&self, run: &RunId, job: &Job) -> Result<StepTurn, Failure> {
        if let Job::Step(step) = job {
            self.check(run, &step.base)?;
        }
        self.division.begin_step().await.map_err(|error| match error {
            NotReleased::Stuck(_) | NotReleased::Refused(_) => {
                Failure::Retry(Retry::Restart, error.to_string())
            }
        })
    }

    fn check(&self, run: &RunId, base: &LoadedVersion) -> Result<(), Failure> {
        if self.fits().get(run) == Some(&true) {
            return Ok(());
        }
        let Some(weights) = base.manifest.file(MODEL_FILE).map(|blob| blob.bytes) else { return Ok(()) };
        let Some(free) = self.room.or_else(free_bytes) else { return Ok(()) };
        let trainer = weights.saturating_mul(TRAINER_SHARE);
        let needed = trainer.saturating_add(weights);
        self.fits().insert(run.clone(), needed <= free);
        if needed <= free {
            return Ok(());
        }
        let reason = format!(
            "time division of run={run} needs host memory bytes={needed}: engine={weights}, trainer={trainer}; free={free}. \
             Give the worker more memory, or generate and train in workers of their own"
        );
        Err(Failure::Retry(Retry::Elsewhere, reason))
    }
}

/// Bytes of memory that are free on this machine, or fewer if the cgroup of this process allows
/// fewer. `None` where the system does not report it.
fn free_bytes() -> Option<u64> {
    let machine = free_of_machine(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(free_of_cgroup(Path::new("/sys/fs/cgroup")).map_or(machine, |cgroup| cgroup.min(machine)))
}

fn free_of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// `None` where it has no limit.
fn free_of_cgroup(folder: &Path) -> Option<u64> {
    let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read_as_the_kernel_reports_it() {
        let meminfo = "MemTotal:       24000000 kB\nMemFree:  10 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(free_of_machine(meminfo), Some(2 << 20));
        assert_eq!(free_of_machine("MemTotal: 1 kB\n"), None);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(free_of_cgroup(folder.path()), None);
        std::fs::write(folder.path().join("memory.current"), "300\n").unwrap();
        std::fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(free_of_cgroup(folder.path()), None);
        std::fs::write(folder.path().join("memory.max"), "1000\n").unwrap();
        assert_eq!(free_of_cgroup(folder.path()), Some(700));
    }
}
