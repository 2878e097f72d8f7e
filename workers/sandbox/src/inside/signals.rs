//! Signals that the process which started us ignores, or holds back. Programs would inherit that: in a service
//! that a script started in the background, `^C` in a sandbox's terminal would do nothing.

use anyhow::Context;
use nix::sys::signal::SigSet;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Has the signals that are ignored, one bit for each from signal 1.
const STATUS: &str = "/proc/self/status";
/// Faults, and what cannot be ignored: nobody may handle these.
const FAULTS: [i32; 5] = [4, 8, 9, 11, 19];
/// Programs of Rust ignore it themselves; their standard library gives it back to what they start.
const PIPE: i32 = 13;

/// Gives all programs that follow from this process the defaults. `exec` resets a signal that is handled, and
/// not one that is ignored; it keeps what this thread holds back. This process still does nothing about the
/// ignored ones.
///
/// # Errors
/// They are not known, or cannot be handled.
pub(crate) fn give_back() -> anyhow::Result<()> {
    SigSet::empty().thread_set_mask().context("failed to let signals in")?;
    let status = std::fs::read_to_string(STATUS).with_context(|| format!("failed to read {STATUS}"))?;
    let ignored = ignored(&status);
    if ignored.is_empty() {
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    // Handlers stay when their listeners go.
    for number in ignored {
        let listener = signal(SignalKind::from_raw(number));
        drop(listener.with_context(|| format!("failed to handle signal {number}"))?);
    }
    Ok(())
}

fn ignored(status: &str) -> Vec<i32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    let is_ignored = |number: &i32| mask >> (number - 1) & 1 == 1;
    (1..=31).filter(|number| is_ignored(number) && *number != PIPE && !FAULTS.contains(number)).collect()
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::*;

    #[test]
    fn a_signal_that_the_starting_process_held_back_is_let_in() {
        SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]).thread_block().unwrap();
        give_back().unwrap();
        assert_eq!(SigSet::thread_get_mask().unwrap().iter().count(), 0);
    }

    #[test]
    fn ignored_signals_are_read_from_the_kernels_mask() {
        assert_eq!(ignored("SigBlk:\t0000000000000007\nSigIgn:\t0000000000001007\n"), [1, 2, 3]);
        assert_eq!(ignored("SigIgn:\tffffffffffffffff\n").len(), 25);
        assert!(ignored("SigIgn:\t0000000000001000\n").is_empty() && ignored("").is_empty());
    }
}
