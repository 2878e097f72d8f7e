//! Spans of what the fold reports: a rollout is admitted, trained, dropped; a step begins, a version
//! is committed. Each is a moment in the log, so its span has no length. Workers report the tasks
//! in between, by ids that follow from the same names.
//!
//! The leader reports each event once, when it folds it. What it folded and had not sent when it
//! was killed is lost. Between two leaders nobody reports; so a new leader also reports the events
//! after the last entry that a former leader wrote, at most a tick and the time without a leader.

use std::collections::VecDeque;

use millrace_queue::Trace;
use millrace_schemas::{RolloutId, RunId};
use millrace_telemetry::Tracer;
use millrace_telemetry::spans::{KeyValue, Span, SpanKind, SpanRef, attribute};

use crate::fold::milestone::Milestone;

/// Events without a leader that are kept for the next one, at most. The oldest are given up.
const MAX_UNREPORTED: usize = 4_096;

/// What one event reports.
#[derive(Debug)]
pub struct Report {
    /// When the event was stored, in nanoseconds of the server's clock.
    pub stored_ns: u64,
    /// The run.
    pub run: RunId,
    /// What happened, in order.
    pub milestones: Vec<Milestone>,
}

/// The spans of a coordinator.
#[derive(Debug)]
pub struct Traces {
    tracer: Tracer,
    unreported: VecDeque<Report>,
}

impl Traces {
    /// Reports to `tracer`.
    #[must_use]
    pub const fn new(tracer: Tracer) -> Self {
        Self { tracer, unreported: VecDeque::new() }
    }

    /// Takes in the epoch of an entry's writer; `None` for a worker or a client. If it was another
    /// leader than `own`, that one reports what precedes the entry.
    pub fn follow(&mut self, writer: Option<u64>, own: u64) {
        if writer.is_some_and(|writer| writer != own) {
            self.unreported.clear();
        }
    }

    /// Whether anything is reported.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.tracer.is_on()
    }

    /// Keeps what an event reports until it is sent.
    pub fn add(&mut self, report: Report) {
        if self.unreported.len() >= MAX_UNREPORTED {
            self.unreported.pop_front();
        }
        self.unreported.push_back(report);
    }

    /// Sends what is kept. Only the leader does.
    pub fn send(&mut self) {
        for Report { stored_ns, run, milestones } in std::mem::take(&mut self.unreported) {
            for span in milestones.iter().filter_map(|milestone| self.span(&run, milestone)) {
                self.tracer.record(Span { start_ns: stored_ns, end_ns: stored_ns, ..span });
            }
        }
    }

    /// The span of a milestone; `None` if its trace is not sampled.
    fn span(&self, run: &RunId, milestone: &Milestone) -> Option<Span> {
        let of_rollout = |rollout: &RolloutId| {
            let trace = Trace::of_rollout(run, *rollout);
            self.tracer.samples(trace.id).then_some(trace)
        };
        let mut span = match milestone {
            Milestone::Admitted { rollout, version, evaluate } => {
                let before = rollout.attempt.checked_sub(1).map(|attempt| RolloutId { attempt, ..*rollout });
                let before = before.and_then(|before| of_rollout(&before)).map(root);
                let attributes = vec![
                    KeyValue::new(attribute::ROLLOUT, rollout.to_string()),
                    KeyValue::new(attribute::VERSION, version.0 as i64),
                    KeyValue::new(attribute::EVALUATE, *evaluate),
                ];
                Span {
                    links: before.into_iter().collect(),
                    ..first(of_rollout(rollout)?, "rollout", attributes)
                }
            }
            Milestone::Dropped { rollout, reason, busy_us } => {
                let attributes = vec![
                    KeyValue::new(attribute::REASON, *reason),
                    KeyValue::new(attribute::BUSY_MS, *busy_us as f64 / 1_000.0),
                ];
                under(of_rollout(rollout)?, "dropped", attributes)
            }
            Milestone::Evaluated { rollout, version, success } => {
                let attributes = vec![
                    KeyValue::new(attribute::VERSION, version.0 as i64),
                    KeyValue::new("millrace.success", *success),
                ];
                under(of_rollout(rollout)?, "evaluated", attributes)
            }
            Milestone::Trained { rollout, made, staleness } => {
                let attributes = vec![
                    KeyValue::new(attribute::VERSION, made.0 as i64),
                    KeyValue::new("millrace.staleness", *staleness as i64),
                ];
                let step = vec![root(Trace::of_version(run, *made))];
                Span { links: step, ..under(of_rollout(rollout)?, "trained", attributes) }
            }
            // There is one step for many rollouts: it is recorded for those that are sampled.
            Milestone::Cut { makes, rollouts } => {
                let attributes = vec![
                    KeyValue::new(attribute::VERSION, makes.0 as i64),
                    KeyValue::new("millrace.rollouts", rollouts.len() as i64),
                ];
                let links = rollouts.iter().filter_map(of_rollout).map(root).collect();
                Span { links, ..first(Trace::of_version(run, *makes), "step", attributes) }
            }
            Milestone::Committed { version } => {
                let attributes = vec![KeyValue::new(attribute::VERSION, version.0 as i64)];
                under(Trace::of_version(run, *version), "committed", attributes)
            }
        };
        span.attributes.push(KeyValue::new(attribute::RUN, run.to_string()));
        Some(span)
    }
}

fn root(trace: Trace) -> SpanRef {
    SpanRef { trace_id: trace.id, span_id: trace.root() }
}

/// The root of a trace.
fn first(trace: Trace, name: &'static str, attributes: Vec<KeyValue>) -> Span {
    Span {
        at: root(trace),
        parent: None,
        name: name.into(),
        kind: SpanKind::Internal,
        start_ns: 0,
        end_ns: 0,
        attributes,
        links: Vec::new(),
        error: None,
    }
}

/// A span below the root. A trace has one of each name.
fn under(trace: Trace, name: &'static str, attributes: Vec<KeyValue>) -> Span {
    let at = SpanRef { trace_id: trace.id, span_id: trace.span(name) };
    Span { at, parent: Some(trace.root()), ..first(trace, name, attributes) }
}
