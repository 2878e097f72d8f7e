//! A device that the trainer shares with an engine (time division): before a run's first step the
//! sizes are checked, before each step the engine releases the device.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_policy::decoder::Config;
use millrace_policy::{CONFIG_FILE, LoadedVersion, MODEL_FILE};
use millrace_schemas::RunId;
use millrace_schemas::submit::Precision;

use super::thread::Job;
use crate::runtime::{Failure, NotReleased, Retry, StepTurn, TimeDivision};

/// Bytes of a trainer, for each byte of a version's weights. In f32: weights, AdamW's two moments, and the new version's
/// file until it is uploaded.
const F32_SHARE: u64 = 4;
/// In bf16 the moments and the weights that are updated are in f32: 2 + 4 + 4 + 4 bytes and the file's 2, for a weight of 2.
const BF16_SHARE: u64 = 8;

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
            self.check(run, &step.base, step.algorithm.kl.is_some())?;
        }
        self.division.begin_step().await.map_err(|error| match error {
            NotReleased::Stuck(_) | NotReleased::Refused(_) => {
                Failure::Retry(Retry::Restart, error.to_string())
            }
        })
    }

    fn check(&self, run: &RunId, base: &LoadedVersion, has_reference: bool) -> Result<(), Failure> {
        if self.fits().get(run) == Some(&true) {
            return Ok(());
        }
        let Some(weights) = base.manifest.file(MODEL_FILE).map(|blob| blob.bytes) else { return Ok(()) };
        let Some(free) = self.room.or_else(free_bytes) else { return Ok(()) };
        let trainer = weights.saturating_mul(trainer_share(base) + u64::from(has_reference));
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

/// Bytes of a trainer, for each byte of this version's weights.
fn trainer_share(base: &LoadedVersion) -> u64 {
    let config = base.file(CONFIG_FILE).ok().and_then(|config| Config::read(config).ok());
    match config.map(|config| config.precision) {
        Some(Precision::Bf16) => BF16_SHARE,
        // A trainer that cannot read it trains nothing.
        Some(Precision::F32) | None => F32_SHARE,
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
    use std::collections::BTreeMap;

    use millrace_schemas::PolicyVersion;
    use millrace_schemas::blob::{BlobRef, Sha};
    use millrace_schemas::publish_weights::Manifest;
    use millrace_schemas::train_shard::FileRef;

    use super::*;

    /// A version whose weights have 1000 bytes.
    fn version(dtype: &str) -> LoadedVersion {
        let config = format!(
            r#"{{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 16, "hidden_size": 8,
                "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                "max_position_embeddings": 32, "rms_norm_eps": 1e-6, "torch_dtype": "{dtype}"}}"#
        );
        let blob = BlobRef { sha256: Sha::of(b""), bytes: 1000 };
        let manifest = Manifest {
            run: "lake".parse().unwrap(),
            version: PolicyVersion(0),
            parent: None,
            batch: None,
            config: Sha::of(b""),
            files: vec![FileRef::whole(MODEL_FILE.to_owned(), blob)],
            metrics: BTreeMap::new(),
        };
        let sha = Sha::of(&manifest.to_json());
        let files = BTreeMap::from([(CONFIG_FILE.to_owned(), config.into())]);
        LoadedVersion { version: PolicyVersion(0), manifest, sha, files }
    }

    #[test]
    fn a_trainer_in_bf16_and_a_reference_model_count_for_what_they_take() {
        let fits = |dtype: &str, has_reference: bool, room: u64| {
            let device = SharedDevice::new(TimeDivision::default(), Some(room));
            let checked = device.check(&"lake".parse().unwrap(), &version(dtype), has_reference);
            assert_eq!(device.is_well(), checked.is_ok());
            checked.is_ok()
        };
        assert!(fits("float32", false, 5_000) && !fits("float32", false, 4_999));
        assert!(fits("float32", true, 6_000) && !fits("float32", true, 5_999));
        assert!(!fits("bfloat16", false, 6_000), "the moments and the updated weights are in f32");
        assert!(fits("bfloat16", false, 9_000) && !fits("bfloat16", false, 8_999));
        assert!(fits("bfloat16", true, 10_000) && !fits("bfloat16", true, 9_999));
    }

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
