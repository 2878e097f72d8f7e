//! Plain lines, for logs and pipes.

use std::time::Duration;

use tokio::time::Instant;

use super::{Frame, View, rollout_words};
use crate::term::{by_reason, duration, histogram, percent, say, thousands};

/// Minimal time between two lines.
const BETWEEN: Duration = Duration::from_secs(2);

/// A line for each step, and not more than one every two seconds.
pub(super) struct Lines {
    shown: Option<(Instant, u64)>,
    waiting: Option<String>,
}

impl Lines {
    pub(super) const fn new() -> Self {
        Self { shown: None, waiting: None }
    }
}

fn line(frame: &Frame) -> String {
    let status = &frame.status;
    let success = frame
        .success()
        .map_or("-".into(), |(last, mean)| format!("{} (mean {})", percent(last), percent(mean)));
    let mut words = vec![
        format!("step {}/{}", status.version.0, status.steps),
        format!("success {success}"),
        format!("{} tokens/s", thousands(frame.tokens_per_s as u64)),
        rollout_words(status),
        format!("window {}/{}", status.groups_in_flight + status.groups_ready, status.window_groups),
        format!("staleness {}", histogram(&status.staleness)),
        format!("dropped {}", by_reason(&status.ledger.dropped)),
        format!("busy {}", frame.busy_words()),
    ];
    words.extend(frame.restarts.filter(|n| *n > 0).map(|n| format!("restarts {n}")));
    words.extend(frame.eta_s().map(|s| format!("{} left", duration(s))));
    words.join(" | ")
}

impl View for Lines {
    fn event(&mut self, line: &str) {
        // A pending line is printed before the event.
        self.finish();
        say(line);
    }

    fn frame(&mut self, frame: &Frame) {
        let (now, version) = (Instant::now(), frame.status.version.0);
        let (due, new) = match self.shown {
            None => (true, version > 0),
            Some((at, shown)) => (now - at >= BETWEEN, version > shown),
        };
        if new && due {
            self.shown = Some((now, version));
            self.waiting = None;
            say(line(frame));
        } else if new {
            self.waiting = Some(line(frame));
        }
    }

    fn finish(&mut self) {
        if let Some(last) = self.waiting.take() {
            say(last);
        }
    }
}
