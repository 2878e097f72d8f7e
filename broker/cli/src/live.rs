//! The live view of a run: bars on a terminal, lines elsewhere.

use std::collections::VecDeque;
use std::time::Duration;

use millrace_schemas::api::{CurvePoint, Evaluation, RunState, Status};
use tokio::time::Instant;

use super::curve::{mean_window, moving_mean};
use super::term::thousands;

mod bars;
mod lines;

/// Time over which the token rate is averaged.
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// Points of the curve from which the time left is estimated.
const ETA_POINTS: usize = 20;

/// A snapshot of a run for the view.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    /// The status that the coordinator reports.
    pub(super) status: Status,
    /// Recent token rate, per second.
    pub(super) tokens_per_s: f64,
    /// Share of time that generate workers were busy since watching began.
    pub(super) generate_busy: Option<f64>,
    /// The same of train workers.
    pub(super) train_busy: Option<f64>,
    /// Restarts of processes; `None` if another program supervises them.
    pub(super) restarts: Option<u64>,
}

/// Where frames and events are shown.
pub(super) trait View: Send {
    /// Shows an event that should stay visible.
    fn event(&mut self, line: &str);
    /// Shows the current state of the run.
    fn frame(&mut self, frame: &Frame);
    /// Ends the view.
    fn finish(&mut self);
}

/// Bars on a terminal, lines elsewhere.
pub(super) fn view() -> Box<dyn View> {
    if super::term::is_terminal() { Box::new(bars::Bars::new()) } else { Box::new(lines::Lines::new()) }
}

impl Frame {
    /// Success of the last step's batch, and the mean over recent steps.
    fn success(&self) -> Option<(f64, f64)> {
        let values: Vec<f64> = self.status.curve.iter().map(|point| point.success).collect();
        let mean = moving_mean(&values, mean_window(self.status.steps));
        Some((*values.last()?, *mean.last()?))
    }

    /// Seconds until the last step, at the mean pace of recent steps; `None` before there is a
    /// pace, and at the end. The slowest tenth is left out: a step during which the run was stopped
    /// overnight is not representative. The median would be wrong for steps shorter than a tick,
    /// because the log's time advances by ticks.
    fn eta_s(&self) -> Option<f64> {
        let curve = &self.status.curve;
        let lately = curve.get(curve.len().saturating_sub(ETA_POINTS)..)?;
        let pace = |pair: &[CurvePoint]| {
            let steps = pair[1].version.saturating_sub(pair[0].version).max(1);
            pair[1].at_ms.saturating_sub(pair[0].at_ms) as f64 / 1e3 / steps as f64
        };
        let mut paces: Vec<f64> = lately.windows(2).map(pace).collect();
        paces.sort_by(f64::total_cmp);
        paces.truncate(paces.len() - paces.len().div_ceil(10));
        let per_step = paces.iter().sum::<f64>() / paces.len().max(1) as f64;
        let left = per_step * self.status.steps.saturating_sub(curve.last()?.version) as f64;
        (left > 0.0).then_some(left)
    }

    fn busy_words(&self) -> String {
        let word = |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.0} %", 100.0 * share));
        format!("generate {}  train {}", word(self.generate_busy), word(self.train_busy))
    }
}

/// Turns statuses, two per second, into events and a token rate. Pure: it reads no clock.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Held-out prompts of each evaluation; `None` where the run file is not known.
    prompts: Option<u32>,
    last: Option<(RunState, usize)>,
    tokens: VecDeque<(Instant, u64)>,
}

impl Changes {
    /// No status seen yet.
    pub(super) fn new(prompts: Option<u32>) -> Self {
        Self { prompts, ..Self::default() }
    }

    /// Events since the last status, as text.
    pub(super) fn events(&mut self, status: &Status) -> Vec<String> {
        let (before, mut known) = self.last.unwrap_or((RunState::Starting, 0));
        let first = self.last.is_none();
        self.last = Some((status.state, status.evaluations.len()));
        let mut events = vec![];
        if first && status.state == RunState::Starting {
            events.push("making the initial model, v0".to_owned());
        }
        if first && status.version.0 > 0 {
            let newest = status.evaluations.last().map_or(String::new(), |e| format!("; {}", solved(e)));
            events.push(format!("resumes at {}{newest}", status.version));
            known = status.evaluations.len();
        }
        events.extend(status.evaluations.iter().skip(known).map(solved));
        if status.state != before {
            match status.state {
                RunState::Starting | RunState::Running | RunState::Finishing
                    if before == RunState::Paused =>
                {
                    events.push("resumed".to_owned());
                }
                RunState::Finishing => {
                    events.push(format!("evaluating {}, the last version", status.version))
                }
                RunState::Running if status.version.0 == 0 && status.evaluations.is_empty() => {
                    events.push(match self.prompts {
                        Some(prompts @ 1..) => {
                            format!("v0 is made; evaluating it on {prompts} held-out prompts")
                        }
                        Some(0) | None => "v0 is made; rollouts start".into(),
                    });
                }
                RunState::Finished | RunState::Cancelled | RunState::Failed | RunState::Paused => {
                    let reason = status.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
                    let remedy = status.remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
                    events.push(format!("{}{reason}{remedy}", status.state.name()));
                }
                RunState::Starting | RunState::Running => {}
            }
        }
        events
    }

