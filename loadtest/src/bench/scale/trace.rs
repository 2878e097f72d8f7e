//! A replayed trace of a spot market: how many instances it left, and when.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// Instances at most: more is a mistake in the file.
const MOST: u32 = 256;

/// Instances over time, from 0 on; times rise.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Trace {
    counts: Vec<(Duration, u32)>,
    lasts: Duration,
}

impl Trace {
    /// The part of the file at `path` from `from` to `to`. Its lines are `seconds,instances`, or begin
    /// with `#`; of several with one time the last counts.
    ///
    /// # Errors
    /// It cannot be read, a line is of another form, times fall, or the part is empty.
    pub(super) fn read(path: &Path, from: Duration, to: Duration) -> anyhow::Result<Self> {
        let fail = || format!("failed to read the trace path={}", path.display());
        let text = std::fs::read_to_string(path).with_context(fail)?;
        Self::parse(&text, from, to).with_context(fail)
    }

    fn parse(text: &str, from: Duration, to: Duration) -> anyhow::Result<Self> {
        ensure!(from < to, "from={} is not before to={}", from.as_secs(), to.as_secs());
        let mut all: Vec<(Duration, u32)> = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
            let (at, count) = entry(line)
                .with_context(|| format!("line {}: {line:?} is not seconds,instances", number + 1))?;
            match all.last_mut() {
                Some((last, _)) if *last > at => bail!("line {}: times fall", number + 1),
                Some((last, before)) if *last == at => *before = count,
                _ => all.push((at, count)),
            }
        }
        let before = all.iter().rev().find(|(at, _)| *at <= from).map_or(0, |(_, count)| *count);
        let within = all.into_iter().filter(|(at, _)| *at > from && *at < to);
        let counts: Vec<_> = std::iter::once((Duration::ZERO, before))
            .chain(within.map(|(at, count)| (at - from, count)))
            .collect();
        ensure!(counts.iter().any(|(_, count)| *count > 0), "it has no instance in this part");
        Ok(Self { counts, lasts: to - from })
    }

    /// The most instances all the while, a quarter as long: the market takes none.
    pub(super) fn undisturbed(&self) -> Self {
        Self { counts: vec![(Duration::ZERO, self.most())], lasts: self.lasts / 4 }
    }

    /// The most instances at once.
    pub(super) fn most(&self) -> u32 {
        self.counts.iter().map(|(_, count)| *count).max().unwrap_or(0)
    }

    pub(super) const fn lasts(&self) -> Duration {
        self.lasts
    }

    /// Instances over time.
    pub(super) fn counts(&self) -> &[(Duration, u32)] {
        &self.counts
    }

    /// Instances that the market takes.
    pub(super) fn taken(&self) -> u32 {
        self.counts.windows(2).map(|pair| pair[0].1.saturating_sub(pair[1].1)).sum()
    }
}

fn entry(line: &str) -> Option<(Duration, u32)> {
    let (at, count) = line.split_once(',')?;
    let count = count.trim().parse().ok().filter(|count| *count <= MOST)?;
    Some((Duration::try_from_secs_f64(at.trim().parse().ok()?).ok()?, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_part_of_a_trace_begins_with_the_count_before_it() {
        let text = "# a market\n0,0\n10,0\n10,4\n20,4\n20,1\n30,3\n40,2\n";
        let trace = Trace::parse(text, s(15), s(35)).unwrap();
        assert_eq!(trace.counts(), [(s(0), 4), (s(5), 1), (s(15), 3)]);
        assert_eq!((trace.most(), trace.taken(), trace.lasts()), (4, 3, s(20)));
        let undisturbed = trace.undisturbed();
        assert_eq!((undisturbed.counts(), undisturbed.lasts()), (&[(s(0), 4)][..], s(5)));
    }

    #[test]
    fn a_file_that_is_no_trace_is_refused_by_its_line() {
        for (text, says) in [
            ("0,1\nmany,2\n", "line 2"),
            ("0,1\n5\n", "line 2"),
            ("0,1\n5,-1\n", "line 2"),
            ("0,1\n5,1000000\n", "line 2"),
            ("-1,1\n", "line 1"),
            ("9,1\n5,2\n", "times fall"),
            ("0,0\n9,0\n", "no instance"),
            ("", "no instance"),
        ] {
            let error = Trace::parse(text, s(0), s(10)).unwrap_err();
            assert!(format!("{error:#}").contains(says), "{text:?}: {error:#}");
        }
        assert!(Trace::parse("0,1\n", s(10), s(10)).is_err());
    }

    #[test]
    fn the_shipped_trace_is_read() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/spot-g4dn-xlarge.csv");
        let trace = Trace::read(file.as_ref(), s(37_502), s(45_668)).unwrap();
        assert_eq!(trace.most(), 12);
        assert!(trace.taken() > 30, "{}", trace.taken());
    }
}
