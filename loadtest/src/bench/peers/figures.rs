//! The figures, each a median with its range, and the goals.

use serde::Serialize;

use super::{Args, Sample};
use crate::bench::{cores, median};

/// How many times as many tasks as Ray.
const GOAL_TASKS: f64 = 10.0;
/// Ray's latency over ours.
const GOAL_LATENCY: f64 = 5.0;

/// A median, and the least and the most.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.collect();
        let least = values.iter().copied().min_by(f64::total_cmp)?;
        let most = values.iter().copied().max_by(f64::total_cmp)?;
        Some(Self { median: median(values), least, most })
    }

    fn text(of: Option<Self>, digits: usize) -> String {
        of.map_or("–".to_owned(), |Self { median, least, most }| {
            format!("{median:.digits$} ({least:.digits$} to {most:.digits$})")
        })
    }
}

/// A system.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: &'static str,
    title: &'static str,
    durable: &'static str,
    /// Why it was not measured.
    pub(super) missing: Option<String>,
    #[serde(skip)]
    pub(super) samples: Vec<Sample>,
    tasks_per_s: Option<Spread>,
    lone_p50_ms: Option<Spread>,
    lone_p99_ms: Option<Spread>,
    chain_per_s: Option<Spread>,
}

/// How ours compares with a peer, in the same rounds.
#[derive(Debug, Serialize)]
struct Ratio {
    ours: &'static str,
    peer: &'static str,
    /// Our tasks a second over the peer's.
    tasks: Option<Spread>,
    /// The peer's median latency over ours.
    latency: Option<Spread>,
    /// Our chained rollouts a second over the peer's.
    chain: Option<Spread>,
}

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    seconds: f64,
    rounds: u32,
    in_flight: u32,
    cores: usize,
    /// Load average at the end of each round.
    load: Vec<f64>,
    rows: Vec<Row>,
    ratios: Vec<Ratio>,
}

impl Row {
    pub(super) const fn new(
        name: &'static str,
        title: &'static str,
        durable: &'static str,
        missing: Option<String>,
    ) -> Self {
        Self {
            name,
            title,
            durable,
            missing,
            samples: Vec::new(),
            tasks_per_s: None,
            lone_p50_ms: None,
            lone_p99_ms: None,
            chain_per_s: None,
        }
    }

    fn sum_up(&mut self) {
        let of = |what: fn(&Sample) -> f64| Spread::of(self.samples.iter().map(what));
        let (tasks, p50, p99) = (of(|s| s.tasks_per_s), of(|s| s.p50_us / 1e3), of(|s| s.p99_us / 1e3));
        let chain = Spread::of(self.samples.iter().filter_map(|s| s.chain_per_s));
        (self.tasks_per_s, self.lone_p50_ms, self.lone_p99_ms, self.chain_per_s) = (tasks, p50, p99, chain);
    }

    fn line(&self) -> String {
        let Self { title, durable, .. } = self;
        if let Some(missing) = &self.missing {
            return format!("| {title} | {durable} | **NOT MEASURED: {missing}** | – | – | – |\n");
        }
        let numbers = [
            Spread::text(self.tasks_per_s, 0),
            Spread::text(self.lone_p50_ms, 2),
            Spread::text(self.lone_p99_ms, 2),
            Spread::text(self.chain_per_s, 0),
        ];
        format!("| {title} | {durable} | {} |\n", numbers.join(" | "))
    }
}

impl Ratio {
    fn of(ours: &Row, peer: &Row) -> Self {
        let pairs = || ours.samples.iter().zip(&peer.samples);
        Self {
            ours: ours.name,
            peer: peer.name,
            tasks: Spread::of(pairs().map(|(o, p)| o.tasks_per_s / p.tasks_per_s)),
            latency: Spread::of(pairs().map(|(o, p)| p.p50_us / o.p50_us)),
            chain: Spread::of(pairs().filter_map(|(o, p)| Some(o.chain_per_s? / p.chain_per_s?))),
        }
    }

    fn line(&self) -> String {
        let goal = |of: Option<Spread>, goal: f64| match of {
            Some(Spread { median, .. }) if self.peer.starts_with("ray") => {
                if median >= goal {
                    format!(", goal {goal}: reached")
                } else {
                    format!(", goal {goal}: **missed**")
                }
            }
            _ => String::new(),
        };
        format!(
            "| {} over {} | {}{} | {}{} | {} |\n",
            self.ours,
            self.peer,
            Spread::text(self.tasks, 1),
            goal(self.tasks, GOAL_TASKS),
            Spread::text(self.latency, 1),
            goal(self.latency, GOAL_LATENCY),
            Spread::text(self.chain, 1),
        )
    }
}

impl Figures {
    pub(super) fn of(mut rows: Vec<Row>, load: Vec<f64>, args: &Args) -> Self {
        rows.iter_mut().for_each(Row::sum_up);
        let is_ours = |row: &&Row| row.name.starts_with("millrace");
        let all = &rows;
        let pairs = all.iter().filter(is_ours).flat_map(|ours| {
            all.iter().filter(|row| !is_ours(row) && row.missing.is_none()).map(move |peer| (ours, peer))
        });
        let ratios = pairs.map(|(ours, peer)| Ratio::of(ours, peer)).collect();
        let Args { seconds, rounds, in_flight, .. } = *args;
        Self { seconds, rounds, in_flight, cores: cores(), load, rows, ratios }
    }

    pub(super) fn table(&self) -> String {
        let Self { seconds, rounds, in_flight, load, .. } = self;
        let load: Vec<String> = load.iter().map(|load| format!("{load:.1}")).collect();
        let mut text = format!(
            "Medians (and ranges) of {rounds} rounds in turn, {seconds} s a measurement, {in_flight} tasks in flight. \
             Load average after each round: {}.\n\n\
             | | what survives what | tasks/s | a lone task, ms, median | 99th percentile | three-stage rollouts/s |\n\
             |---|---|---|---|---|---|\n",
            load.join(", ")
        );
        text.extend(self.rows.iter().map(Row::line));
        if !self.ratios.is_empty() {
            text += "\n| in the same rounds | times as many tasks/s | a lone task, times as fast | times as many rollouts/s |\n\
                     |---|---|---|---|\n";
            text.extend(self.ratios.iter().map(Ratio::line));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, tasks: &[f64]) -> Row {
        let mut row = Row::new(name, name, "", None);
        let sample =
            |tasks_per_s: &f64| Sample { tasks_per_s: *tasks_per_s, p50_us: 1e3, ..Sample::default() };
        row.samples = tasks.iter().map(sample).collect();
        row
    }

    /// A round under load slows both, so the ratio is taken in each round.
    #[test]
    fn ratios_are_medians_of_ratios_in_the_same_round() {
        let ratio = Ratio::of(&row("millrace", &[100.0, 10.0, 90.0]), &row("ray-tasks", &[10.0, 1.0, 10.0]));
        assert_eq!(ratio.tasks.map(|spread| (spread.median, spread.least)), Some((10.0, 9.0)));
        assert!(ratio.line().contains("goal 10: reached") && ratio.line().contains("goal 5: **missed**"));
    }

    #[test]
    fn a_peer_that_is_missing_says_why_in_its_row() {
        let row = Row::new("ray-tasks", "Ray, tasks", "nothing", Some("not installed: no network".into()));
        assert!(row.line().contains("**NOT MEASURED: not installed: no network**"));
    }
}