    /// Token rate over the last seconds, per second. If turns take longer than that, the rate since
    /// the last but one ended.
    pub(super) fn tokens_per_s(&mut self, now: Instant, status: &Status) -> f64 {
        if self.tokens.back().is_none_or(|(_, tokens)| *tokens != status.counters.sampled_tokens) {
            self.tokens.push_back((now, status.counters.sampled_tokens));
        }
        // The kept samples begin before the averaging time, and before the last increase.
        while self.tokens.len() > 2 && now - self.tokens[1].0 > RATE_WINDOW {
            self.tokens.pop_front();
        }
        let Some((at, tokens)) = self.tokens.front() else { return 0.0 };
        let seconds = (now - *at).as_secs_f64();
        if seconds > 0.0 {
            status.counters.sampled_tokens.saturating_sub(*tokens) as f64 / seconds
        } else {
            0.0
        }
    }
}

/// `v8: 25.0 % of 256 held-out prompts solved (standard error 2.7 %, 250 distinct, temperature 0)`.
fn solved(evaluation: &Evaluation) -> String {
    format!("v{}: {}", evaluation.version, super::evaluation::words(evaluation))
}

/// `12,345 trained, 512 in flight`.
fn rollout_words(status: &Status) -> String {
    format!("{} trained, {} in flight", thousands(status.ledger.trained), thousands(status.ledger.in_flight))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn time_left_follows_the_pace() {
        let status = sample::status(10);
        let mut frame =
            Frame { status, tokens_per_s: 0.0, generate_busy: None, train_busy: None, restarts: None };
        // The sample makes a step a second and has ten times as many to make.
        assert_eq!(frame.eta_s(), Some(90.0));
        for point in &mut frame.status.curve[5..] {
            point.at_ms += 8 * 3_600_000;
        }
        assert_eq!(frame.eta_s(), Some(90.0), "it was stopped for a night");
        // Two steps in each second, by the log's ticks.
        for (point, index) in frame.status.curve.iter_mut().zip(0..) {
            point.at_ms = index / 2 * 1_000;
        }
        let left = frame.eta_s().expect("a pace");
        assert!((30.0..=50.0).contains(&left), "{left}: 90 steps in 45 s");
        frame.status.curve.truncate(1);
        assert_eq!(frame.eta_s(), None);
    }

    #[test]
    fn each_event_is_reported_once() {
        let mut changes = Changes::default();
        let mut status = sample::status(10);
        status.evaluations.truncate(1);
        assert_eq!(
            changes.events(&status),
            [
                "resumes at v10; v0: 4.0 % of 256 held-out prompts solved (standard error 3.1 %, 250 distinct, temperature 0)"
            ]
        );
        assert!(changes.events(&status).is_empty());
        status.state = RunState::Finishing;
        assert_eq!(changes.events(&status), ["evaluating v10, the last version"]);
        status = sample::status(10);
        status.state = RunState::Finished;
        assert_eq!(
            changes.events(&status),
            [
                "v10: 50.0 % of 256 held-out prompts solved (standard error 3.1 %, 250 distinct, temperature 0)",
                "finished"
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_that_of_the_last_seconds() {
        let mut changes = Changes::default();
        let mut status = sample::status(1);
        for second in 0..20 {
            status.counters.sampled_tokens = if second < 10 { 0 } else { 1_000 * (second - 10) };
            let rate = changes.tokens_per_s(Instant::now(), &status);
            if second == 19 {
                assert!((rate - 1_000.0).abs() < 1.0, "{rate}");
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_of_a_slow_run_is_that_of_its_turns() {
        let mut changes = Changes::default();
        let mut status = sample::status(1);
        for second in 0..600 {
            // A batch of turns ends every minute.
            status.counters.sampled_tokens = 6_000 * (second / 60);
            let rate = changes.tokens_per_s(Instant::now(), &status);
            if second > 120 {
                assert!((50.0..=100.0).contains(&rate), "{second}: {rate}");
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }
}
