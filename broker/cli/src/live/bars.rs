//! Bars on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_schemas::api::RunState;

use super::{Frame, View, rollout_words};
use crate::term::{by_reason, duration, histogram, percent, thousands};

/// Maximal frames per second.
const FRAME_RATE: u8 = 4;

/// A bar of steps and lines below it, redrawn with each frame.
pub(super) struct Bars(ProgressBar);

impl Bars {
    pub(super) fn new() -> Self {
        let target = ProgressDrawTarget::stdout_with_hz(FRAME_RATE);
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{prefix} {bar:40.cyan/blue} {pos}/{len} steps  {msg}");
        bar.set_style(style.expect("the template is a constant").progress_chars("━╸ "));
        Self(bar)
    }
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

/// The text beside and below the bar.
fn words(frame: &Frame) -> String {
    let status = &frame.status;
    let state = match (status.state, frame.eta_s()) {
        (RunState::Running, Some(s)) => format!("{} left", duration(s)),
        (state, _) => state.name().to_owned(),
    };
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
        ("success", success),
        ("rollouts", rollout_words(status)),
        ("dropped", by_reason(&status.ledger.dropped)),
        ("window", window),
        ("staleness", staleness_words(frame)),
        ("speed", format!("{} tokens/s", thousands(frame.tokens_per_s as u64))),
        ("busy", format!("{}{restarts}", frame.busy_words())),
    ];
    lines.iter().fold(state, |all, (label, words)| format!("{all}\n  {label:<10} {words}"))
}

impl View for Bars {
    fn event(&mut self, line: &str) {
        self.0.println(line);
    }

    fn frame(&mut self, frame: &Frame) {
        self.0.set_prefix(frame.status.run.to_string());
        self.0.set_length(frame.status.steps);
        self.0.set_position(frame.status.version.0);
        self.0.set_message(words(frame));
    }

    fn finish(&mut self) {
        self.0.abandon();
    }
}
