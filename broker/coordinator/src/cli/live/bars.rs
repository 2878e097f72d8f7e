//! Bars on a terminal.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use millrace_schemas::api::RunState;

use super::{Frame, View, rollout_words};
use crate::cli::term::{by_reason, duration, histogram, percent, thousands};

/// The lines below the bar, in order.
const LABELS: [&str; 7] = ["success", "rollouts", "dropped", "window", "staleness", "speed", "busy"];

/// A bar of steps and lines below it, drawn anew with each frame.
pub(super) struct Bars {
    all: MultiProgress,
    steps: ProgressBar,
    lines: Vec<ProgressBar>,
}

impl Bars {
    pub(super) fn new() -> Self {
        let all = MultiProgress::new();
        let steps = all.add(ProgressBar::new(0));
        steps.set_style(style("{prefix:<10} {bar:40.cyan/blue} {pos}/{len} steps  {msg}"));
        let lines = LABELS.iter().map(|label| {
            let line = all.add(ProgressBar::new(0));
            line.set_style(style("  {prefix:<10.dim} {msg}"));
            line.set_prefix(*label);
            line
        });
        Self { lines: lines.collect(), steps, all }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant").progress_chars("━╸ ")
}

/// A bar for each staleness.
fn staleness_words(frame: &Frame) -> String {
    let counts = &frame.status.staleness;
    let most = counts.iter().rposition(|n| *n > 0).unwrap_or(0);
    let bars: String = histogram_bars(counts);
    format!("{}{bars}  (most {most}, bound {})", histogram(counts), frame.status.alpha.ceil())
}

fn histogram_bars(counts: &[u64]) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let top = counts.iter().copied().max().unwrap_or(0);
    let bars = counts.iter().take(16).map(|n| LEVELS[(n * 7).checked_div(top).unwrap_or(0) as usize]);
    if top == 0 { String::new() } else { format!("  {}", bars.collect::<String>()) }
}

impl View for Bars {
    fn event(&mut self, line: &str) {
        // A terminal that has gone away is no reason to stop.
        let _ = self.all.println(line);
    }

    fn frame(&mut self, frame: &Frame) {
        let status = &frame.status;
        self.steps.set_prefix(status.run.to_string());
        self.steps.set_length(status.steps);
        self.steps.set_position(status.version.0);
        self.steps.set_message(match (status.state, frame.eta_s()) {
            (RunState::Running, Some(s)) => format!("{} left", duration(s)),
            (state, _) => state.name().to_owned(),
        });
        let success = match (frame.success(), status.curve.last()) {
            (Some((last, mean)), Some(point)) => {
                format!("{} last step, {} mean  (reward {:.3})", percent(last), percent(mean), point.reward)
            }
            _ => "-".into(),
        };
        let window = format!(
            "{} groups in flight + {} ready, of {}",
            status.groups_in_flight, status.groups_ready, status.window_groups
        );
        let restarts = frame.restarts.map_or(String::new(), |n| format!("  restarts {n}"));
        let lines = [
            success,
            rollout_words(status),
            by_reason(&status.ledger.dropped),
            window,
            staleness_words(frame),
            format!("{} tokens/s", thousands(frame.tokens_per_s as u64)),
            format!("{}{restarts}", frame.busy_words()),
        ];
        for (line, words) in self.lines.iter().zip(lines) {
            line.set_message(words);
        }
    }

    fn finish(&mut self) {
        self.steps.abandon();
        self.lines.iter().for_each(ProgressBar::abandon);
    }
}
