//! Decides whether this process uses our kernels on a GPU. They are compiled for each kind of GPU, so they are
//! compared with libtorch's plain operators before use: those of training once a process, those of sampling
//! for each engine. If one of a group differs, libtorch computes the group and the log says why. If one breaks
//! the GPU, the process exits.

use std::sync::OnceLock;

use millrace_policy::PolicyError;
use tch::{Device, Kind, Tensor};

use crate::libtorch::guarded;

mod checks;

static WANTED: OnceLock<bool> = OnceLock::new();
static TRAINING: OnceLock<bool> = OnceLock::new();

/// Sets whether kernels of our own are used on a GPU at all: before the first model. The default is yes.
pub fn set_gpu_kernels(wanted: bool) {
    let _ = WANTED.set(wanted);
}

/// Whether they are used on `device`, if they compute what they should.
pub(crate) fn wanted(device: Device) -> bool {
    device.is_cuda() && *WANTED.get_or_init(|| true)
}

/// Whether a train step on `device` computes with them.
pub(crate) fn train(device: Device) -> bool {
    wanted(device) && *TRAINING.get_or_init(|| are_right("training", device, || checks::training(device)))
}

/// Whether `check` on `device` passes; if not, the log says what `stage` does without. A kernel may
/// leave the process without its GPU: then it ends, for it could do nothing more.
pub(crate) fn are_right(stage: &str, device: Device, check: impl FnOnce() -> Result<(), String>) -> bool {
    let checked = guarded(|| check().map_err(PolicyError::Temporary));
    if let Err(error) = &checked {
        if !lives(device) {
            tracing::error!(stage, %error, "a kernel broke this process's GPU; start it with --gpu-kernels false");
            std::process::exit(1);
        }
        tracing::warn!(stage, %error, "this GPU computes with libtorch's plain operators, more slowly");
    }
    checked.is_ok()
}

/// Whether the device still computes.
fn lives(device: Device) -> bool {
    let two =
        || Ok(f64::try_from(Tensor::ones([2], (Kind::Float, device)).sum(Kind::Float)).unwrap_or(f64::NAN));
    guarded(two) == Ok(2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_differ_or_fail_are_not_used() {
        let is_right = |check: fn() -> Result<(), String>| are_right("test", Device::Cpu, check);
        assert!(is_right(|| Ok(())));
        assert!(!is_right(|| Err("off by 0.5".to_owned())));
        assert!(!is_right(|| panic!("failed to compile")));
    }

    #[test]
    fn a_cpu_has_none() {
        assert!(!wanted(Device::Cpu));
        assert!(!train(Device::Cpu));
    }
}
