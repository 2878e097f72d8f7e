//! Which GPU each worker of a `millrace up` computes on: one each, in turn.

use std::ffi::OsStr;
use std::fs;

/// What CUDA sees is bounded by this variable.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// What a worker's `--device` reads.
pub(super) const DEVICE: &str = "MILLRACE_DEVICE";
/// A folder for each GPU that NVIDIA's driver has.
const DRIVER: &str = "/proc/driver/nvidia/gpus";

/// How many GPUs the workers see. 0 where the user chose the one of all workers.
pub(super) fn count() -> usize {
    if std::env::var_os(DEVICE).is_some() {
        return 0;
    }
    match std::env::var_os(VISIBLE) {
        Some(visible) => listed(&visible),
        None => fs::read_dir(DRIVER).map_or(0, Iterator::count),
    }
}

/// How many GPUs a list of numbers or names has. What comes after a wrong one is not seen.
fn listed(visible: &OsStr) -> usize {
    let visible = visible.to_string_lossy();
    visible.split(',').map(str::trim).take_while(|name| !name.is_empty() && *name != "-1").count()
}

/// The GPU of a pool's worker of this number, where the pool's first has the GPU `first` and there are `count`. With one
/// GPU there is nothing to choose.
pub(super) const fn of_worker(first: u32, number: u32, count: usize) -> Option<usize> {
    if count > 1 { Some((first + number) as usize % count) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_at_the_first_that_is_none() {
        for (visible, count) in
            [("0,1, 2", 3), ("GPU-8932f937,GPU-12", 2), ("", 0), ("-1", 0), ("3,-1,4", 1), ("0,", 1)]
        {
            assert_eq!(listed(OsStr::new(visible)), count, "{visible}");
        }
    }

    #[test]
    fn workers_take_the_gpus_in_turn() {
        // Two trainers, then seven samplers on four GPUs.
        let of =
            |first, workers: u32| (0..workers).map(|number| of_worker(first, number, 4)).collect::<Vec<_>>();
        assert_eq!(of(0, 2), [Some(0), Some(1)]);
        assert_eq!(of(2, 7), [2, 3, 0, 1, 2, 3, 0].map(Some));
        assert_eq!([of_worker(1, 5, 1), of_worker(0, 0, 0)], [None, None]);
    }
}
