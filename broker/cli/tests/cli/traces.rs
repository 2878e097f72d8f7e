//! Traces of real runs, as a receiver of OTLP gets them over HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use millrace_queue::Trace;
use millrace_schemas::{PolicyVersion, RunId, TaskKey};
use millrace_telemetry::spans::now_ns;
use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;

use super::support::{Up, millrace, millrace_worker, run_file, send, stderr, until};

/// A receiver of traces.
struct Receiver {
    endpoint: String,
    spans: Arc<Mutex<Vec<(String, Span)>>>,
}

impl Receiver {
    /// `answers`: otherwise it takes connections and requests, and never answers.
    async fn start(answers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let spans = Arc::<Mutex<Vec<(String, Span)>>>::default();
        let into = spans.clone();
        let take = async move |body: Bytes| {
            let request = ExportTraceServiceRequest::decode(body).unwrap();
            for resource in request.resource_spans {
                let about = resource.resource.unwrap_or_default();
                let service = text(&about.attributes, "service.name").expect("the service is named");
                let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                let spans = spans.map(|span| (service.clone(), span));
                into.lock().unwrap_or_else(PoisonError::into_inner).extend(spans);
            }
            if !answers {
                std::future::pending::<()>().await;
            }
        };
        let router = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { endpoint, spans }
    }

    fn spans(&self) -> Vec<(String, Span)> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a `millrace up` needs to report here, soon.
    fn env(&self) -> [(&str, &str); 2] {
        [("OTEL_EXPORTER_OTLP_ENDPOINT", &self.endpoint), ("OTEL_BSP_SCHEDULE_DELAY", "100")]
    }
}

fn value<'a>(
    attributes: &'a [opentelemetry_proto::tonic::common::v1::KeyValue],
    key: &str,
) -> Option<&'a Value> {
    attributes.iter().find(|pair| pair.key == key)?.value.as_ref()?.value.as_ref()
}

fn text(attributes: &[opentelemetry_proto::tonic::common::v1::KeyValue], key: &str) -> Option<String> {
    let Value::StringValue(text) = value(attributes, key)? else { panic!("{key} is a text") };
    Some(text.clone())
}

fn number(span: &Span, key: &str) -> Option<i64> {
    let Value::IntValue(number) = value(&span.attributes, key)? else { panic!("{key} is a number") };
    Some(*number)
}

fn trace_id(span: &Span) -> u128 {
    u128::from_be_bytes(span.trace_id.as_slice().try_into().expect("16 bytes"))
}

fn span_id(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("8 bytes"))
}

fn is_evaluation(span: &Span) -> bool {
    matches!(value(&span.attributes, "millrace.evaluate"), Some(Value::BoolValue(true)))
}

fn counter() -> RunId {
    "counter".parse().unwrap()
}

/// Ids are those that follow from names, each span once, each below the root of its trace.
fn check_ids(spans: &[(String, Span)]) {
    let mut seen = BTreeSet::new();
    for (service, span) in spans {
        let attribute = |key| text(&span.attributes, key);
        assert_eq!(attribute("millrace.run").as_deref(), Some("counter"), "{span:?}");
        let rollout = attribute("millrace.rollout").map(|id| format!("{id}-e0").parse::<TaskKey>().unwrap());
        let task = attribute("messaging.message.id").map(|id| id.parse::<TaskKey>().unwrap());
        if let Some(key) = task.or(rollout) {
            assert_eq!(trace_id(span), Trace::of_task(&counter(), key).id, "{span:?}");
        }
        let root = Trace { id: trace_id(span) }.root();
        if span.parent_span_id.is_empty() {
            assert_eq!(
                (span_id(&span.span_id), service.as_str()),
                (root, "millrace-coordinator"),
                "{span:?}"
            );
        } else {
            assert_eq!(span_id(&span.parent_span_id), root, "{span:?}");
        }
        assert_eq!(service == "millrace-worker", task.is_some(), "{span:?}");
        assert!(seen.insert((trace_id(span), span_id(&span.span_id))), "twice: {span:?}");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    }
}

/// Spans of each trace, by name.
fn traces(spans: &[(String, Span)]) -> BTreeMap<u128, BTreeMap<String, Vec<Span>>> {
    let mut traces: BTreeMap<u128, BTreeMap<String, Vec<Span>>> = BTreeMap::new();
    for (_, span) in spans {
        let trace = traces.entry(trace_id(span)).or_default();
        trace.entry(span.name.clone()).or_default().push(span.clone());
    }
    traces
}

