//! All that came of one process, as `/proc` has it.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use nix::poll::{PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Looks at a tree that is to end and has more processes than the last, at most. One that makes
/// processes faster than they are killed has to be killed with everything else.
const ROUNDS: usize = 200;
/// What was killed or stopped ends or stands within this time, unless the kernel itself holds it.
const ENDING: Duration = Duration::from_secs(1);

/// The children of all threads of a process. Empty where it has ended.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lines = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lines
        .flat_map(|line| line.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<i32>>())
        .collect()
}

/// All that came of a process and has not ended, parents first.
fn descendants(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut open = children(pid);
    while let Some(next) = open.pop() {
        open.extend(children(next));
        if !has_ended(next) {
            found.push(next);
        }
    }
    found
}

/// Whether a process is in one of these states, as `/proc` writes them, or not there.
fn is_in(pid: i32, states: &[char]) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything, also what is no text.
    String::from_utf8_lossy(&stat).rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(states))
}

/// Whether a process has ended and waits for its parent to see it.
fn has_ended(pid: i32) -> bool {
    is_in(pid, &['Z', 'X'])
}

/// Waits until all that came of a process has ended. A process in the midst of a system call that cannot be
/// interrupted is not waited for longer than [`ENDING`].
pub(crate) fn wait_for_end_of_all_below(pid: i32) {
    wait(|| descendants(pid).is_empty());
}

/// The same until all of it is stopped.
pub(crate) fn wait_for_stop_of_all_below(pid: i32) {
    wait(|| descendants(pid).into_iter().all(|pid| is_in(pid, &['T', 't', 'Z', 'X'])));
}

fn wait(is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() && since.elapsed() < ENDING {
        pause();
    }
}

/// A millisecond: nothing is waited for.
fn pause() {
    let _ = poll(&mut [], PollTimeout::from(1_u8));
}

/// Kills a process and all that came of it. The process is stopped first: as long as it is there,
/// what its descendants leave comes to it and not elsewhere. Returns whether nothing of it can go on:
/// it has ended, or was killed and takes longer than [`ENDING`] for that.
pub(crate) fn kill_all_of(pid: i32) -> bool {
    // One that has ended meanwhile needs no signal.
    let send = |pid: i32, signal| {
        let _ = kill(Pid::from_raw(pid), signal);
    };
    send(pid, Signal::SIGSTOP);
    let (mut known, mut rounds, mut since) = (BTreeSet::new(), 0, Instant::now());
    let all_killed = loop {
        let found = descendants(pid);
        if found.is_empty() {
            break true;
        }
        // Stopped ones start no more; then they go.
        found.iter().for_each(|pid| send(*pid, Signal::SIGSTOP));
        found.iter().for_each(|pid| send(*pid, Signal::SIGKILL));
        let before = known.len();
        known.extend(found);
        let has_more = known.len() > before;
        if has_more {
            if rounds == ROUNDS {
                break false;
            }
            (rounds, since) = (rounds + 1, Instant::now());
        } else if since.elapsed() > ENDING {
            break true;
        } else {
            // A busy machine, and much memory, make an end take a while.
            pause();
        }
    };
    send(pid, Signal::SIGKILL);
    all_killed
}
