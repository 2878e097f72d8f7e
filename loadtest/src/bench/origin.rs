//! Of what and where figures are.

use std::process::Command;

use super::cores;

/// The command, the commit and the machine, in one line.
pub(crate) fn origin() -> String {
    let command: Vec<String> = std::env::args().skip(1).collect();
    format!(
        "`millrace-loadtest {}` at {}, on {} cores ({}, {} of memory)",
        command.join(" "),
        commit().unwrap_or_else(|| "an unknown commit".to_owned()),
        cores(),
        line_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "an unknown processor".to_owned()),
        line_of("/proc/meminfo", "MemTotal").unwrap_or_else(|| "unknown size".to_owned()),
    )
}

/// Processes that ran or waited for a processor, as a mean of the last minute.
pub(crate) fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|mean| mean.parse().ok()).unwrap_or(f64::NAN)
}

/// The commit of the folder that this runs in.
pub(crate) fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    // The pages that `results` writes are no change of the program.
    let others = ["--", ":/", ":!/loadtest/results"];
    let changed =
        !git(&[&["status", "--porcelain", "--untracked-files=no"][..], &others].concat())?.is_empty();
    Some(if changed { format!("{commit} with changes") } else { commit })
}

/// The value of `name` in a line of `path`.
fn line_of(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let (_, value) = text.lines().find(|line| line.starts_with(name))?.split_once(':')?;
    Some(value.trim().to_owned())
}