/// A worker is killed with tasks in flight. They are delivered again, to another process, and stay
/// in the traces of their rollouts.
#[tokio::test]
async fn each_rollout_is_one_trace_also_when_a_worker_is_killed() {
    let receiver = Receiver::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let steps = 20;
    let args = ["--steps", "20"];
    let mut up = Up::start_with(folder.path(), &run_file("counter.toml"), &args, &receiver.env());
    up.reached(3).await;
    let pid = up.pid_of("generate-0", None).await;
    // It holds its tasks, and takes those that it asked for, but does none.
    send(pid, Signal::SIGSTOP);
    let mut before = None;
    until("the run waits for the worker", async || {
        let version = up.version().await;
        (before.replace(version) == Some(version)).then_some(())
    })
    .await;
    send(pid, Signal::SIGKILL);
    let killed_ns = now_ns();
    assert!(up.ended().await.success(), "{}", up.output());
    let report = up.report();
    assert!(report.balanced && report.restarts == 1, "{report:#?}");

    let spans = receiver.spans();
    check_ids(&spans);
    let traces = traces(&spans);
    let rollouts = || traces.values().filter(|trace| trace.contains_key("rollout"));
    let trained_on = rollouts().filter(|trace| !is_evaluation(&trace["rollout"][0]));
    assert_eq!(trained_on.clone().count() as u64, report.ledger.admitted, "one trace a rollout");
    let ended = |name: &str| spans.iter().filter(|(_, span)| span.name == name).count() as u64;
    assert_eq!(ended("trained"), report.ledger.trained);
    assert_eq!(ended("dropped"), report.ledger.dropped.values().sum::<u64>());
    // What the killed worker had done and not yet sent is lost. Later rollouts are whole.
    let later = rollouts().filter(|trace| trace["rollout"][0].start_time_unix_nano > killed_ns);
    let whole = later.filter(|trace| trace.contains_key("trained") || trace.contains_key("evaluated"));
    assert!(whole.clone().count() > 100, "the run went on after the kill");
    for trace in whole {
        // Three turns: a reset and a step after each. A second delivery is one more.
        let least = [("generate", 3), ("env_step", 4), ("reward", 1)];
        for (stage, least) in least {
            let done = trace[stage]
                .iter()
                .filter(|span| text(&span.attributes, "millrace.verdict").unwrap() == "done");
            assert!(done.count() >= least, "{stage}: {trace:#?}");
        }
        for turn in &trace["generate"] {
            assert!(number(turn, "gen_ai.usage.output_tokens").unwrap() > 0, "{turn:#?}");
            assert!(number(turn, "millrace.policy.version").is_some(), "{turn:#?}");
        }
    }
    let again =
        spans.iter().filter(|(_, span)| number(span, "millrace.delivery").is_some_and(|number| number > 1));
    let again: Vec<&Span> = again.map(|(_, span)| span).filter(|span| span.name == "generate").collect();
    assert!(!again.is_empty(), "the killed worker had nothing in flight");
    assert!(again.iter().all(|span| traces[&trace_id(span)].contains_key("rollout")));

    for version in 0..=steps {
        let trace = &traces[&Trace::of_version(&counter(), PolicyVersion(version)).id];
        let step = &trace["step"][0];
        assert_eq!((trace["committed"].len(), trace["train_shard"].is_empty()), (1, false));
        assert_eq!(trace["publish_weights"].len(), 1);
        let rollouts = if version == 0 { 0 } else { 8 * 4 };
        assert_eq!(step.links.len(), rollouts, "{step:#?}");
        for link in &step.links {
            let id = u128::from_be_bytes(link.trace_id.as_slice().try_into().unwrap());
            assert_eq!(span_id(&link.span_id), Trace { id }.root());
            assert_eq!(number(&traces[&id]["trained"][0], "millrace.policy.version"), Some(version as i64));
        }
    }
}

