//! The span of one delivery of a task. The trace is its rollout's, or its version's; a second
//! delivery is another span of the same trace.

use std::time::Instant;

use millrace_queue::{Delivery, Trace};
use millrace_schemas::generate::{Finish, GenerateDone};
use millrace_schemas::limits::MAX_SHOWN_BYTES;
use millrace_schemas::subjects::{TaskSubject, consumer_filter, parse_task};
use millrace_schemas::text::shown;
use millrace_schemas::{OutcomeBody, WorkerId};
use millrace_telemetry::Tracer;
use millrace_telemetry::spans::{self, KeyValue, Span, SpanKind, SpanRef, attribute};

use super::executor::{Cost, Verdict};

/// A delivery of a sampled trace, from its arrival on.
pub(super) struct TracedDelivery {
    task: TaskSubject,
    trace: Trace,
    arrived: Instant,
    arrived_ns: u64,
    stored_ns: u64,
    attempt: u64,
}

impl TracedDelivery {
    /// `None` if the trace is not recorded, or the subject is not a task's.
    pub(super) fn arrived(tracer: &Tracer, delivery: &Delivery) -> Option<Self> {
        if !tracer.is_on() {
            return None;
        }
        let task = parse_task(&delivery.message.subject).ok()?;
        let trace = Trace::of_task(&task.run, task.key);
        // There is one step for many rollouts: it is recorded for those that are sampled.
        if task.key.rollout().is_some() && !tracer.samples(trace.id) {
            return None;
        }
        let Delivery { stored_ns, attempt, .. } = *delivery;
        Some(Self { task, trace, arrived: Instant::now(), arrived_ns: spans::now_ns(), stored_ns, attempt })
    }

    /// Reports the span.
    pub(super) fn ended(self, tracer: &Tracer, worker: &WorkerId, verdict: &Verdict) {
        let Self { task, trace, arrived, arrived_ns, stored_ns, attempt } = self;
        let destination = consumer_filter(task.stage, &task.pool);
        let waited_ms = arrived_ns.saturating_sub(stored_ns) as f64 / 1e6;
        let mut attributes = vec![
            KeyValue::new("messaging.system", "nats"),
            KeyValue::new("messaging.operation.type", "process"),
            KeyValue::new("messaging.operation.name", task.stage.name()),
            KeyValue::new("messaging.destination.name", destination),
            KeyValue::new("messaging.consumer.group.name", task.pool.to_string()),
            KeyValue::new("messaging.message.id", task.key.to_string()),
            KeyValue::new("messaging.client.id", worker.to_string()),
            KeyValue::new(attribute::RUN, task.run.to_string()),
            KeyValue::new("millrace.queue_wait_ms", waited_ms),
            KeyValue::new("millrace.delivery", attempt as i64),
        ];
        attributes.extend(task.key.rollout().map(|id| KeyValue::new(attribute::ROLLOUT, id.to_string())));
        let (name, error) = describe(verdict, &mut attributes);
        attributes.push(KeyValue::new("millrace.verdict", name));
        // Deliveries are counted from 1 for each put of a task.
        let span_id = trace.span(&format!("{}/{stored_ns}/{attempt}", task.key));
        tracer.record(Span {
            at: SpanRef { trace_id: trace.id, span_id },
            parent: Some(trace.root()),
            name: task.stage.name().into(),
            kind: SpanKind::Consumer,
            start_ns: arrived_ns,
            end_ns: arrived_ns + arrived.elapsed().as_nanos() as u64,
            attributes,
            links: Vec::new(),
            error,
        });
    }
}

/// The verdict's name as metrics spell it, and the error if it is one.
fn describe(verdict: &Verdict, attributes: &mut Vec<KeyValue>) -> (&'static str, Option<String>) {
    let reason = |reason: &str| Some(shown(reason, MAX_SHOWN_BYTES));
    match verdict {
        Verdict::Done(body, Cost { busy, .. }) => {
            attributes.extend(busy.map(|busy| KeyValue::new(attribute::BUSY_MS, busy.as_secs_f64() * 1e3)));
            describe_outcome(body, attributes);
            ("done", None)
        }
        Verdict::RetryAfter(_, why) => ("retried", reason(why)),
        Verdict::Poison(why) => ("poison", reason(why)),
        Verdict::Stale => ("stale", None),
    }
}

fn describe_outcome(body: &OutcomeBody, attributes: &mut Vec<KeyValue>) {
    match body {
        OutcomeBody::Generate(done) => describe_turn(done, attributes),
        OutcomeBody::EnvStep(done) => attributes.push(KeyValue::new("millrace.reward", done.reward)),
        OutcomeBody::Reward(done) => attributes.push(KeyValue::new("millrace.score", done.score)),
        OutcomeBody::PublishWeights(done) => attributes.push(KeyValue::new("millrace.created", done.created)),
        OutcomeBody::Void(void) => {
            attributes.push(KeyValue::new(attribute::REASON, shown(&void.reason, MAX_SHOWN_BYTES)));
        }
        OutcomeBody::Lost(lost) => {
            attributes.push(KeyValue::new(attribute::REASON, shown(&lost.reason, MAX_SHOWN_BYTES)));
        }
        OutcomeBody::TrainShard(_)
        | OutcomeBody::TurnBrief(_)
        | OutcomeBody::StepBrief(_)
        | OutcomeBody::Returned(_) => {}
    }
}

fn describe_turn(done: &GenerateDone, attributes: &mut Vec<KeyValue>) {
    let finish = match done.finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Partial => "partial",
    };
    let (prefilled, cached) = (i64::from(done.prefill_tokens), i64::from(done.cached_tokens));
    attributes.extend([
        KeyValue::new("gen_ai.operation.name", "text_completion"),
        KeyValue::new("gen_ai.provider.name", "millrace"),
        KeyValue::new("gen_ai.usage.input_tokens", prefilled + cached),
        KeyValue::new("gen_ai.usage.cache_read.input_tokens", cached),
        KeyValue::new("gen_ai.usage.output_tokens", done.tokens.len() as i64),
        spans::texts("gen_ai.response.finish_reasons", [finish.to_owned()]),
        // In the order in which they sampled; several where the weights changed within the turn.
        spans::numbers("millrace.policy.versions", done.segments.iter().map(|part| part.version.0 as i64)),
    ]);
    let newest = done.segments.last().map(|part| part.version.0 as i64);
    attributes.extend(newest.map(|version| KeyValue::new(attribute::VERSION, version)));
}
