//! Processor time of a process, from `/proc`.

use std::path::PathBuf;
use std::time::Duration;

/// Kernel ticks of processor time are counted in hundredths of a second on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time that a process has used, in user and kernel mode.
///
/// # Errors
/// There is no such process, or no `/proc`.
pub fn used(pid: u32) -> std::io::Result<Duration> {
    let stat = std::fs::read_to_string(PathBuf::from(format!("/proc/{pid}/stat")))?;
    // The second field is the command in brackets and may hold spaces.
    let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
    let field = |n: usize| after.split(' ').nth(n).and_then(|ticks| ticks.parse::<f64>().ok());
    match (field(11), field(12)) {
        (Some(user), Some(system)) => Ok(Duration::from_secs_f64((user + system) / TICKS_PER_SECOND)),
        _ => Err(std::io::Error::other(format!("/proc/{pid}/stat has no times"))),
    }
}