/// A coordinator that is killed and restarted reports no span twice that it reported before, and
/// what happened while none led is reported.
#[tokio::test]
async fn a_restarted_coordinator_replays_without_reporting_again() {
    let receiver = Receiver::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let mut up =
        Up::start_with(folder.path(), &run_file("counter.toml"), &["--steps", "40"], &receiver.env());
    up.reached(5).await;
    let pid = up.pid_of("coordinator-0", None).await;
    send(pid, Signal::SIGKILL);
    assert!(up.ended().await.success(), "{}", up.output());
    let spans = receiver.spans();
    // What the killed one sent within its last second may come again, as the same span.
    let (mut seen, mut twice) = (BTreeMap::new(), 0);
    for (_, span) in &spans {
        let known = seen.insert((trace_id(span), span_id(&span.span_id)), span.clone());
        twice += usize::from(known.is_some());
        assert!(known.is_none_or(|known| known == *span), "the same ids and other content: {span:?}");
    }
    let late = spans.iter().filter(|(_, span)| span.name == "committed").count();
    assert!(
        late <= 41 + twice && twice < spans.len() / 4,
        "{late} versions, {twice} of {} twice",
        spans.len()
    );
    // The last version's rollouts were admitted long after the restart.
    let traces = traces(&spans);
    let last = Trace::of_version(&counter(), PolicyVersion(40)).id;
    let rollouts = traces[&last]["step"][0].links.iter();
    let ids = rollouts.map(|link| u128::from_be_bytes(link.trace_id.as_slice().try_into().unwrap()));
    assert!(ids.clone().count() == 8 * 4 && ids.into_iter().all(|id| traces[&id].contains_key("rollout")));
}

/// A share of the rollouts is traced, each of them whole.
#[tokio::test]
async fn processes_sample_the_same_rollouts() {
    let receiver = Receiver::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let share = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.3")];
    let env = [&receiver.env()[..], &share].concat();
    let mut up = Up::start_with(folder.path(), &run_file("counter.toml"), &["--steps", "10"], &env);
    assert!(up.ended().await.success(), "{}", up.output());
    let admitted = up.report().ledger.admitted as usize;
    let spans = receiver.spans();
    check_ids(&spans);
    let traces = traces(&spans);
    let versions: BTreeSet<u128> =
        (0..=10).map(|version| Trace::of_version(&counter(), PolicyVersion(version)).id).collect();
    let sampled = || traces.iter().filter(|(id, _)| !versions.contains(id)).map(|(_, trace)| trace);
    assert!(
        sampled().all(|trace| trace.contains_key("rollout")),
        "a worker traced what the coordinator did not"
    );
    let trained_on = sampled().filter(|trace| !is_evaluation(&trace["rollout"][0])).count();
    assert!((admitted / 8..admitted / 2).contains(&trained_on), "{trained_on} of {admitted}");
    let trained = sampled().filter(|trace| trace.contains_key("trained"));
    assert!(trained.clone().count() > 0);
    assert!(trained.clone().all(|trace| trace["generate"].len() >= 3 && trace.contains_key("reward")));
    assert!(versions.iter().all(|id| traces[id].contains_key("step")), "steps are traced for all");
    let linked =
        traces.values().filter_map(|trace| trace.get("step")).flat_map(|steps| &steps[0].links).count();
    assert_eq!(linked, trained.count(), "a step refers to those of its rollouts that are traced");
}

#[tokio::test]
async fn a_receiver_that_never_answers_stops_no_run() {
    let receiver = Receiver::start(false).await;
    let folder = tempfile::tempdir().unwrap();
    let bounds = [("OTEL_BSP_MAX_QUEUE_SIZE", "8"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")];
    let env = [&receiver.env()[..], &bounds].concat();
    let mut up = Up::start_with(folder.path(), &run_file("counter.toml"), &["--steps", "20"], &env);
    assert!(up.ended().await.success(), "{}", up.output());
    let report = up.report();
    assert!(report.balanced && report.audited && report.final_version == 20, "{report:#?}");
    assert_eq!(report.restarts, 0, "{}", up.output());
    assert!(!receiver.spans().is_empty(), "it was asked");
    for process in ["coordinator-0", "generate-0"] {
        let log = std::fs::read_to_string(folder.path().join(format!("logs/{process}.log"))).unwrap();
        assert!(log.contains("did not take the last spans in time"), "{process}: {log}");
    }
}

/// A variable that cannot be followed ends the process at its start, with the remedy.
#[tokio::test]
async fn a_setting_that_is_not_supported_is_refused_at_the_start() {
    for (mut program, arguments) in
        [(millrace(), &["coordinator"][..]), (millrace_worker(), &["--stages", "generate"])]
    {
        program.args(arguments).args(["--objects", "/nonexistent"]);
        let ended = program.env("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318").output().await.unwrap();
        let said = stderr(&ended);
        assert!(!ended.status.success() && said.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{said}");
        assert!(said.contains("http://collector:4318"), "the remedy: {said}");
    }
}
