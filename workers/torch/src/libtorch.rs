//! How this process uses libtorch: its threads, its device, and its panics as errors.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use millrace_policy::PolicyError;
use tch::Device;

use crate::decoder::FilesError;
use crate::memory;

static THREADS: OnceLock<i32> = OnceLock::new();
static DEVICE: OnceLock<usize> = OnceLock::new();

/// Sets how many threads libtorch may use in this process, before the first model. The default is
/// one: workers of several stages share a machine, and libtorch's threads wait for one another by
/// spinning.
pub fn set_threads(threads: i32) {
    let _ = THREADS.set(threads.max(1));
}

/// Sets which GPU this process computes on, by its number from 0, before the first model. Without a GPU it has no meaning.
///
/// # Errors
/// There are GPUs, but not this one.
pub fn set_device(number: usize) -> Result<(), String> {
    let there = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
    if there > 0 && number >= there {
        return Err(format!("device={number} is not one of the {there} that libtorch sees: count from 0"));
    }
    let _ = DEVICE.set(number);
    Ok(())
}

/// Prepares the calling thread to compute, and returns the device: a GPU where libtorch sees one.
pub(crate) fn enter() -> Device {
    tch::set_num_threads(*THREADS.get_or_init(|| 1));
    memory::keep();
    match Device::cuda_if_available() {
        Device::Cuda(_) => {
            let device = *DEVICE.get_or_init(|| 0);
            millrace_kernels::cuda::use_device(device).expect("the device was there when it was chosen");
            Device::Cuda(device)
        }
        other => other,
    }
}

/// Runs `compute`, whose tensor operations panic where libtorch throws, and makes an error of it.
pub(crate) fn guarded<T>(compute: impl FnOnce() -> Result<T, PolicyError>) -> Result<T, PolicyError> {
    catch_unwind(AssertUnwindSafe(compute)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        // libtorch appends its stack to the message.
        let text: Vec<&str> = text.lines().take(3).collect();
        Err(PolicyError::Temporary(format!("libtorch failed: {}", text.join(" "))))
    })
}

impl From<FilesError> for PolicyError {
    fn from(error: FilesError) -> Self {
        Self::Impossible(error.to_string())
    }
}

/// How many tokens both begin with.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
