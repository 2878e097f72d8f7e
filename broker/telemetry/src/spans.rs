//! Spans: what a process reports of the traces, one for each rollout and one for each version. The
//! caller derives the ids from names, so that processes agree on them without asking one another.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use opentelemetry::KeyValue;
pub use opentelemetry::trace::SpanKind;
use opentelemetry::trace::{Link, SpanContext, SpanId, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{Array, InstrumentationScope, StringValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::otlp::Exporter;

/// Links of one span, at most: the default limit of OpenTelemetry.
pub const MAX_LINKS: usize = 128;

/// Where a span is: its trace and its id in it. Neither is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanRef {
    /// The trace.
    pub trace_id: u128,
    /// The span.
    pub span_id: u64,
}

/// A span that is over.
#[derive(Debug, Clone)]
pub struct Span {
    /// Its ids.
    pub at: SpanRef,
    /// The span above it in the same trace; `None` for the root.
    pub parent: Option<u64>,
    /// From a small set: a stage, or what happened.
    pub name: Cow<'static, str>,
    /// How it relates to its parent.
    pub kind: SpanKind,
    /// Nanoseconds since 1970.
    pub start_ns: u64,
    /// Nanoseconds since 1970; not before `start_ns`.
    pub end_ns: u64,
    /// Facts for people, by names of OpenTelemetry's conventions where it has one.
    pub attributes: Vec<KeyValue>,
    /// Spans of other traces that it refers to. Those beyond [`MAX_LINKS`] are counted and left out.
    pub links: Vec<SpanRef>,
    /// Why it failed; `None` if it did not.
    pub error: Option<String>,
}

/// Reports spans. Clones share the exporter. The default is off: it samples nothing.
#[derive(Debug, Clone, Default)]
pub struct Tracer(pub(crate) Option<Arc<Exporter>>);

impl Tracer {
    /// A tracer that sends to `exporter`.
    pub(crate) fn new(exporter: Exporter) -> Self {
        Self(Some(Arc::new(exporter)))
    }

    /// Whether traces are recorded at all. Ask before ids are computed.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether this trace is recorded. Processes with the same settings agree.
    #[must_use]
    pub fn samples(&self, trace_id: u128) -> bool {
        self.0.as_ref().is_some_and(|exporter| exporter.samples(TraceId::from(trace_id)))
    }

    /// Reports a span of a trace that is sampled. Never waits: if the queue is full, the span is
    /// counted and dropped.
    pub fn record(&self, span: Span) {
        if let Some(exporter) = &self.0 {
            exporter.push(span.into_data(exporter.scope()));
        }
    }

    /// Sends what is queued, within a few seconds. What is then left is lost, and reported. Spans
    /// after this are lost too.
    pub async fn finish(&self) {
        if let Some(exporter) = self.0.clone() {
            exporter.finish().await;
        }
    }
}

impl Span {
    pub(crate) fn into_data(self, scope: InstrumentationScope) -> SpanData {
        let Self { at, parent, name, kind, start_ns, end_ns, attributes, links, error } = self;
        let mut span_links = SpanLinks::default();
        span_links.dropped_count = links.len().saturating_sub(MAX_LINKS) as u32;
        let links = links.into_iter().take(MAX_LINKS);
        span_links.links.extend(links.map(|to| Link::new(context(to), Vec::new(), 0)));
        SpanData {
            span_context: context(at),
            parent_span_id: parent.map_or(SpanId::INVALID, SpanId::from),
            // Parents are other processes' spans: no process keeps one open.
            parent_span_is_remote: parent.is_some(),
            span_kind: kind,
            name,
            start_time: time(start_ns),
            end_time: time(end_ns.max(start_ns)),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: span_links,
            status: error.map_or(Status::Unset, Status::error),
            instrumentation_scope: scope,
        }
    }
}

/// A sampled span's context.
fn context(SpanRef { trace_id, span_id }: SpanRef) -> SpanContext {
    let (trace, span) = (TraceId::from(trace_id), SpanId::from(span_id));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE)
}

fn time(ns: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(ns)
}

/// Now, in nanoseconds since 1970, by the machine's clock. For spans: nothing is decided by it.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "spans of all processes share a time axis")]
pub fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}

/// An attribute with a list of texts.
#[must_use]
pub fn texts(key: &'static str, values: impl IntoIterator<Item = String>) -> KeyValue {
    let values: Vec<StringValue> = values.into_iter().map(StringValue::from).collect();
    KeyValue::new(key, Value::Array(Array::String(values)))
}

/// An attribute with a list of numbers.
#[must_use]
pub fn numbers(key: &'static str, values: impl IntoIterator<Item = i64>) -> KeyValue {
    KeyValue::new(key, Value::Array(Array::I64(values.into_iter().collect())))
}

/// Names of attributes that OpenTelemetry has no convention for. Its own are spelt where they are
/// used.
pub mod attribute {
    /// The run.
    pub const RUN: &str = "millrace.run";
    /// The rollout.
    pub const ROLLOUT: &str = "millrace.rollout";
    /// A policy version, as a number.
    pub const VERSION: &str = "millrace.policy.version";
    /// Whether it is for evaluation.
    pub const EVALUATE: &str = "millrace.evaluate";
    /// Why something was dropped, returned or refused.
    pub const REASON: &str = "millrace.reason";
    /// Milliseconds that workers spent.
    pub const BUSY_MS: &str = "millrace.busy_ms";
}
